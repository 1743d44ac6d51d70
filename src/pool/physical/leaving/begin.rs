//! What goes back is chosen, and taken out of the free space.

use super::*;
use crate::pool::free_space::FreeRange;

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
}
