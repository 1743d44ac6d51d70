//! Memory that goes back to the driver while other threads may have the pool's lock.
//!
//! To unmap a handle takes tens of microseconds, and it may wait for work. So idle memory is taken out of the free space
//! under the lock, goes back without it, and leaves the books under the lock again. Meanwhile it counts as reserved, and
//! nothing is mapped at its place.

use super::*;
use crate::driver::DriverError;
use crate::pool::free_space::FreeRange;

/// How much goes back.
#[derive(Debug, Clone, Copy)]
pub enum Quota {
    /// At most so many bytes.
    AtMost(u64),
    /// So many bytes or a little more, but nothing that the reserve needs.
    AtLeast(u64),
    /// So many bytes or a little more, in exchange for new memory: the reserve is no floor.
    Exchange(u64),
}

/// What becomes of a handle once it is unmapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pool::physical) enum Then {
    Release,
    Cache,
}

/// One handle, segment or range on its way back to the driver.
pub struct Leaving {
    /// Bytes of physical memory; none for a range, whose handles are cached.
    size: u64,
    memory: Memory,
    then: Then,
    /// How far it has come.
    state: Stage,
    /// Why it came no further.
    error: Option<DriverError>,
}

enum Memory {
    /// Mapped at this offset and address. The used node keeps its place.
    Handle(Handle, u64, u64, NodeId),
    /// As a handle. It could not be unmapped before.
    Stuck(Handle, u64, u64, NodeId),
    /// A handle without an address.
    Cached(Handle),
    /// The driver's allocation at this address, at that offset. The used node keeps its place.
    Segment(u64, u64, NodeId),
    /// What a dedicated allocation had.
    Range(Box<Range>),
}

struct Range {
    release: DeferredRelease,
    /// What was mapped of it when it left.
    mappings: Vec<(u64, u64)>,
    /// What is mapped elsewhere although nothing uses it.
    mapped: Vec<(u64, u64)>,
    found: Recovered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Held,
    Unmapped,
    Gone,
}

impl Leaving {
    /// Bytes of physical memory.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether it is a range, whose handles are cached.
    pub fn is_range(&self) -> bool {
        matches!(self.memory, Memory::Range(_))
    }

    fn new(size: u64, memory: Memory, then: Then) -> Leaving {
        Leaving {
            size,
            memory,
            then,
            state: Stage::Held,
            error: None,
        }
    }

    /// A handle that could not be unmapped before.
    pub(in crate::pool::physical) fn stuck(
        handle: Handle,
        offset: u64,
        address: u64,
        size: u64,
        node: NodeId,
    ) -> Leaving {
        Leaving::new(size, Memory::Stuck(handle, offset, address, node), Then::Cache)
    }

    /// Bytes that the pool will not hold any more.
    fn goes(&self) -> u64 {
        match self.then {
            Then::Release => self.size,
            Then::Cache => 0,
        }
    }

    /// Makes the driver calls. The pool's lock is not held; a context of the device is current.
    pub fn go(leaving: &mut [Leaving], calls: &DriverCalls) {
        leaving.iter_mut().for_each(|memory| memory.leave(calls));
        // A reservation stays while anything is mapped in it.
        let mapped = leaving.iter().filter_map(|memory| match &memory.memory {
            Memory::Range(range) => Some(&range.release.mappings),
            _ => None,
        });
        let mapped: Vec<(u64, u64)> = mapped.flatten().copied().collect();
        for memory in leaving {
            if let Memory::Range(range) = &mut memory.memory {
                range.mapped.extend(&mapped);
                if range.release.unreserve(calls, &range.mapped) {
                    memory.state = Stage::Gone;
                }
            }
        }
    }

    fn leave(&mut self, calls: &DriverCalls) {
        let size = self.size;
        match &mut self.memory {
            Memory::Range(range) => range.release.unmap(calls, &mut range.found),
            Memory::Segment(address, ..) => {
                let address = *address;
                self.advance(calls.free(address), Stage::Gone);
            }
            Memory::Handle(_, _, address, _) | Memory::Stuck(_, _, address, _) => {
                let address = *address;
                self.advance(calls.submit(|driver| driver.unmap(address, size)), Stage::Unmapped);
            }
            Memory::Cached(_) => {}
        }
        if self.then == Then::Release
            && let (Memory::Handle(handle, ..), Stage::Unmapped) | (Memory::Cached(handle), _) =
                (&self.memory, self.state)
        {
            let handle = *handle;
            self.advance(calls.submit(|driver| driver.release(handle)), Stage::Gone);
        }
    }

    fn advance(&mut self, outcome: Result<()>, state: Stage) {
        match outcome {
            Ok(()) => self.state = state,
            Err(error) => {
                tracing::warn!(%error, "idle memory could not be given back");
                self.error = Some(error);
            }
        }
    }
}

impl PhysicalMemory {
    /// Takes `candidates` that are still in common free space out of it: as `quota` says, and at most `at_most` of them.
    /// Each one goes back with [`Leaving::go`], and all of them have to come to [`PhysicalMemory::end_leaving`].
    pub fn begin_leaving(
        &mut self,
        free_space: &mut FreeSpace,
        candidates: &mut Candidates,
        quota: Quota,
        at_most: usize,
    ) -> Vec<Leaving> {
        let (mut leaving, mut taken) = (Vec::new(), 0);
        while leaving.len() < at_most
            && let Some(largest) = self.largest(quota, taken)
            && let Some(idle) = candidates.next()
        {
            // Other memory may have been mapped there since, but what lies in the free range is free.
            let Some(mapped) = self.mapped.get(&idle.offset) else {
                candidates.changed = true;
                continue;
            };
            let bytes = mapped.end() - mapped.offset;
            if mapped.size > largest {
                continue;
            }
            let Some(node) = free_space.take_in(idle.range, COMMON, mapped.offset, bytes) else {
                candidates.changed = true;
                continue;
            };
            let memory = self.set_out(idle.offset, node, Then::Release);
            taken += memory.as_ref().map_or(0, Leaving::size);
            leaving.extend(memory);
        }
        leaving
    }

    /// The memory at `offset` leaves. Its used node keeps its place.
    pub(in crate::pool::physical) fn set_out(&mut self, offset: u64, node: NodeId, then: Then) -> Option<Leaving> {
        let base = self.addresses.base().unwrap_or_default();
        let mapped = self.mapped.get_mut(&offset)?;
        mapped.leaves = true;
        let (bytes, Mapped { size, origin, .. }) = (mapped.end() - offset, *mapped);
        let leaving = match origin {
            Origin::Handle(handle) => {
                self.record(Action::SegmentUnmap, offset, size);
                Leaving::new(size, Memory::Handle(handle, offset, base + offset, node), then)
            }
            // The driver may give the addresses to another pool at once, so they leave the books before.
            Origin::Segment(address) => {
                self.record(Action::SegmentFree, offset, bytes);
                self.addresses.remove(offset);
                Leaving::new(size, Memory::Segment(address, offset, node), Then::Release)
            }
            Origin::External | Origin::Stuck(..) => unreachable!("no free range has such memory"),
        };
        self.leaving += 1;
        self.leaving_bytes += leaving.goes();
        Some(leaving)
    }

    /// The size of the largest handle or segment that goes next, after `taken` bytes; none where those are enough.
    fn largest(&self, quota: Quota, taken: u64) -> Option<u64> {
        match quota {
            Quota::AtMost(bytes) => (taken < bytes).then(|| bytes - taken),
            Quota::AtLeast(bytes) => (taken < bytes).then(|| self.releasable(self.floor())),
            Quota::Exchange(bytes) => (taken < bytes).then(|| self.releasable(0)),
        }
    }

    /// Sets `range` apart, where its owner has as many idle bytes ([`FreeSpace::idle`]); otherwise handles and segments
    /// at its end, as far as they are that many. See [`FreeSpace::set_apart`] for `complete`.
    pub fn set_apart(&self, free_space: &mut FreeSpace, range: FreeRange, complete: u64) {
        let mut set_apart = |offset, bytes| {
            let idle = free_space.idle(range.owner);
            if bytes <= idle && free_space.set_apart(range, offset, bytes, complete) {
                free_space.take_idle(range.owner, bytes);
            }
            idle
        };
        let FreeRange { offset, size, .. } = range;
        let idle = set_apart(offset, size);
        if size <= idle || idle < self.page {
            return;
        }
        for mapped in self.mapped.range(offset..offset + size).rev().map(|(_, mapped)| mapped) {
            if mapped.end() <= offset + size && set_apart(mapped.offset, mapped.end() - mapped.offset) < self.page {
                return;
            }
        }
    }

    /// As [`PhysicalMemory::begin_leaving`], for cached handles. Once those are gone, cached ranges are taken apart, oldest
    /// first: their handles become cached ones.
    pub fn begin_leaving_cached(&mut self, quota: Quota, at_most: usize) -> Vec<Leaving> {
        let leaving = self.begin_leaving_handles(quota, at_most);
        if !leaving.is_empty() {
            return leaving;
        }
        match quota {
            Quota::AtMost(bytes) => {
                self.begin_leaving_ranges(bytes.saturating_sub(self.cached_handle_bytes), true, at_most)
            }
            Quota::AtLeast(bytes) | Quota::Exchange(bytes) if self.cached_handles.is_empty() => {
                self.begin_leaving_ranges(bytes, false, at_most)
            }
            Quota::AtLeast(_) | Quota::Exchange(_) => leaving,
        }
    }

    /// As [`PhysicalMemory::begin_leaving`], for cached handles, the largest first.
    pub(in crate::pool::physical) fn begin_leaving_handles(&mut self, quota: Quota, at_most: usize) -> Vec<Leaving> {
        let (mut leaving, mut taken) = (Vec::new(), 0);
        while leaving.len() < at_most
            && let Some(largest) = self.largest(quota, taken)
            && let Some((&size, _)) = self.cached_handles.range(..=largest).next_back()
            && let Some(handle) = self.take_cached(size)
        {
            leaving.push(self.set_out_cached(handle, size));
            taken += size;
        }
        leaving
    }

    /// As [`PhysicalMemory::begin_leaving`], for these of the cached handles.
    pub(in crate::pool::physical) fn begin_discarding(&mut self, handles: &[(Handle, u64)]) -> Vec<Leaving> {
        let cached = handles.iter().filter_map(|(handle, size)| {
            let handle = self.take_cached_handle(*handle, *size)?;
            Some(self.set_out_cached(handle, *size))
        });
        cached.collect()
    }

    fn set_out_cached(&mut self, handle: Handle, size: u64) -> Leaving {
        self.leaving += 1;
        self.leaving_bytes += size;
        Leaving::new(size, Memory::Cached(handle), Then::Release)
    }

    /// Takes the oldest cached ranges, `at_most` at most, until those are `bytes` bytes; with `fits`, no more than that. Their
    /// handles are cached once they are unmapped.
    pub fn begin_leaving_ranges(&mut self, bytes: u64, fits: bool, at_most: usize) -> Vec<Leaving> {
        let (mut releases, mut left) = (Vec::new(), bytes);
        while releases.len() < at_most
            && left > 0
            && let Some(committed) = self.cached_ranges.front().map(DedicatedMemory::committed)
            && (!fits || committed <= left)
            && let Some(block) = self.uncache(0)
        {
            left = left.saturating_sub(committed);
            releases.push(block.into_release());
        }
        self.begin_releases(releases)
    }

    /// Takes what dedicated allocations had.
    pub(in crate::pool::physical) fn begin_releases(&mut self, releases: Vec<DeferredRelease>) -> Vec<Leaving> {
        self.leaving += releases.len();
        let mapped: Vec<(u64, u64)> = self.still_mapped().collect();
        let leaving = releases.into_iter().map(|release| {
            let range = Range {
                mappings: release.mappings.clone(),
                release,
                mapped: mapped.clone(),
                found: Recovered::default(),
            };
            Leaving::new(0, Memory::Range(Box::new(range)), Then::Cache)
        });
        leaving.collect()
    }

    /// Notes what became of memory that left. What the driver did not take back is common free space again, or a cached
    /// handle: all work that used it has completed.
    pub fn end_leaving(&mut self, free_space: &mut FreeSpace, leaving: Vec<Leaving>) -> Left {
        let mut left = Left::default();
        self.batches += 1;
        // Everything was forgotten meanwhile.
        if self.leaving == 0 {
            return left;
        }
        self.leaving -= leaving.len();
        for leaving in leaving {
            self.leaving_bytes -= leaving.goes();
            left.error = left.error.or(leaving.error);
            self.end_one(free_space, leaving, &mut left);
        }
        self.reserved = self.reserved.saturating_sub(left.gone);
        left
    }

    fn end_one(&mut self, free_space: &mut FreeSpace, leaving: Leaving, left: &mut Left) {
        let size = leaving.size;
        match (leaving.memory, leaving.state) {
            (Memory::Range(range), state) => {
                let Range {
                    release,
                    mappings,
                    found,
                    ..
                } = *range;
                self.retrying.retain(|mapping| !mappings.contains(mapping));
                for (address, bytes) in found.freed {
                    left.gone += self.granules.give(address, bytes);
                }
                for (handle, size) in found.handles {
                    self.keep(handle, size);
                    left.cached.push((handle, size));
                }
                if state != Stage::Gone {
                    self.deferred.push(release);
                }
            }
            (Memory::Handle(_, offset, _, node), Stage::Held) => {
                self.record(Action::SegmentMap, offset, size);
                self.stay(free_space, offset, node);
            }
            (Memory::Segment(address, offset, node), Stage::Held | Stage::Unmapped) => {
                let bytes = free_space.span(node).1;
                self.addresses.add(address.next_multiple_of(512), bytes, offset);
                self.record(Action::SegmentAlloc, offset, bytes);
                self.stay(free_space, offset, node);
            }
            (Memory::Handle(_, offset, _, node) | Memory::Segment(_, offset, node), Stage::Gone) => {
                self.mapped.remove(&offset);
                free_space.vacate(node);
                left.gone += size;
            }
            (Memory::Handle(handle, offset, _, node), Stage::Unmapped) => {
                self.mapped.remove(&offset);
                free_space.vacate(node);
                self.keep(handle, size);
                left.cached.push((handle, size));
            }
            (Memory::Stuck(_, offset, ..), Stage::Held | Stage::Gone) => {
                if let Some(mapped) = self.mapped.get_mut(&offset) {
                    mapped.leaves = false;
                }
            }
            (Memory::Stuck(handle, offset, _, node), Stage::Unmapped) => {
                self.mapped.remove(&offset);
                self.stuck -= 1;
                free_space.restore(node);
                self.keep(handle, size);
                left.cached.push((handle, size));
            }
            (Memory::Cached(_), Stage::Gone) => left.gone += size,
            (Memory::Cached(handle), Stage::Held | Stage::Unmapped) => self.keep(handle, size),
        }
    }

    fn stay(&mut self, free_space: &mut FreeSpace, offset: u64, node: NodeId) {
        if let Some(mapped) = self.mapped.get_mut(&offset) {
            mapped.leaves = false;
        }
        free_space.give(node, COMMON, 0);
    }

    /// Whether memory is on its way back to the driver, or to another place.
    pub fn is_leaving(&self) -> bool {
        self.leaving > 0
    }

    /// How many batches of memory that left have come to their end.
    pub fn ended_batches(&self) -> u64 {
        self.batches
    }

    /// Ends a window of time for what is cached.
    pub fn end_window(&mut self) {
        let cached = self.cached_bytes() + self.cached_range_bytes();
        self.idle_cached.end_window(cached);
    }

    /// Bytes that were cached throughout the last windows.
    pub fn idle_cached(&self) -> u64 {
        self.idle_cached
            .idle()
            .min(self.cached_bytes() + self.cached_range_bytes())
    }

    /// So many bytes were cached just now that were idle elsewhere.
    pub fn add_idle_cached(&mut self, bytes: u64) {
        self.idle_cached.add(bytes);
    }

    /// So many of the idle cached bytes go back.
    pub fn take_idle_cached(&mut self, bytes: u64) {
        self.idle_cached.take(bytes);
    }

    /// Something was taken from what is cached.
    pub(in crate::pool::physical) fn note_cached(&mut self) {
        let cached = self.cached_bytes() + self.cached_range_bytes();
        self.idle_cached.note(cached);
    }
}
