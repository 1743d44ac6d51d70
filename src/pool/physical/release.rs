//! How memory returns to the driver, and what the driver refused to take back.

use std::cmp::Reverse;

use super::*;

impl PhysicalMemory {
    /// Returns cached handles, and then cached blocks, to the driver until at most `keep` bytes are reserved; returns
    /// the bytes.
    pub fn release_cached(&mut self, keep: u64) -> u64 {
        let mut released = 0;
        while self.reserved > keep {
            let Some((&size, _)) = self.cached_handles.last_key_value() else {
                if self.destroy_cached_range() {
                    continue;
                }
                break;
            };
            let Some(handle) = self.take_cached(size) else { break };
            match self.calls.submit(|driver| driver.release(handle)) {
                Ok(()) => {
                    self.reserved -= size;
                    released += size;
                }
                Err(_) => {
                    self.keep(handle, size);
                    break;
                }
            }
        }
        released
    }

    /// Returns memory that is complete for every caller to the driver until at most `keep` bytes are reserved: cached
    /// handles first, then scattered memory. Returns the bytes.
    pub fn release(&mut self, free_space: &mut FreeSpace, keep: u64) -> u64 {
        let mut released = self.release_cached(keep);
        let mut idle: Vec<(u64, Idle)> = Vec::new();
        for (range, offset, bytes) in free_space.ranges(COMMON) {
            for mapped in self
                .mapped
                .range(offset.saturating_sub(512)..offset + bytes)
                .map(|(_, mapped)| mapped)
            {
                let inside = mapped.offset >= offset && mapped.end() <= offset + bytes;
                if inside && !matches!(mapped.origin, Origin::External) {
                    let piece = Idle {
                        range,
                        owner: COMMON,
                        offset: mapped.offset,
                        size: mapped.size,
                    };
                    idle.push((bytes, piece));
                }
            }
        }
        // The smallest ranges go first, so that what stays is contiguous. Within a range the last piece goes first, so
        // that what lies before keeps its number.
        idle.sort_by_key(|(bytes, idle)| (*bytes, idle.range, Reverse(idle.offset)));
        for (_, piece) in idle {
            if self.reserved <= keep {
                break;
            }
            match self.release_idle(free_space, piece) {
                Ok(bytes) => released += bytes,
                Err(error) => tracing::warn!(%error, "memory could not be given back"),
            }
        }
        released
    }

    pub(in crate::pool::physical) fn release_idle(&mut self, free_space: &mut FreeSpace, idle: Idle) -> Result<u64> {
        let Some(mapped) = self.mapped.get(&idle.offset).copied() else {
            return Ok(0);
        };
        // A larger neighbour may have split this range since, so its number is looked up again.
        let range = free_space
            .ranges(idle.owner)
            .find(|(_, from, size)| *from <= idle.offset && mapped.end() <= from + size);
        let Some((range, ..)) = range else { return Ok(0) };
        match mapped.origin {
            Origin::Handle(_) => {
                let handle = self.detach(free_space, Idle { range, ..idle })?;
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
                free_space.close(range, mapped.offset, bytes);
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
        if !deferred.retry(&self.calls, &mut found) {
            self.deferred.push(deferred);
        }
        self.recover(found);
    }

    /// Retries what the driver refused to take back.
    pub fn retry(&mut self, free_space: &mut FreeSpace) {
        let mut found = Recovered::default();
        self.deferred
            .retain_mut(|deferred| !deferred.retry(&self.calls, &mut found));
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
        self.reserved -= found.freed;
        for (handle, size) in found.handles {
            self.keep(handle, size);
        }
    }

    /// Whether something waits for a retry.
    pub fn has_deferred(&self) -> bool {
        self.stuck > 0 || !self.deferred.is_empty()
    }
}
