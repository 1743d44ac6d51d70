//! Which memory backs the window: handles mapped into a reservation, or segments of the driver's malloc.
//!
//! A handle is the unit of mapping: CUDA maps it whole, unmaps it whole and gives access to whole mappings. Room for a
//! request is made of handles of a sixteenth of its size at most, and a 64th of what is reserved, between one granule, usually
//! 2 MiB, and 256 MiB. Every method leaves things as they were when it fails, except that memory it could not put back is kept for
//! later, and that what was given back for other handles stays with the driver.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::calls::Calls;
use super::heap::{COMMON, Heap, NodeId, Owner, Place};
use super::lost::{Found, Lost};
use super::space::Space;
use super::standalone::Standalone;
use crate::driver::{Failure, Handle, HandleKind, Result};
use crate::record::{Action, Event, Recorder};

mod grow;
mod parked;
mod release;
mod segments;

/// The largest handle that room is made of, and the part of what is reserved that it may be: a block that takes a part of a
/// handle keeps the rest of it from being moved or given back.
const LARGEST: u64 = 256 << 20;
const PART: u64 = 64;
/// What a segment holds beyond its request at most.
const MOST_AHEAD: u64 = 32 << 20;

/// Memory in the window that comes and goes as one.
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
    /// The caller's: never given back.
    Caller,
    /// A handle that could not be unmapped, at a place nothing else is mapped over: in that node of the heap.
    Stuck(Handle, NodeId),
}

/// A mapped handle or segment that is complete for everybody: its range in the heap, and where it lies.
#[derive(Debug, Clone, Copy)]
struct Idle {
    range: NodeId,
    offset: u64,
    size: u64,
}

/// Where memory for a place may come from.
#[derive(Debug, Clone, Copy)]
pub struct Sources {
    /// Move handles that are complete for everybody.
    pub remap: bool,
    /// New memory, at most so many bytes.
    pub create: u64,
    /// Give handles back that are complete for every caller and do not fit, and create others for them.
    pub exchange: bool,
}

/// What became of a request for more room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grown {
    /// The sources did not suffice.
    Short,
    /// A free range is large enough now.
    Somewhere,
    /// The request has room here, in that owner's free space.
    At(u64, Owner),
}

/// The memory of one pool.
pub struct Mapping {
    calls: Arc<Calls>,
    space: Arc<Space>,
    device: i32,
    kind: HandleKind,
    access: Vec<i32>,
    /// Bytes of the smallest handle.
    pub page: u64,
    /// By offset.
    mapped: BTreeMap<u64, Mapped>,
    /// Handles without an address, by size.
    kept: BTreeMap<u64, Vec<Handle>>,
    kept_bytes: u64,
    /// Freed resizable blocks, as they lie, oldest first.
    parked: Vec<Standalone>,
    reserved: u64,
    /// What could not be given back beside the window.
    lost: Vec<Lost>,
    /// How many handles could not be unmapped.
    stuck: usize,
    /// Handles moved so far.
    pub remaps: u64,
    recorder: Arc<Recorder>,
}

impl Mapping {
    /// No memory yet. `page` is the granularity; `access` names the devices that may touch it.
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

    /// Where the handles begin that a range touches, and their sizes.
    #[cfg(test)]
    pub fn handles_in(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
        let touched = move |of: &&Mapped| of.offset < to && of.offset + of.size > from;
        self.mapped.values().filter(touched).map(|of| (of.offset, of.size))
    }

    /// Bytes mapped into the window.
    pub fn mapped(&self) -> u64 {
        self.mapped.values().map(|mapped| mapped.size).sum()
    }

    fn virtual_memory(&self) -> bool {
        self.space.base().is_some()
    }

    /// The caller's memory becomes the window's.
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

    /// Unmaps a handle that is complete for everybody; its range becomes a hole.
    fn detach(&mut self, heap: &mut Heap, idle: Idle) -> Result<Handle> {
        let Some(Mapped {
            memory: Memory::Handle(handle),
            ..
        }) = self.mapped.get(&idle.offset).copied()
        else {
            return Err(super::calls::refused("unmap", Failure::Other));
        };
        let address = self.space.base().unwrap_or_default() + idle.offset;
        self.calls.submit(|driver| driver.unmap(address, idle.size))?;
        heap.close(idle.range, idle.offset, idle.size);
        self.mapped.remove(&idle.offset);
        self.tell(Action::SegmentUnmap, idle.offset, idle.size);
        Ok(handle)
    }

    /// The size of the largest kept handle of at most `most` bytes.
    pub fn largest_kept(&self, most: u64) -> Option<u64> {
        self.kept.range(..=most).next_back().map(|(size, _)| *size)
    }

    /// A handle of exactly `size` bytes: a kept one, or a new one where `create` bytes allow it.
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

    /// Memory obtained (or, with `false`, given back) beside the window, which counts as reserved.
    pub fn account(&mut self, bytes: u64, obtained: bool) {
        if obtained {
            self.reserved += bytes
        } else {
            self.reserved -= bytes
        }
    }

    /// The devices that may touch mapped memory.
    pub fn access(&self) -> &[i32] {
        &self.access
    }

    /// A range of the window got memory, or lost it.
    fn tell(&self, action: Action, offset: u64, size: u64) {
        if self.recorder.is_on()
            && let Some(address) = self.space.address(offset)
        {
            self.recorder.happened(Event::new(action, self.device, address, size));
        }
    }

    /// The contiguous ranges of the window that memory backs, by offset: start, bytes, and whether they are mapped. What
    /// the driver would not unmap is nobody's, and left out.
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

    /// Whether nothing is mapped or kept that the pool obtained itself.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
            && self.parked.is_empty()
            && self.lost.is_empty()
            && self
                .mapped
                .values()
                .all(|mapped| matches!(mapped.memory, Memory::Caller))
    }

    /// Forgets everything without a driver call: the context is gone, or the process is going.
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
    /// The end of what the heap knows of it.
    fn end(&self) -> u64 {
        match self.memory {
            // Where the address was not a multiple of 512, the heap got less.
            Memory::Segment(address) => {
                self.offset + (self.size - (address.next_multiple_of(512) - address)) / 512 * 512
            }
            _ => self.offset + self.size,
        }
    }
}
