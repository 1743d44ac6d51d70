//! What fills a place: cached handles, handles that move, and new ones.

use super::*;

/// The memory that fills a place.
pub struct Plan {
    pub place: Place,
    /// The sizes of cached handles.
    pub cached: Vec<u64>,
    /// The handles that are moved.
    pub idle: Vec<Idle>,
    /// The bytes that are still missing, which are created.
    pub need: u64,
    /// The largest handle, where that is not the request's.
    pub largest: Option<u64>,
    /// Further blocks are to share handles that are larger than the request needs. A stream cuts its arena anywhere. In
    /// common free space, such handles are no extents that small blocks leave whole.
    pub shares: bool,
}

impl PhysicalMemory {
    /// The handles that would fill `place`: cached ones, ones that may be moved, and new ones.
    pub(super) fn plan(
        &self,
        free_space: &FreeSpace,
        owner: Owner,
        mut place: Place,
        size: u64,
        sources: Sources,
    ) -> Plan {
        let mut need = place.size;
        let mut cached = self.fitting_cached(&mut need);
        // Handles are not split. Where only a larger one exists, the place becomes larger.
        let room = (place.room - place.size).min(FreeSpace::may_leave_unused(size).max(self.reserve_handle()));
        let mut shares = false;
        if let Some(larger) = self.larger_cached(need, room, &cached) {
            shares = owner == COMMON && larger - need > FreeSpace::may_leave_unused(size);
            place.size += larger - std::mem::take(&mut need);
            cached.push(larger);
        }
        let mut idle = Vec::new();
        if need > 0 && sources.remap {
            let all = self.idle(free_space, owner, sources.complete);
            idle = fitting_idle(all, &place, size, &mut need, room);
            place.size = place
                .size
                .max(idle.iter().map(|idle| idle.size).sum::<u64>() + cached.iter().sum::<u64>());
        }
        Plan {
            place,
            cached,
            idle,
            need,
            largest: None,
            shares,
        }
    }

    /// Adds new memory behind that of `plan`, as far as it may go ahead of its request.
    pub(super) fn with_memory_ahead(&self, mut plan: Plan, ahead: Option<Ahead>) -> Plan {
        let Some(ahead) = ahead.filter(|_| plan.need > 0) else {
            return plan;
        };
        let more = ahead.reserved.saturating_sub(self.reserved + plan.need);
        let more = more
            .min(plan.place.room - plan.place.size)
            .min(self.room_below_limit().saturating_sub(plan.need));
        let more = more / self.page * self.page;
        plan.place.size += more;
        plan.need += more;
        plan.largest = Some(ahead.handle);
        plan
    }

    /// Whether `plan` suffices once what it does not use went back to the driver for new memory.
    pub(super) fn can_exchange(&self, free_space: &FreeSpace, owner: Owner, plan: &Plan, sources: Sources) -> bool {
        let bytes = |idle: &[Idle]| idle.iter().map(|idle| idle.size).sum::<u64>();
        let idle = match sources.exchange {
            true => bytes(&self.idle(free_space, owner, sources.complete)),
            false => 0,
        };
        let held = self.cached_handle_bytes + self.cached_range_bytes() + idle;
        let planned = plan.cached.iter().sum::<u64>() + bytes(&plan.idle);
        plan.need <= sources.create + held.saturating_sub(planned)
    }

    /// Cached handles that fit into `need` bytes; lowers `need` by their sizes.
    fn fitting_cached(&self, need: &mut u64) -> Vec<u64> {
        let mut chosen = Vec::new();
        for (size, handles) in self.cached_handles.range(..=*need).rev() {
            let count = (*need / size).min(handles.len() as u64);
            chosen.extend(std::iter::repeat_n(*size, count as usize));
            *need -= count * size;
        }
        chosen
    }

    /// The size of a cached handle that is not `chosen` yet and exceeds `need` by at most `room`; none where no handle
    /// does or `need` is 0.
    fn larger_cached(&self, need: u64, room: u64, chosen: &[u64]) -> Option<u64> {
        let left = |size: u64, handles: &[Handle]| handles.len() > chosen.iter().filter(|one| **one == size).count();
        let mut larger = self.cached_handles.range(need..).filter(|_| need > 0);
        let (size, _) = larger.find(|(size, handles)| left(**size, handles))?;
        (size - need <= room).then_some(*size)
    }

    /// The idle handles: those of small ranges first, and of each range by offset. What `owner` has freed counts up to
    /// the event `complete`.
    pub(super) fn idle(&self, free_space: &FreeSpace, owner: Owner, complete: Option<u64>) -> Vec<Idle> {
        let common = free_space.ranges(COMMON).map(|range| (COMMON, range));
        let own = complete.filter(|_| owner != COMMON);
        let own = own
            .into_iter()
            .flat_map(|through| free_space.ranges_through(owner, through));
        let mut ranges: Vec<(u64, NodeId, u64, Owner)> = common
            .chain(own.map(|range| (owner, range)))
            .filter(|(_, (_, _, bytes))| *bytes >= self.page)
            .map(|(owner, (id, offset, bytes))| (bytes, id, offset, owner))
            .collect();
        sort::by_key(&mut ranges, |(bytes, id, ..)| (*bytes, (*id).into()));
        let mut idle = Vec::new();
        for (bytes, range, offset, owner) in ranges {
            let inside = self.mapped.range(offset..offset + bytes).map(|(_, mapped)| mapped);
            let movable = inside.filter(|mapped| {
                matches!(mapped.origin, Origin::Handle(_)) && mapped.offset + mapped.size <= offset + bytes
            });
            idle.extend(movable.map(|mapped| Idle {
                range,
                owner,
                offset: mapped.offset,
                size: mapped.size,
            }));
        }
        idle
    }
}

/// Of idle handles, those that fit into `need` bytes; lowers `need` by their sizes. The last may exceed `need` by at most
/// `room`. Small ranges are broken up first. What a request of `size` bytes at the place will use itself stays.
fn fitting_idle(all: Vec<Idle>, place: &Place, size: u64, need: &mut u64, room: u64) -> Vec<Idle> {
    let (mut chosen, mut larger) = (Vec::new(), Vec::new());
    for idle in all {
        if *need == 0 {
            return chosen;
        }
        if idle.overlaps(place.start, size) {
            continue;
        }
        if idle.size <= *need {
            *need -= idle.size;
            chosen.push(idle);
        } else {
            larger.push(idle);
        }
    }
    let last = larger
        .into_iter()
        .filter(|idle| *need > 0 && idle.size - *need <= room)
        .min_by_key(|idle| idle.size);
    if let Some(last) = last {
        *need = 0;
        // It goes among its range's handles, in the order of offsets, because they are taken out in reverse.
        let at = chosen
            .iter()
            .position(|idle: &Idle| idle.range == last.range && idle.offset > last.offset);
        chosen.insert(at.unwrap_or(chosen.len()), last);
    }
    chosen
}
