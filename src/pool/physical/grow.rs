//! Growth of free space: cached, moved and new handles, mapped one behind the other.

use super::*;
use crate::support::sort;

/// The memory that fills a place.
struct Plan {
    place: Place,
    /// The sizes of cached handles.
    cached: Vec<u64>,
    /// The handles that are moved.
    idle: Vec<Idle>,
    /// The bytes that are still missing, which are created.
    need: u64,
    /// The largest handle, where that is not the request's.
    largest: Option<u64>,
    /// Further blocks are to share handles that are larger than the request needs. A stream cuts its arena anywhere. In
    /// common free space, such handles are no extents that small blocks leave whole.
    shares: bool,
}

impl PhysicalMemory {
    /// Maps free space in which `owner` can take `size` bytes at `align`, from cached handles and `sources`. The new
    /// space is `owner`'s or common. Where the sources do not suffice, nothing has changed except that handles may have
    /// been returned to the driver.
    pub fn grow(
        &mut self,
        free_space: &mut FreeSpace,
        owner: Owner,
        size: u64,
        align: u64,
        sources: Sources,
    ) -> Result<Grown> {
        if !self.virtual_memory() {
            let added = self.add_segment(free_space, size, align, sources.create)?;
            return Ok(if added { Grown::Somewhere } else { Grown::Short });
        }
        // First the place that lacks the least memory, then the place where the most handles fit.
        let places = [
            free_space.place(owner, size, align, self.page),
            free_space.roomiest_place(owner, size, align, self.page),
        ];
        let mut short = None;
        for place in places.into_iter().flatten() {
            let plan = self.plan(free_space, owner, place, size, sources);
            if plan.need <= sources.create {
                let mut plan = self.with_memory_ahead(plan, sources.ahead);
                plan.shares |= plan.largest.is_some() && owner == COMMON;
                self.fill(free_space, plan, size)?;
                return Ok(Grown::At(place.start, place.owner));
            }
            short.get_or_insert(plan);
        }
        let Some(plan) = short.filter(|_| sources.remap) else {
            return Ok(Grown::Short);
        };
        if self.floor() > 0 && !self.can_exchange(free_space, owner, &plan, sources) {
            return Ok(Grown::Short);
        }
        // Cached blocks are destroyed, and what does not fit makes room for new handles.
        if self.destroy_cached_range() {
            return self.grow(free_space, owner, size, align, sources);
        }
        let lacking = plan.need - sources.create;
        let mut released = self.exchange_cached(self.reserved.saturating_sub(lacking));
        if released < lacking && sources.exchange {
            let idle = self.idle(free_space, owner, sources.complete);
            released += self.exchange(free_space, idle, &plan, size, lacking - released)?;
        }
        if released == 0 {
            return Ok(Grown::Short);
        }
        let create = sources.create + released;
        self.grow(free_space, owner, size, align, Sources { create, ..sources })
    }

    /// The handles that would fill `place`: cached ones, ones that may be moved, and new ones.
    fn plan(&self, free_space: &FreeSpace, owner: Owner, mut place: Place, size: u64, sources: Sources) -> Plan {
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
    fn with_memory_ahead(&self, mut plan: Plan, ahead: Option<Ahead>) -> Plan {
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
    fn can_exchange(&self, free_space: &FreeSpace, owner: Owner, plan: &Plan, sources: Sources) -> bool {
        let bytes = |idle: &[Idle]| idle.iter().map(|idle| idle.size).sum::<u64>();
        let idle = match sources.exchange {
            true => bytes(&self.idle(free_space, owner, sources.complete)),
            false => 0,
        };
        let held = self.cached_handle_bytes + self.cached_range_bytes() + idle;
        let planned = plan.cached.iter().sum::<u64>() + bytes(&plan.idle);
        plan.need <= sources.create + held.saturating_sub(planned)
    }

    /// Releases handles of at least `bytes` bytes in total to the driver, and as few more as possible. It takes only
    /// handles of `left` that neither `plan` nor the request itself will use. It releases nothing where there are not so
    /// many. Returns the bytes.
    fn exchange(
        &mut self,
        free_space: &mut FreeSpace,
        mut left: Vec<Idle>,
        plan: &Plan,
        size: u64,
        bytes: u64,
    ) -> Result<u64> {
        let taken = |idle: &Idle| plan.idle.iter().any(|taken| taken.offset == idle.offset);
        left.retain(|idle| !idle.overlaps(plan.place.start, size) && !taken(idle));
        if left.iter().map(|idle| idle.size).sum::<u64>() < bytes {
            return Ok(0);
        }
        sort::by_key(&mut left, |idle| (idle.size, 0));
        let mut released = 0;
        while released < bytes {
            // The smallest handle that is enough, otherwise the largest.
            let at = left.partition_point(|idle| idle.size < bytes - released);
            if left.is_empty() {
                break;
            }
            let idle = left.remove(at.min(left.len() - 1));
            released += self.release_idle(free_space, idle)?;
            self.remaps += 1;
        }
        Ok(released)
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
    fn idle(&self, free_space: &FreeSpace, owner: Owner, complete: Option<u64>) -> Vec<Idle> {
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

    /// Maps cached, moved and new handles at `place`, one behind the other.
    fn fill(&mut self, free_space: &mut FreeSpace, plan: Plan, size: u64) -> Result<()> {
        let before = self.reserved;
        let filled = self.map_all(free_space, plan, size);
        if filled.is_err() {
            // Handles that were created for this have no use now, so they do not stay.
            self.exchange_cached(before);
        }
        filled
    }

    fn map_all(&mut self, free_space: &mut FreeSpace, plan: Plan, size: u64) -> Result<()> {
        let Plan {
            place,
            cached,
            idle,
            need,
            largest,
            shares,
        } = plan;
        let mut handles = self.create(need, size, largest)?;
        handles.extend(
            cached
                .into_iter()
                .filter_map(|size| Some((self.take_cached(size)?, size))),
        );
        // Goes from the last to the first of a range, so that what lies before keeps its number.
        for idle in idle.into_iter().rev() {
            match self.detach(free_space, idle) {
                Ok(handle) => {
                    self.remaps += 1;
                    handles.push((handle, idle.size));
                }
                Err(error) => {
                    handles.into_iter().for_each(|(handle, size)| self.keep(handle, size));
                    return Err(error);
                }
            }
        }
        let filled: u64 = handles.iter().map(|(_, size)| size).sum();
        if filled != place.size {
            // A range that is not backed in full has no owner.
            handles.into_iter().for_each(|(handle, size)| self.keep(handle, size));
            return Err(crate::pool::driver_calls::refused("map", Failure::Other));
        }
        // Single pages go to the end, where small blocks are taken from.
        sort::by_key(&mut handles, |(_, size)| (!*size, 0));
        let mut at = place.offset;
        let base = self.addresses.base().unwrap_or_default();
        for (done, (handle, size)) in handles.iter().enumerate() {
            let outcome = self.calls.submit(|driver| driver.map(base + at, *size, *handle));
            if let Err(error) = outcome {
                self.undo(free_space, place.offset, &handles, done);
                return Err(error);
            }
            at += size;
        }
        let outcome = self
            .calls
            .submit(|driver| driver.set_access(base + place.offset, place.size, &self.access));
        if let Err(error) = outcome {
            self.undo(free_space, place.offset, &handles, handles.len());
            return Err(error);
        }
        self.record(Action::SegmentMap, place.offset, place.size);
        let mut at = place.offset;
        free_space.open(place.offset, place.size, place.owner, 0);
        for (handle, bytes) in handles {
            if bytes > self.page && !(shares && bytes > FreeSpace::may_leave_unused(size)) {
                free_space.join_extent(at, bytes);
            }
            self.mapped.insert(
                at,
                Mapped {
                    offset: at,
                    size: bytes,
                    origin: Origin::Handle(handle),
                    leaves: false,
                },
            );
            at += bytes;
        }
        Ok(())
    }

    /// Unmaps the first `done` of `handles` at `offset` and caches them all.
    fn undo(&mut self, free_space: &mut FreeSpace, offset: u64, handles: &[(Handle, u64)], done: usize) {
        let base = self.addresses.base().unwrap_or_default();
        let mut at = offset;
        for (index, (handle, size)) in handles.iter().enumerate() {
            let unmapped = index >= done || self.calls.submit(|driver| driver.unmap(base + at, *size)).is_ok();
            if unmapped {
                self.keep(*handle, *size);
            } else if let Some(node) = free_space.withhold(at, *size) {
                tracing::warn!(
                    offset = at,
                    size,
                    "a handle could not be unmapped, and is tried again later"
                );
                let memory = Origin::Stuck(*handle, node);
                self.stuck += 1;
                self.mapped.insert(
                    at,
                    Mapped {
                        offset: at,
                        size: *size,
                        origin: memory,
                        leaves: false,
                    },
                );
            }
            at += size;
        }
    }

    /// Creates handles of `bytes` bytes in total for a request of `size` bytes. Each is at most `largest`, or as large as
    /// the request may leave unused at its ends. On an error it creates none.
    fn create(&mut self, bytes: u64, size: u64, largest: Option<u64>) -> Result<Vec<(Handle, u64)>> {
        let mut handles = Vec::new();
        let mut left = bytes;
        let part = (self.reserved + bytes) / PART;
        let pages = |bytes: u64| (bytes.min(LARGEST) / self.page).max(1);
        let largest = match largest {
            Some(largest) => pages(largest) * self.page,
            None => (1 << pages(FreeSpace::may_leave_unused(size).min(part)).ilog2()) * self.page,
        };
        while left > 0 {
            let size = left.min(largest);
            match self.calls.submit(|driver| driver.create(self.device, size, self.kind)) {
                Ok(handle) => handles.push((handle, size)),
                Err(error) => {
                    for (handle, size) in handles {
                        if self.calls.submit(|driver| driver.release(handle)).is_err() {
                            self.reserved += size;
                            self.keep(handle, size);
                        }
                    }
                    return Err(error);
                }
            }
            left -= size;
        }
        self.reserved += bytes;
        Ok(handles)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Driver;
    use crate::driver::sim::{SimConfig, SimDriver};

    const MIB: u64 = 1 << 20;

    #[test]
    fn cached_handle_is_taken_once() {
        for (cached, need, reserved) in [
            (&[2][..], 4, 4),
            (&[2, 2], 6, 6),
            (&[2, 4], 4, 6),
            // A larger handle is used only where the request leaves little of it unused.
            (&[66], 64, 66),
            (&[2, 132], 128, 134),
            (&[4], 2, 6),
            (&[2, 8], 4, 12),
        ] {
            let driver = SimDriver::new(SimConfig::default());
            let calls = Arc::new(DriverCalls::new(driver.clone(), false));
            let (page, size) = (2 * MIB, 512 * MIB);
            let base = driver.reserve(size, page).unwrap();
            let space = Arc::new(AddressSpace::reserved(base, size, 512));
            let mut free_space = FreeSpace::new(size, 512, page);
            let (access, recorder) = (vec![0], Arc::default());
            let mut physical = PhysicalMemory::new(calls, space, 0, page, HandleKind::default(), access, recorder);
            let made = cached.iter().map(|size| physical.create_handle(size * MIB).unwrap());
            let made: Vec<Handle> = made.collect();
            for (size, handle) in cached.iter().zip(made) {
                physical.keep(handle, size * MIB);
            }
            let sources = Sources {
                remap: false,
                create: u64::MAX,
                complete: None,
                exchange: false,
                ahead: None,
            };
            let grown = physical.grow(&mut free_space, COMMON, need * MIB, 512, sources);
            assert_eq!(grown, Ok(Grown::At(0, COMMON)));
            assert!(free_space.take(COMMON, need * MIB, 512).is_some(), "{cached:?}");
            assert_eq!(physical.reserved(), reserved * MIB, "{cached:?} for {need}");
            assert_eq!(physical.mapped() + physical.cached_bytes(), physical.reserved());
        }
    }
}
