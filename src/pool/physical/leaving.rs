//! Memory that goes back to the driver while other threads may have the pool's lock.
//!
//! To unmap a handle takes tens of microseconds, and it may wait for work. So idle memory is taken out of the free space
//! under the lock, goes back without it, and leaves the books under the lock again. Meanwhile it counts as reserved, and
//! nothing is mapped at its place.

use super::*;
use crate::support::sort;

/// One handle or segment on its way back to the driver.
pub struct Leaving {
    size: u64,
    memory: Memory,
    /// How far it has come.
    state: State,
}

enum Memory {
    /// Mapped at this offset and address. The used node keeps its place.
    Handle(Handle, u64, u64, NodeId),
    /// A handle without an address.
    Cached(Handle),
    /// The driver's allocation at this address, at that offset. The used node keeps its place.
    Segment(u64, u64, NodeId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Held,
    Unmapped,
    Gone,
}

impl Leaving {
    /// Bytes of physical memory.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Makes the driver calls. The pool's lock need not be held; a context of the device is current.
    pub fn go(&mut self, calls: &DriverCalls) {
        if let Memory::Segment(address, ..) = self.memory {
            self.advance(calls.free(address), State::Gone);
            return;
        }
        if let Memory::Handle(_, _, address, _) = self.memory {
            self.advance(calls.submit(|driver| driver.unmap(address, self.size)), State::Unmapped);
            if self.state == State::Held {
                return;
            }
        }
        if let Memory::Handle(handle, ..) | Memory::Cached(handle) = self.memory {
            self.advance(calls.submit(|driver| driver.release(handle)), State::Gone);
        }
    }

    fn advance(&mut self, outcome: Result<()>, state: State) {
        match outcome {
            Ok(()) => self.state = state,
            Err(error) => tracing::warn!(%error, "idle memory could not be given back"),
        }
    }
}

impl PhysicalMemory {
    /// Takes handles and segments that are complete for every caller out of common free space: at most `bytes` bytes, and
    /// `most` of them. Each one goes back with [`Leaving::go`], and all of them have to come to
    /// [`PhysicalMemory::end_leaving`].
    pub fn begin_leaving(&mut self, free_space: &mut FreeSpace, bytes: u64, most: usize) -> Vec<Leaving> {
        let (mut leaving, mut left) = (Vec::new(), bytes);
        let base = self.addresses.base().unwrap_or_default();
        for idle in self.scattered(free_space) {
            let Some(mapped) = self.mapped.get_mut(&idle.offset).filter(|_| leaving.len() < most) else {
                break;
            };
            let bytes = mapped.end() - mapped.offset;
            if bytes > left {
                continue;
            }
            let Some(node) = free_space.take_at(COMMON, mapped.offset, bytes) else {
                continue;
            };
            mapped.leaves = true;
            let Mapped {
                offset, size, origin, ..
            } = *mapped;
            let memory = match origin {
                Origin::Handle(handle) => {
                    self.record(Action::SegmentUnmap, offset, size);
                    Memory::Handle(handle, offset, base + offset, node)
                }
                // The driver may give the addresses to another pool at once, so they leave the books before.
                Origin::Segment(address) => {
                    self.record(Action::SegmentFree, offset, bytes);
                    self.addresses.remove(offset);
                    Memory::Segment(address, offset, node)
                }
                Origin::External | Origin::Stuck(..) => unreachable!("no free range has such memory"),
            };
            leaving.push(Leaving {
                size,
                memory,
                state: State::Held,
            });
            left -= bytes;
        }
        self.leaving += leaving.len();
        leaving
    }

    /// Sets at most `bytes` bytes of `owner`'s free space apart: its smallest ranges as a whole, and handles and segments at
    /// the ends of the others. Returns the bytes.
    pub fn set_apart(&self, free_space: &mut FreeSpace, owner: Owner, bytes: u64) -> u64 {
        let mut ranges: Vec<(u64, u64)> = free_space.own_ranges(owner).collect();
        sort::by_key(&mut ranges, |(_, size)| (*size, 0));
        let mut left = bytes;
        for (start, size) in ranges {
            if size <= left {
                left -= if free_space.set_apart(owner, start, size) {
                    size
                } else {
                    0
                };
                continue;
            }
            for mapped in self.mapped.range(start..start + size).rev().map(|(_, mapped)| mapped) {
                let (end, bytes) = (mapped.end(), mapped.end() - mapped.offset);
                if end <= start + size && bytes <= left && free_space.set_apart(owner, mapped.offset, bytes) {
                    left -= bytes;
                }
            }
        }
        bytes - left
    }

    /// As [`PhysicalMemory::begin_leaving`], for cached handles. Cached ranges are taken apart first, oldest first.
    pub fn begin_leaving_cached(&mut self, bytes: u64, most: usize) -> Vec<Leaving> {
        let oldest = |ranges: &[DedicatedMemory]| ranges.first().map_or(u64::MAX, DedicatedMemory::committed);
        while oldest(&self.cached_ranges) <= bytes.saturating_sub(self.cached_handle_bytes) {
            self.destroy_cached_range();
        }
        let (mut leaving, mut left) = (Vec::new(), bytes);
        while leaving.len() < most
            && let Some((&size, _)) = self.cached_handles.range(..=left).next_back()
            && let Some(handle) = self.take_cached(size)
        {
            leaving.push(Leaving {
                size,
                memory: Memory::Cached(handle),
                state: State::Held,
            });
            left -= size;
        }
        self.leaving += leaving.len();
        leaving
    }

    /// Notes what became of memory that was to go back. What the driver did not take back is common free space again, or
    /// a cached handle. Returns the bytes that went.
    pub fn end_leaving(&mut self, free_space: &mut FreeSpace, leaving: Vec<Leaving>) -> u64 {
        // Everything was forgotten meanwhile.
        if self.leaving == 0 {
            return 0;
        }
        self.leaving -= leaving.len();
        let mut gone = 0;
        for Leaving { size, memory, state } in leaving {
            match (memory, state) {
                (Memory::Handle(_, offset, _, node), State::Held) => {
                    self.record(Action::SegmentMap, offset, size);
                    self.stay(free_space, offset, node);
                }
                (Memory::Segment(address, offset, node), State::Held | State::Unmapped) => {
                    let bytes = free_space.span(node).1;
                    self.addresses.add(address.next_multiple_of(512), bytes, offset);
                    self.record(Action::SegmentAlloc, offset, bytes);
                    self.stay(free_space, offset, node);
                }
                (Memory::Handle(_, offset, _, node) | Memory::Segment(_, offset, node), State::Gone) => {
                    self.mapped.remove(&offset);
                    free_space.vacate(node);
                    gone += size;
                }
                (Memory::Handle(handle, offset, _, node), State::Unmapped) => {
                    self.mapped.remove(&offset);
                    free_space.vacate(node);
                    self.keep(handle, size);
                }
                (Memory::Cached(_), State::Gone) => gone += size,
                (Memory::Cached(handle), State::Held | State::Unmapped) => self.keep(handle, size),
            }
        }
        self.reserved -= gone;
        gone
    }

    fn stay(&mut self, free_space: &mut FreeSpace, offset: u64, node: NodeId) {
        if let Some(mapped) = self.mapped.get_mut(&offset) {
            mapped.leaves = false;
        }
        free_space.give(node, COMMON, 0);
    }

    /// Whether memory is on its way back to the driver.
    pub fn is_leaving(&self) -> bool {
        self.leaving > 0
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
