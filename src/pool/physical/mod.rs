//! The memory behind the pool's address range: handles mapped into a reservation, or segments of the driver's malloc.
//!
//! A handle is the unit of mapping: CUDA maps it whole, unmaps it whole and gives access to whole mappings. Each handle
//! for a request is at most a sixteenth of its size and a 64th of what is reserved, between one granule, usually 2 MiB,
//! and 256 MiB; it is larger while the pool rises (`slow_path/rise.rs`) and in the reserve. A method that fails leaves
//! everything as it was, with two exceptions: memory that it could not put back is cached for later, and what it returned
//! in exchange for other handles stays with the driver.
//!
//! Uses: free_space, stream_cache.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::driver::{Failure, Handle, HandleKind, Result};
use crate::history::{Action, Event, Recorder};
use crate::pool::driver_calls::DriverCalls;
use crate::pool::free_space::{COMMON, FreeSpace, IdleBytes, NodeId, Owner, Place};
use crate::pool::physical::address_space::AddressSpace;
use crate::pool::physical::dedicated_memory::DedicatedMemory;
use crate::pool::physical::deferred_release::{DeferredRelease, Recovered};
use crate::pool::physical::due::Due;
use crate::pool::physical::granules::Granules;
use crate::pool::physical::reserve::Reserve;

pub mod address_space;
mod cached_handles;
mod cached_ranges;
mod candidates;
pub mod dedicated_memory;
pub mod deferred_release;
mod due;
mod granules;
mod grow;
pub mod index;
mod leaving;
mod locked;
mod release;
mod reserve;
mod room;
mod segments;

pub use candidates::Candidates;
pub use grow::grow;
pub use leaving::{Leaving, Quota};
pub use locked::{Left, Locked};

/// The largest handle, in bytes and as a part of what is reserved. A block that takes a part of a handle keeps the rest
/// from being moved or returned.
const LARGEST: u64 = 256 << 20;
const PART: u64 = 64;
/// The driver aligns addresses of segments to 256 only; 512 is the granule of the free-space bookkeeping.
const SEGMENT_PADDING: u64 = 512;
/// The most bytes that a segment has beyond its request.
const MAX_SEGMENT_SURPLUS: u64 = 32 << 20;

/// Memory in the address range that is mapped and unmapped as one.
#[derive(Debug, Clone, Copy)]
struct Mapped {
    offset: u64,
    size: u64,
    origin: Origin,
    /// It is on its way back to the driver: see `leaving`.
    leaves: bool,
}

#[derive(Debug, Clone, Copy)]
enum Origin {
    Handle(Handle),
    Segment(u64),
    /// External memory, which is never returned.
    External,
    /// A handle that could not be unmapped. Its node in the free-space bookkeeping keeps other memory from being mapped
    /// there.
    Stuck(Handle, NodeId),
}

/// A mapped handle or segment that is idle: all of it is free, and all work that used it has completed. Its free range
/// and that range's owner, and where it lies.
#[derive(Debug, Clone, Copy)]
struct Idle {
    range: NodeId,
    owner: Owner,
    offset: u64,
    size: u64,
}

/// Where memory for a place may come from.
#[derive(Debug, Clone, Copy)]
pub struct Sources {
    /// Whether to move idle handles.
    pub remap: bool,
    /// What the requester has freed is idle up to this event number; none where only common free space is.
    pub complete: Option<u64>,
    /// The most bytes of new memory.
    pub create: u64,
    /// Whether to return idle handles that do not fit, and to create others for them.
    pub exchange: bool,
    /// How far new memory goes ahead of the request.
    pub ahead: Option<Ahead>,
}

/// How far a growth goes ahead of its request.
#[derive(Debug, Clone, Copy)]
pub struct Ahead {
    /// The most bytes that are reserved then.
    pub reserved: u64,
    /// The largest handle.
    pub handle: u64,
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
pub struct PhysicalMemory {
    calls: Arc<DriverCalls>,
    addresses: Arc<AddressSpace>,
    device: i32,
    kind: HandleKind,
    access: Vec<i32>,
    /// The size of the smallest handle in bytes.
    pub page: u64,
    /// By offset.
    mapped: BTreeMap<u64, Mapped>,
    /// Cached handles, which have no address, by size.
    cached_handles: BTreeMap<u64, Vec<Handle>>,
    cached_handle_bytes: u64,
    /// Cached ranges: freed resizable blocks that stay mapped, oldest first.
    cached_ranges: VecDeque<DedicatedMemory>,
    cached_range_bytes: u64,
    /// How much of what is cached was idle for a while.
    idle_cached: IdleBytes,
    /// How many handles, segments and ranges are on their way back to the driver, and the bytes that go.
    leaving: usize,
    leaving_bytes: u64,
    /// Bytes of places that handles are moving to: used nodes without memory.
    places: u64,
    /// How many batches of that have come to their end.
    batches: u64,
    /// What goes back once a call gives the pool's lock up.
    due: Due,
    reserved: u64,
    /// What single allocations of the driver's malloc take.
    granules: Granules,
    /// What the driver refused to take back, outside the pool's address range.
    deferred: Vec<DeferredRelease>,
    /// What of it is being retried just now may be mapped: address and bytes.
    retrying: Vec<(u64, u64)>,
    /// How many handles could not be unmapped.
    stuck: usize,
    /// Handles moved so far.
    pub remaps: u64,
    /// The limit of reserved memory, in bytes; 0 means none.
    pub limit: u64,
    /// Bytes of the device's memory that stay free for others.
    pub headroom: u64,
    /// When the device was last asked what it has beyond the headroom, the bytes that were reserved then, and the answer.
    seen_room: Cell<Option<(Instant, u64, u64)>>,
    /// Memory that stays reserved.
    pub reserve: Reserve,
    /// Bytes of the device's memory.
    pub device_memory: u64,
    /// The driver refused more memory when it was last asked for some.
    pub driver_refused: bool,
    /// The most bytes reserved since creation or the last reset.
    pub reserved_peak: u64,
    /// The memory is external, which fixes its size.
    pub is_external: bool,
    recorder: Arc<Recorder>,
}

impl PhysicalMemory {
    /// A mapping without memory. `page` is the granularity; `access` names the devices that may access the memory.
    pub fn new(
        calls: Arc<DriverCalls>,
        addresses: Arc<AddressSpace>,
        device: i32,
        page: u64,
        kind: HandleKind,
        access: Vec<i32>,
        recorder: Arc<Recorder>,
    ) -> PhysicalMemory {
        let granules = Granules::new(calls.malloc_granule());
        PhysicalMemory {
            calls,
            addresses,
            device,
            kind,
            access,
            page,
            mapped: BTreeMap::new(),
            cached_handles: BTreeMap::new(),
            cached_handle_bytes: 0,
            cached_ranges: VecDeque::new(),
            cached_range_bytes: 0,
            idle_cached: IdleBytes::default(),
            leaving: 0,
            leaving_bytes: 0,
            places: 0,
            batches: 0,
            due: Due::default(),
            reserved: 0,
            granules,
            deferred: Vec::new(),
            retrying: Vec::new(),
            stuck: 0,
            remaps: 0,
            limit: 0,
            headroom: 0,
            seen_room: Cell::new(None),
            reserve: Reserve::default(),
            device_memory: 0,
            driver_refused: false,
            reserved_peak: 0,
            is_external: false,
            recorder,
        }
    }

    /// Bytes of physical memory held.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Bytes of physical memory held, without what is on its way back to the driver.
    pub fn held(&self) -> u64 {
        self.reserved.saturating_sub(self.leaving_bytes)
    }

    /// Raises the peak to what is reserved now.
    pub fn note_peak(&mut self) {
        self.reserved_peak = self.reserved_peak.max(self.reserved);
    }

    /// The offsets and sizes of the handles that a range overlaps.
    #[cfg(test)]
    pub fn handles_in(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
        let touched = move |of: &&Mapped| of.offset < to && of.offset + of.size > from;
        self.mapped.values().filter(touched).map(|of| (of.offset, of.size))
    }

    /// Bytes of used nodes that have no memory yet, since handles are moving there.
    pub fn places(&self) -> u64 {
        self.places
    }

    /// Bytes mapped into the pool's address range.
    pub fn mapped(&self) -> u64 {
        self.mapped.values().map(|mapped| mapped.size).sum()
    }

    fn virtual_memory(&self) -> bool {
        self.addresses.base().is_some()
    }

    /// Takes external memory into the pool's address range.
    pub fn adopt(&mut self, free_space: &mut FreeSpace, address: u64, offset: u64, size: u64) {
        self.addresses.add(address, size, offset);
        self.mapped.insert(
            offset,
            Mapped {
                offset,
                size,
                origin: Origin::External,
                leaves: false,
            },
        );
        self.reserved += size;
        self.record(Action::SegmentAlloc, offset, size);
        free_space.open(offset, size, COMMON, 0);
    }

    /// A new handle of `size` bytes.
    fn create_handle(&mut self, size: u64) -> Result<Handle> {
        let handle = self
            .calls
            .submit(|driver| driver.create(self.device, size, self.kind))?;
        self.reserved += size;
        Ok(handle)
    }

    /// Counts an allocation of the driver's malloc for a single block. Returns the bytes that the driver took for it.
    pub fn took(&mut self, address: u64, bytes: u64) -> u64 {
        let taken = self.granules.take(address, bytes);
        self.reserved += taken;
        taken
    }

    /// How many bytes a further such allocation lacks, where the driver may take `at_most`.
    pub fn lacks(&self, bytes: u64, at_most: u64) -> u64 {
        self.granules.lacks(bytes, at_most)
    }

    /// The devices that may access mapped memory.
    pub fn access(&self) -> &[i32] {
        &self.access
    }

    /// Records that a range of the pool got memory, or lost it.
    fn record(&self, action: Action, offset: u64, size: u64) {
        if self.recorder.is_on()
            && let Some(address) = self.addresses.address(offset)
        {
            self.recorder.happened(Event::new(action, self.device, address, size));
        }
    }

    /// The contiguous ranges that memory backs, by offset: start, bytes, and whether they are mapped. Memory that the
    /// driver refused to unmap has no owner, and is left out; so is what is on its way back to the driver.
    pub fn ranges(&self) -> Vec<(u64, u64, bool)> {
        let mut ranges: Vec<(u64, u64, bool)> = Vec::new();
        for mapped in self.mapped.values() {
            let expandable = match mapped.origin {
                _ if mapped.leaves => continue,
                Origin::Stuck(..) => continue,
                Origin::Handle(_) => true,
                Origin::Segment(_) | Origin::External => false,
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
        self.cached_handles.is_empty()
            && self.cached_ranges.is_empty()
            && self.deferred.is_empty()
            && self.due.releases.is_empty()
            && self.leaving == 0
            && self
                .mapped
                .values()
                .all(|mapped| matches!(mapped.origin, Origin::External))
    }

    /// Forgets everything without a driver call, because the context is gone or the process ends.
    pub fn forget(&mut self) {
        self.mapped.clear();
        self.cached_handles.clear();
        self.cached_ranges.clear();
        self.deferred.clear();
        self.retrying.clear();
        self.due = Due::default();
        (self.stuck, self.leaving, self.leaving_bytes) = (0, 0, 0);
        (self.cached_handle_bytes, self.cached_range_bytes, self.reserved) = (0, 0, 0);
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
        match self.origin {
            // Where the address was not a multiple of 512, the bookkeeping has less of it.
            Origin::Segment(address) => {
                self.offset + (self.size - (address.next_multiple_of(512) - address)) / 512 * 512
            }
            _ => self.offset + self.size,
        }
    }
}
