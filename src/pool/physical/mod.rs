//! The memory behind the pool's address range: handles mapped into a reservation, or segments of the driver's malloc.
//!
//! A handle is the unit of mapping: CUDA maps it whole, unmaps it whole and gives access to whole mappings. Each handle
//! for a request is at most a sixteenth of its size and a 64th of what is reserved, between one granule, usually 2 MiB,
//! and 256 MiB. A method that fails leaves everything as it was, with two exceptions: memory that it could not put back
//! is cached for later, and what it returned in exchange for other handles stays with the driver.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::driver::{Failure, Handle, HandleKind, Result};
use crate::history::{Action, Event, Recorder};
use crate::pool::driver_calls::Calls;
use crate::pool::free_space::{COMMON, Heap, NodeId, Owner, Place};
use crate::pool::physical::address_space::Space;
use crate::pool::physical::dedicated_memory::Standalone;
use crate::pool::physical::deferred_release::{Found, Lost};

pub mod address_space;
mod cached_ranges;
pub mod dedicated_memory;
pub mod deferred_release;
mod grow;
pub mod index;
mod release;
mod segments;

/// The largest handle, in bytes and as a part of what is reserved. A block that takes a part of a handle keeps the rest
/// from being moved or returned.
const LARGEST: u64 = 256 << 20;
const PART: u64 = 64;
/// The most bytes that a segment has beyond its request.
const MOST_AHEAD: u64 = 32 << 20;

/// Memory in the address range that is mapped and unmapped as one.
#[derive(Debug, Clone, Copy)]
struct Mapped {
    offset: u64,
    size: u64,
    memory: Memory,
}

#[derive(Debug, Clone, Copy)]
enum Memory {
    Handle(Handle),
    Segment(u64),
    /// External memory, which is never returned.
    Caller,
    /// A handle that could not be unmapped. Its node in the free-space bookkeeping keeps other memory from being mapped
    /// there.
    Stuck(Handle, NodeId),
}

/// A mapped handle or segment that is complete for every caller, that is, all of it is common free space: its free
/// range, and where it lies.
#[derive(Debug, Clone, Copy)]
struct Idle {
    range: NodeId,
    offset: u64,
    size: u64,
}

/// Where memory for a place may come from.
#[derive(Debug, Clone, Copy)]
pub struct Sources {
    /// Whether to move handles that are complete for every caller.
    pub remap: bool,
    /// The most bytes of new memory.
    pub create: u64,
    /// Whether to return handles that are complete for every caller and do not fit, and to create others for them.
    pub exchange: bool,
}

/// The result of a growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grown {
    /// The sources did not suffice.
    Short,
    /// A free range is large enough now.
    Somewhere,
    /// The request fits at this offset, in that owner's free space.
    At(u64, Owner),
}

/// The memory of one pool.
pub struct Mapping {
    calls: Arc<Calls>,
    space: Arc<Space>,
    device: i32,
    kind: HandleKind,
    access: Vec<i32>,
    /// The size of the smallest handle in bytes.
    pub page: u64,
    /// By offset.
    mapped: BTreeMap<u64, Mapped>,
    /// Cached handles, which have no address, by size.
    kept: BTreeMap<u64, Vec<Handle>>,
    kept_bytes: u64,
    /// Cached ranges: freed resizable blocks that stay mapped, oldest first.
    parked: Vec<Standalone>,
    reserved: u64,
    /// What the driver refused to take back, outside the pool's address range.
    lost: Vec<Lost>,
    /// How many handles could not be unmapped.
    stuck: usize,
    /// Handles moved so far.
    pub remaps: u64,
    recorder: Arc<Recorder>,
}

impl Mapping {
    /// A mapping without memory. `page` is the granularity; `access` names the devices that may access the memory.
    pub fn new(
        calls: Arc<Calls>,
        space: Arc<Space>,
        device: i32,
        page: u64,
        kind: HandleKind,
        access: Vec<i32>,
        recorder: Arc<Recorder>,
    ) -> Mapping {
        Mapping {
            calls,
            space,
            device,
            kind,
            access,
            page,
            mapped: BTreeMap::new(),
            kept: BTreeMap::new(),
            kept_bytes: 0,
            parked: Vec::new(),
            reserved: 0,
            lost: Vec::new(),
            stuck: 0,
            remaps: 0,
            recorder,
        }
    }

    /// Bytes of physical memory held.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Bytes held that have no address.
    pub fn kept(&self) -> u64 {
        self.kept_bytes
    }

    /// The offsets and sizes of the handles that a range overlaps.
    #[cfg(test)]
    pub fn handles_in(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
        let touched = move |of: &&Mapped| of.offset < to && of.offset + of.size > from;
        self.mapped.values().filter(touched).map(|of| (of.offset, of.size))
    }

    /// Bytes mapped into the pool's address range.
    pub fn mapped(&self) -> u64 {
        self.mapped.values().map(|mapped| mapped.size).sum()
    }

    fn virtual_memory(&self) -> bool {
        self.space.base().is_some()
    }

    /// Takes external memory into the pool's address range.
    pub fn adopt(&mut self, heap: &mut Heap, address: u64, offset: u64, size: u64) {
        self.space.add(address, size, offset);
        self.mapped.insert(
            offset,
            Mapped {
                offset,
                size,
                memory: Memory::Caller,
            },
        );
        self.reserved += size;
        self.tell(Action::SegmentAlloc, offset, size);
        heap.open(offset, size, COMMON, 0);
    }

    fn take_kept(&mut self, size: u64) -> Option<Handle> {
        let handles = self.kept.get_mut(&size)?;
        let handle = handles.pop()?;
        if handles.is_empty() {
            self.kept.remove(&size);
        }
        self.kept_bytes -= size;
        Some(handle)
    }

    fn keep(&mut self, handle: Handle, size: u64) {
        self.kept.entry(size).or_default().push(handle);
        self.kept_bytes += size;
    }

    /// Unmaps a handle that is complete for every caller; its range becomes a hole.
    fn detach(&mut self, heap: &mut Heap, idle: Idle) -> Result<Handle> {
        let Some(Mapped {
            memory: Memory::Handle(handle),
            ..
        }) = self.mapped.get(&idle.offset).copied()
        else {
            return Err(crate::pool::driver_calls::refused("unmap", Failure::Other));
        };
        let address = self.space.base().unwrap_or_default() + idle.offset;
        self.calls.submit(|driver| driver.unmap(address, idle.size))?;
        heap.close(idle.range, idle.offset, idle.size);
        self.mapped.remove(&idle.offset);
        self.tell(Action::SegmentUnmap, idle.offset, idle.size);
        Ok(handle)
    }

    /// The size of the largest cached handle of at most `most` bytes.
    pub fn largest_kept(&self, most: u64) -> Option<u64> {
        self.kept.range(..=most).next_back().map(|(size, _)| *size)
    }

    /// A handle of exactly `size` bytes: a cached one, or a new one where `create` bytes allow it.
    pub fn handle(&mut self, size: u64, create: u64) -> Result<Option<Handle>> {
        if let Some(handle) = self.take_kept(size) {
            return Ok(Some(handle));
        }
        if size > create {
            return Ok(None);
        }
        let handle = self
            .calls
            .submit(|driver| driver.create(self.device, size, self.kind))?;
        self.reserved += size;
        Ok(Some(handle))
    }

    /// Counts memory of a dedicated allocation as reserved, or with `false` no longer.
    pub fn account(&mut self, bytes: u64, obtained: bool) {
        if obtained {
            self.reserved += bytes
        } else {
            self.reserved -= bytes
        }
    }

    /// The devices that may access mapped memory.
    pub fn access(&self) -> &[i32] {
        &self.access
    }

    /// Records that a range of the pool got memory, or lost it.
    fn tell(&self, action: Action, offset: u64, size: u64) {
        if self.recorder.is_on()
            && let Some(address) = self.space.address(offset)
        {
            self.recorder.happened(Event::new(action, self.device, address, size));
        }
    }

    /// The contiguous ranges that memory backs, by offset: start, bytes, and whether they are mapped. Memory that the
    /// driver refused to unmap has no owner, and is left out.
    pub fn ranges(&self) -> Vec<(u64, u64, bool)> {
        let mut ranges: Vec<(u64, u64, bool)> = Vec::new();
        for mapped in self.mapped.values() {
            let expandable = match mapped.memory {
                Memory::Stuck(..) => continue,
                Memory::Handle(_) => true,
                Memory::Segment(_) | Memory::Caller => false,
            };
            let size = mapped.end() - mapped.offset;
            match ranges.last_mut() {
                Some((start, bytes, true)) if expandable && *start + *bytes == mapped.offset => *bytes += size,
                _ => ranges.push((mapped.offset, size, expandable)),
            }
        }
        ranges
    }

    /// Whether the pool has no memory mapped or cached that it obtained itself.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
            && self.parked.is_empty()
            && self.lost.is_empty()
            && self
                .mapped
                .values()
                .all(|mapped| matches!(mapped.memory, Memory::Caller))
    }

    /// Forgets everything without a driver call, because the context is gone or the process ends.
    pub fn forget(&mut self) {
        self.mapped.clear();
        self.kept.clear();
        self.parked.clear();
        self.lost.clear();
        self.stuck = 0;
        (self.kept_bytes, self.reserved) = (0, 0);
    }
}

impl Idle {
    /// Whether a part of it lies in the `size` bytes at `start`.
    fn overlaps(&self, start: u64, size: u64) -> bool {
        self.offset < start + size && start < self.offset + self.size
    }
}

impl Mapped {
    /// Where its part in the free-space bookkeeping ends.
    fn end(&self) -> u64 {
        match self.memory {
            // Where the address was not a multiple of 512, the bookkeeping has less of it.
            Memory::Segment(address) => {
                self.offset + (self.size - (address.next_multiple_of(512) - address)) / 512 * 512
            }
            _ => self.offset + self.size,
        }
    }
}
