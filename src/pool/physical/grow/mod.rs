//! Growth of free space: cached, moved and new handles, mapped one behind the other.

use super::leaving::Then;
use super::*;
use crate::support::sort;

mod plan;
#[cfg(test)]
mod tests;

use plan::Plan;

/// How a growth goes on.
enum Step {
    /// The plan suffices.
    Fill(Plan),
    /// Nothing more can be had.
    Short,
    /// This has to leave first.
    Exchange {
        leaving: Vec<Leaving>,
        /// Cached handles that go back to the driver are more than so many bytes, so what the reserve needs of them is created
        /// anew.
        at_most: Option<u64>,
    },
}

/// Maps free space in which `owner` can take `size` bytes at `align`, from cached handles and `sources`. The new space is
/// `owner`'s or common. Where the sources do not suffice, nothing has changed except that handles may have been returned to the
/// driver.
///
/// Idle handles that are moved or exchanged leave while other threads have the lock. If `goes_on` is false then, nothing is
/// mapped: the free space may be another owner's.
pub fn grow(
    lock: &mut impl Locked,
    owner: Owner,
    (size, align): (u64, u64),
    mut sources: Sources,
    goes_on: impl Fn() -> bool,
) -> Result<Grown> {
    let (physical, free_space) = lock.parts();
    if !physical.virtual_memory() {
        let added = physical.add_segment(free_space, size, align, sources.create)?;
        return Ok(if added { Grown::Somewhere } else { Grown::Short });
    }
    loop {
        let (physical, free_space) = lock.parts();
        let (leaving, at_most) = match physical.next_step(free_space, owner, (size, align), sources) {
            Step::Fill(plan) => return fill(lock, plan, size, goes_on),
            Step::Short => return Ok(Grown::Short),
            Step::Exchange { leaving, at_most } => (leaving, at_most),
        };
        let ranges = leaving.iter().any(Leaving::is_range);
        let left = lock.let_go(leaving);
        if !goes_on() {
            return Ok(Grown::Short);
        }
        // The handles of ranges are cached now.
        if ranges {
            continue;
        }
        let physical = lock.physical();
        let released = match at_most {
            Some(at_most) => left.gone - physical.refill_after(left.gone, at_most),
            None => left.gone,
        };
        if released == 0 {
            return left.error.map_or(Ok(Grown::Short), Err);
        }
        // Other threads may have created memory meanwhile.
        sources.create = (sources.create + released).min(physical.room_below_limit());
    }
}

/// Maps cached, moved and new handles at the plan's place, one behind the other.
fn fill(lock: &mut impl Locked, plan: Plan, size: u64, goes_on: impl Fn() -> bool) -> Result<Grown> {
    let created = create(lock, plan.need, size, plan.largest)?;
    let (physical, free_space) = lock.parts();
    let mut handles = created.clone();
    let cached = plan.cached.iter();
    handles.extend(cached.filter_map(|size| Some((physical.take_cached(*size)?, *size))));
    let place = plan.place;
    let node = free_space.begin_mapping(place.offset, place.size);
    // Goes from the last to the first of a range, so that what lies before keeps its number.
    let idle = plan.idle.iter().rev().copied();
    let leaving = physical.begin_idle(free_space, idle, Then::Cache, u64::MAX);
    let moves = !leaving.is_empty();
    let bytes = node.map_or(0, |node| free_space.span(node).1);
    physical.places += bytes;
    let left = lock.let_go(leaving);
    let goes_on = !moves || goes_on();
    let (physical, free_space) = lock.parts();
    physical.places -= bytes;
    for (handle, size) in left.cached {
        handles.extend(physical.take_cached_handle(handle, size).map(|handle| (handle, size)));
        physical.remaps += 1;
    }
    let filled: u64 = handles.iter().map(|(_, size)| size).sum();
    let outcome = match node {
        _ if let Some(error) = left.error => Err(error),
        _ if !goes_on => Ok(Grown::Short),
        // A range that is not backed in full has no owner.
        Some(node) if filled == place.size => {
            // Single pages go to the end, where small blocks are taken from.
            sort::by_key(&mut handles, |(_, size)| (!*size, 0));
            match physical.map_all(free_space, &plan, (node, &handles), size) {
                Ok(()) => return Ok(Grown::At(place.start, place.owner)),
                Err(error) => {
                    let leaving = physical.begin_unsticking();
                    lock.let_go(leaving);
                    lock.discard(&created);
                    return Err(error);
                }
            }
        }
        _ => Err(crate::driver::DriverError::refused("map", Failure::Other)),
    };
    node.into_iter().for_each(|node| free_space.restore(node));
    handles
        .into_iter()
        .for_each(|(handle, size)| physical.keep(handle, size));
    // Handles that were created for this have no use now, so they do not stay.
    lock.discard(&created);
    outcome
}

/// Creates handles of `bytes` bytes in total for a request of `size` bytes. Each is at most `largest`, or as large as the
/// request may leave unused at its ends. On an error it creates none.
fn create(lock: &mut impl Locked, bytes: u64, size: u64, largest: Option<u64>) -> Result<Vec<(Handle, u64)>> {
    let physical = lock.physical();
    let (mut handles, mut left) = (Vec::new(), bytes);
    let part = (physical.reserved + bytes) / PART;
    let pages = |bytes: u64| (bytes.min(LARGEST) / physical.page).max(1);
    let largest = match largest {
        Some(largest) => pages(largest) * physical.page,
        None => (1 << pages(FreeSpace::may_leave_unused(size).min(part)).ilog2()) * physical.page,
    };
    while left > 0 {
        let size = left.min(largest);
        match physical.create_handle(size) {
            Ok(handle) => handles.push((handle, size)),
            Err(error) => {
                handles.iter().for_each(|(handle, size)| physical.keep(*handle, *size));
                lock.discard(&handles);
                return Err(error);
            }
        }
        left -= size;
    }
    Ok(handles)
}

impl PhysicalMemory {
    /// How a growth goes on: see [`grow`]. What it takes to leave is out of the books.
    fn next_step(
        &mut self,
        free_space: &mut FreeSpace,
        owner: Owner,
        (size, align): (u64, u64),
        sources: Sources,
    ) -> Step {
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
                return Step::Fill(plan);
            }
            short.get_or_insert(plan);
        }
        let Some(plan) = short.filter(|_| sources.remap) else {
            return Step::Short;
        };
        if self.floor() > 0 && !self.can_exchange(free_space, owner, &plan, sources) {
            return Step::Short;
        }
        // Cached blocks are taken apart, and what does not fit makes room for new handles.
        let ranges = self.begin_leaving_ranges(1, false, 1);
        if !ranges.is_empty() {
            return Step::Exchange {
                leaving: ranges,
                at_most: None,
            };
        }
        let lacking = plan.need - sources.create;
        let mut leaving = self.begin_leaving_handles(Quota::Exchange(lacking), usize::MAX);
        let cached: u64 = leaving.iter().map(Leaving::size).sum();
        if cached < lacking && sources.exchange {
            let idle = self.idle(free_space, owner, sources.complete);
            leaving.extend(self.begin_exchange(free_space, idle, &plan, size, lacking - cached));
        }
        match leaving.is_empty() {
            true => Step::Short,
            false => Step::Exchange {
                leaving,
                at_most: (cached >= lacking).then_some(lacking),
            },
        }
    }

    /// Takes handles of at least `bytes` bytes in total out of the free space, and as few more as possible, to be released. It
    /// takes only handles of `left` that neither `plan` nor the request itself will use, and none where there are not so
    /// many.
    fn begin_exchange(
        &mut self,
        free_space: &mut FreeSpace,
        mut left: Vec<Idle>,
        plan: &Plan,
        size: u64,
        bytes: u64,
    ) -> Vec<Leaving> {
        let taken = |idle: &Idle| plan.idle.iter().any(|taken| taken.offset == idle.offset);
        left.retain(|idle| !idle.overlaps(plan.place.start, size) && !taken(idle));
        if left.iter().map(|idle| idle.size).sum::<u64>() < bytes {
            return Vec::new();
        }
        sort::by_key(&mut left, |idle| (idle.size, 0));
        let (mut chosen, mut released) = (Vec::new(), 0);
        while released < bytes && !left.is_empty() {
            // The smallest handle that is enough, otherwise the largest.
            let at = left.partition_point(|idle| idle.size < bytes - released);
            let idle = left.remove(at.min(left.len() - 1));
            released += idle.size;
            chosen.push(idle);
        }
        let leaving = self.begin_idle(free_space, chosen, Then::Release, u64::MAX);
        self.remaps += leaving.len() as u64;
        leaving
    }

    /// Maps `handles`, one behind the other, at the plan's place, which is the used node. On an error, the place is a hole
    /// again, what could be mapped is stuck, and the other handles are cached.
    fn map_all(
        &mut self,
        free_space: &mut FreeSpace,
        plan: &Plan,
        (node, handles): (NodeId, &[(Handle, u64)]),
        size: u64,
    ) -> Result<()> {
        let place = plan.place;
        let base = self.addresses.base().unwrap_or_default();
        let (mut at, mut mapped, mut outcome) = (place.offset, 0, Ok(()));
        for (handle, size) in handles {
            outcome = self.calls.submit(|driver| driver.map(base + at, *size, *handle));
            if outcome.is_err() {
                break;
            }
            at += size;
            mapped += 1;
        }
        if outcome.is_ok() {
            outcome = self
                .calls
                .submit(|driver| driver.set_access(base + place.offset, place.size, &self.access));
        }
        if let Err(error) = outcome {
            free_space.restore(node);
            self.keep_mapped(free_space, place.offset, handles, mapped);
            return Err(error);
        }
        self.record(Action::SegmentMap, place.offset, place.size);
        free_space.end_mapping(node, place.owner);
        let mut at = place.offset;
        for (handle, bytes) in handles {
            if *bytes > self.page && !(plan.shares && *bytes > FreeSpace::may_leave_unused(size)) {
                free_space.join_extent(at, *bytes);
            }
            self.insert(at, *bytes, Origin::Handle(*handle));
            at += bytes;
        }
        Ok(())
    }

    fn insert(&mut self, offset: u64, size: u64, origin: Origin) {
        let mapped = Mapped {
            offset,
            size,
            origin,
            leaves: false,
        };
        self.mapped.insert(offset, mapped);
    }

    /// The first `mapped` of `handles` are mapped from `at` on, and have to be unmapped. The others are cached.
    fn keep_mapped(&mut self, free_space: &mut FreeSpace, mut at: u64, handles: &[(Handle, u64)], mapped: usize) {
        for (index, (handle, size)) in handles.iter().enumerate() {
            if index >= mapped {
                self.keep(*handle, *size);
            } else if let Some(node) = free_space.withhold(at, *size) {
                self.stuck += 1;
                self.insert(at, *size, Origin::Stuck(*handle, node));
            }
            at += size;
        }
    }
}
