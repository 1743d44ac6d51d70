//! How memory returns to the driver, and what the driver refused to take back.

use super::*;

impl PhysicalMemory {
    /// Returns cached handles, and then cached blocks, to the driver until at most `keep` bytes are reserved, or what is
    /// left would be less than the reserve; returns the bytes.
    pub fn release_cached(&mut self, keep: u64) -> u64 {
        self.release_cached_above(self.floor(), keep)
    }

    /// As [`PhysicalMemory::release_cached`], for memory that is created in exchange: the reserve is no floor. What went
    /// back beyond `keep` bytes is created anew as far as the reserve needs it.
    pub fn exchange_cached(&mut self, keep: u64) -> u64 {
        let before = self.reserved;
        self.release_cached_above(0, keep);
        self.refill(keep);
        before - self.reserved
    }

    fn release_cached_above(&mut self, floor: u64, keep: u64) -> u64 {
        let (keep, mut released) = (keep.max(floor), 0);
        while self.reserved > keep {
            let bytes = self.release_cached_handles_above(floor, self.reserved - keep);
            released += bytes;
            if bytes == 0 && !(self.cached_handles.is_empty() && self.destroy_cached_range()) {
                break;
            }
        }
        released
    }

    /// Returns cached handles to the driver for new ones, the largest first, until at least `bytes` bytes have gone;
    /// returns the bytes.
    pub fn exchange_cached_handles(&mut self, bytes: u64) -> u64 {
        let before = self.reserved;
        self.release_cached_handles_above(0, bytes);
        self.refill(before.saturating_sub(bytes));
        before - self.reserved
    }

    fn release_cached_handles_above(&mut self, floor: u64, bytes: u64) -> u64 {
        let mut released = 0;
        while released < bytes {
            let most = self.releasable(floor);
            let Some((&size, _)) = self.cached_handles.range(..=most).next_back() else {
                break;
            };
            let Some(handle) = self.take_cached(size) else { break };
            if !self.release_handle(handle, size) {
                break;
            }
            released += size;
        }
        released
    }

    /// Returns a handle that has no address to the driver, or caches it where the driver refuses it.
    fn release_handle(&mut self, handle: Handle, size: u64) -> bool {
        let released = self.calls.submit(|driver| driver.release(handle)).is_ok();
        match released {
            true => self.reserved -= size,
            false => self.keep(handle, size),
        }
        released
    }

    /// Returns this handle to the driver, if it is cached.
    pub(in crate::pool::physical) fn discard(&mut self, handle: Handle, size: u64) {
        let cached = self.cached_handles.get_mut(&size);
        let at = cached.and_then(|handles| {
            let at = handles.iter().rposition(|cached| *cached == handle)?;
            let last = handles.len() - 1;
            handles.swap(at, last);
            Some(last)
        });
        if at.is_some()
            && let Some(handle) = self.take_cached(size)
        {
            self.release_handle(handle, size);
        }
    }

    /// Returns memory that is complete for every caller to the driver until at most `keep` bytes are reserved, for
    /// memory that is created in exchange: the reserve is no floor. Cached handles go first, then scattered memory.
    /// Returns the bytes.
    pub fn exchange_for_new(&mut self, free_space: &mut FreeSpace, keep: u64) -> u64 {
        self.release_above(0, free_space, keep)
    }

    fn release_above(&mut self, floor: u64, free_space: &mut FreeSpace, keep: u64) -> u64 {
        let keep = keep.max(floor);
        let released = self.release_cached_above(floor, keep);
        let pieces = self.scattered(free_space);
        released + self.release_pieces(floor, free_space, pieces, keep)
    }

    fn release_pieces(&mut self, floor: u64, free_space: &mut FreeSpace, pieces: Vec<Idle>, keep: u64) -> u64 {
        let keep = keep.max(floor);
        let mut released = 0;
        for piece in pieces {
            if self.reserved <= keep {
                break;
            }
            if piece.size > self.releasable(floor) {
                continue;
            }
            match self.release_idle(free_space, piece) {
                Ok(bytes) => released += bytes,
                Err(error) => tracing::warn!(%error, "memory could not be given back"),
            }
        }
        released
    }

    /// Unmaps handles that are complete for every caller and caches them, until that are `bytes` bytes. Segments go
    /// back to the driver. Returns the bytes.
    pub fn cache_idle(&mut self, free_space: &mut FreeSpace, bytes: u64) -> u64 {
        let mut freed = 0;
        for piece in self.scattered(free_space) {
            if freed >= bytes {
                break;
            }
            let outcome = match self.mapped.get(&piece.offset).map(|mapped| mapped.origin) {
                Some(Origin::Handle(_)) => self.cache_handle(free_space, piece),
                _ => self.release_idle(free_space, piece),
            };
            match outcome {
                Ok(bytes) => freed += bytes,
                Err(error) => tracing::warn!(%error, "memory could not be given back"),
            }
        }
        freed
    }

    /// The free range that the memory at `idle` lies in. A larger neighbour may have split the range
    /// since its number was taken.
    fn range_of(free_space: &FreeSpace, idle: Idle, end: u64) -> Option<Idle> {
        if free_space.holds(idle.range, idle.owner, idle.offset, end - idle.offset) {
            return Some(idle);
        }
        let range = free_space
            .ranges(idle.owner)
            .find(|(_, from, size)| *from <= idle.offset && end <= from + size);
        range.map(|(range, ..)| Idle { range, ..idle })
    }

    /// Unmaps a handle that is complete for every caller, and caches it. Returns the bytes.
    fn cache_handle(&mut self, free_space: &mut FreeSpace, idle: Idle) -> Result<u64> {
        let Some(idle) = Self::range_of(free_space, idle, idle.offset + idle.size) else {
            return Ok(0);
        };
        let handle = self.detach(free_space, idle)?;
        self.keep(handle, idle.size);
        Ok(idle.size)
    }

    pub(in crate::pool::physical) fn release_idle(&mut self, free_space: &mut FreeSpace, idle: Idle) -> Result<u64> {
        let Some(mapped) = self.mapped.get(&idle.offset).copied() else {
            return Ok(0);
        };
        let Some(idle) = Self::range_of(free_space, idle, mapped.end()) else {
            return Ok(0);
        };
        match mapped.origin {
            Origin::Handle(_) => {
                let handle = self.detach(free_space, idle)?;
                self.keep(handle, idle.size);
                if let Some(handle) = self.take_cached(idle.size)
                    && let Err(error) = self.calls.submit(|driver| driver.release(handle))
                {
                    self.keep(handle, idle.size);
                    return Err(error);
                }
                self.reserved -= idle.size;
                Ok(idle.size)
            }
            Origin::Segment(address) => {
                let bytes = mapped.end() - mapped.offset;
                // This comes before the call, because the driver may give the addresses to another pool at once.
                self.record(Action::SegmentFree, mapped.offset, bytes);
                self.addresses.remove(mapped.offset);
                if let Err(error) = self.calls.free(address) {
                    self.addresses.add(address.next_multiple_of(512), bytes, mapped.offset);
                    self.record(Action::SegmentAlloc, mapped.offset, bytes);
                    return Err(error);
                }
                free_space.close(idle.range, mapped.offset, bytes);
                self.mapped.remove(&mapped.offset);
                self.reserved -= mapped.size;
                Ok(mapped.size)
            }
            Origin::External | Origin::Stuck(..) => Ok(0),
        }
    }

    /// Returns what nothing uses any more to the driver. What the driver refuses stays in the books.
    pub fn release_or_defer(&mut self, mut deferred: DeferredRelease) {
        let mut found = Recovered::default();
        deferred.unmap(&self.calls, &mut found);
        let mapped: Vec<(u64, u64)> = self.still_mapped().chain(deferred.mappings.iter().copied()).collect();
        if !deferred.unreserve(&self.calls, &mapped) {
            self.deferred.push(deferred);
        }
        self.recover(found);
    }

    /// What the driver refused to unmap, outside the pool's address range.
    pub(in crate::pool::physical) fn still_mapped(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.deferred.iter().flat_map(|deferred| &deferred.mappings).copied()
    }

    /// Retries what the driver refused to take back.
    pub fn retry(&mut self, free_space: &mut FreeSpace) {
        let mut found = Recovered::default();
        for deferred in &mut self.deferred {
            deferred.unmap(&self.calls, &mut found);
        }
        let mapped: Vec<(u64, u64)> = self.still_mapped().collect();
        self.deferred
            .retain_mut(|deferred| !deferred.unreserve(&self.calls, &mapped));
        self.recover(found);
        let base = self.addresses.base().unwrap_or_default();
        let stuck: Vec<(Mapped, Handle, NodeId)> = self
            .mapped
            .values()
            .filter_map(|mapped| match mapped.origin {
                Origin::Stuck(handle, node) => Some((*mapped, handle, node)),
                _ => None,
            })
            .collect();
        for (Mapped { offset, size, .. }, handle, node) in stuck {
            if self.calls.submit(|driver| driver.unmap(base + offset, size)).is_ok() {
                free_space.restore(node);
                self.mapped.remove(&offset);
                self.keep(handle, size);
                self.stuck -= 1;
            }
        }
    }

    fn recover(&mut self, found: Recovered) {
        for (address, bytes) in found.freed {
            self.reserved -= self.granules.give(address, bytes);
        }
        for (handle, size) in found.handles {
            self.keep(handle, size);
        }
    }

    /// Whether something waits for a retry.
    pub fn has_deferred(&self) -> bool {
        self.stuck > 0 || !self.deferred.is_empty()
    }
}
