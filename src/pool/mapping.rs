//! Which memory backs the window: handles mapped into a reservation, or segments of the driver's malloc.
//!
//! A handle is the unit of mapping: CUDA maps it whole, unmaps it whole and gives access to whole mappings. Room for less than
//! 1 GiB is made of handles of one granularity; more gets handles of its own, at most 1 GiB each. Every method leaves
//! things as they were when it fails, except that memory it could not put back is kept for later.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::calls::Calls;
use super::heap::{COMMON, Heap, NodeId, Owner, Place};
use super::lost::{Found, Lost};
use super::space::Space;
use crate::driver::{Failure, Handle, HandleKind, Result};

/// From this size on, room is made of handles of its own. Smaller pieces get carved out of what a large block leaves, and then
/// its handle can neither be moved nor released: with 32 MiB here, varying shapes took 1.12 × their peak instead of 1.04.
const LARGE: u64 = 1 << 30;
const LARGEST: u64 = 1 << 30;
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
    reserved: u64,
    /// What could not be given back beside the window.
    lost: Vec<Lost>,
    /// How many handles could not be unmapped.
    stuck: usize,
    /// Handles moved so far.
    pub remaps: u64,
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
            reserved: 0,
            lost: Vec::new(),
            stuck: 0,
            remaps: 0,
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
        heap.open(offset, size, COMMON, 0);
    }

    /// Makes the room `owner` needs for `size` bytes at `align` free for it (or for everybody), from kept handles and
    /// `sources`. False where they do not suffice; nothing has changed then.
    pub fn grow(&mut self, heap: &mut Heap, owner: Owner, size: u64, align: u64, sources: Sources) -> Result<bool> {
        if !self.virtual_memory() {
            return self.add_segment(heap, size, align, sources.create);
        }
        let Some(mut place) = heap.place(owner, size, align, self.page) else {
            return Ok(false);
        };
        let mut need = place.size;
        let mut kept = self.fitting_kept(&mut need);
        // Handles are not split: where only a larger one is there, the place becomes larger.
        let room = place.room - place.size;
        if let Some(larger) = self.larger_kept(need, room) {
            place.size += larger - std::mem::take(&mut need);
            kept.push(larger);
        }
        let mut idle = Vec::new();
        if need > 0 && sources.remap {
            idle = self.fitting_idle(heap, &place, &mut need, room);
            place.size = place
                .size
                .max(idle.iter().map(|idle| idle.size).sum::<u64>() + kept.iter().sum::<u64>());
        }
        if need > sources.create {
            return Ok(false);
        }
        let before = self.reserved;
        let filled = self.fill(heap, place, kept, idle, need);
        if filled.is_err() {
            // What was created for this and has no use now does not stay.
            self.release_kept(before);
        }
        filled?;
        Ok(true)
    }

    /// Kept handles that fit into `need` bytes, which is lowered by them.
    fn fitting_kept(&self, need: &mut u64) -> Vec<u64> {
        let mut chosen = Vec::new();
        for (size, handles) in self.kept.range(..=*need).rev() {
            let count = (*need / size).min(handles.len() as u64);
            chosen.extend(std::iter::repeat_n(*size, count as usize));
            *need -= count * size;
        }
        chosen
    }

    /// The size of a kept handle that is larger than `need`, by at most `room`; none where nothing is needed.
    fn larger_kept(&self, need: u64, room: u64) -> Option<u64> {
        let (size, _) = self.kept.range(need..).next().filter(|_| need > 0)?;
        (size - need <= room).then_some(*size)
    }

    /// Handles that are complete for everybody and fit into `need` bytes, which is lowered by them; the last may be larger
    /// by at most `room`. Small ranges are broken up first; what the place itself will use stays.
    fn fitting_idle(&self, heap: &Heap, place: &Place, need: &mut u64, room: u64) -> Vec<Idle> {
        let beside = |offset: u64, bytes: u64| offset + bytes == place.offset || offset == place.offset + place.size;
        let mut ranges: Vec<(u64, NodeId, u64)> = heap
            .ranges(COMMON)
            .filter(|(_, offset, bytes)| *bytes >= self.page && !beside(*offset, *bytes))
            .map(|(id, offset, bytes)| (bytes, id, offset))
            .collect();
        ranges.sort_unstable();
        let (mut chosen, mut larger) = (Vec::new(), Vec::new());
        for (bytes, range, offset) in ranges {
            for mapped in self.mapped.range(offset..offset + bytes).map(|(_, mapped)| mapped) {
                if *need == 0 {
                    return chosen;
                }
                let movable = matches!(mapped.memory, Memory::Handle(_));
                if !movable || mapped.offset + mapped.size > offset + bytes {
                    continue;
                }
                let idle = Idle {
                    range,
                    offset: mapped.offset,
                    size: mapped.size,
                };
                if mapped.size <= *need {
                    *need -= mapped.size;
                    chosen.push(idle);
                } else {
                    larger.push(idle);
                }
            }
        }
        let last = larger
            .into_iter()
            .filter(|idle| *need > 0 && idle.size - *need <= room)
            .min_by_key(|idle| idle.size);
        if let Some(last) = last {
            *need = 0;
            // Among its range's, from the first to the last, as they will be taken out in reverse.
            let at = chosen
                .iter()
                .position(|idle: &Idle| idle.range == last.range && idle.offset > last.offset);
            chosen.insert(at.unwrap_or(chosen.len()), last);
        }
        chosen
    }

    /// Maps kept, moved and new handles at `place`, one behind the other.
    fn fill(&mut self, heap: &mut Heap, place: Place, kept: Vec<u64>, idle: Vec<Idle>, create: u64) -> Result<()> {
        let mut handles = self.create(create)?;
        handles.extend(kept.into_iter().filter_map(|size| Some((self.take_kept(size)?, size))));
        // From the last to the first of a range, so that what lies before keeps its number.
        for idle in idle.into_iter().rev() {
            match self.detach(heap, idle) {
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
        let mut at = place.offset;
        let base = self.space.base().unwrap_or_default();
        for (done, (handle, size)) in handles.iter().enumerate() {
            let outcome = self.calls.submit(|driver| driver.map(base + at, *size, *handle));
            if let Err(error) = outcome {
                self.undo(heap, place.offset, &handles, done);
                return Err(error);
            }
            at += size;
        }
        let outcome = self
            .calls
            .submit(|driver| driver.set_access(base + place.offset, place.size, &self.access));
        if let Err(error) = outcome {
            self.undo(heap, place.offset, &handles, handles.len());
            return Err(error);
        }
        let mut at = place.offset;
        for (handle, size) in handles {
            self.mapped.insert(
                at,
                Mapped {
                    offset: at,
                    size,
                    memory: Memory::Handle(handle),
                },
            );
            at += size;
        }
        heap.open(place.offset, place.size, place.owner, 0);
        Ok(())
    }

    /// Unmaps the first `done` of `handles` at `offset` and keeps them all.
    fn undo(&mut self, heap: &mut Heap, offset: u64, handles: &[(Handle, u64)], done: usize) {
        let base = self.space.base().unwrap_or_default();
        let mut at = offset;
        for (index, (handle, size)) in handles.iter().enumerate() {
            let unmapped = index >= done || self.calls.submit(|driver| driver.unmap(base + at, *size)).is_ok();
            if unmapped {
                self.keep(*handle, *size);
            } else if let Some(node) = heap.bury(at, *size) {
                tracing::warn!(
                    offset = at,
                    size,
                    "a handle could not be unmapped, and is tried again later"
                );
                let memory = Memory::Stuck(*handle, node);
                self.stuck += 1;
                self.mapped.insert(
                    at,
                    Mapped {
                        offset: at,
                        size: *size,
                        memory,
                    },
                );
            }
            at += size;
        }
    }

    /// New handles of together `bytes`. All or none.
    fn create(&mut self, bytes: u64) -> Result<Vec<(Handle, u64)>> {
        let mut handles = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let size = if bytes >= LARGE { left.min(LARGEST) } else { self.page };
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
        Ok(handle)
    }

    /// Room from the driver's malloc: at least `size` bytes, more where memory has been asked for often.
    fn add_segment(&mut self, heap: &mut Heap, size: u64, align: u64, most: u64) -> Result<bool> {
        // An address is only promised to be a multiple of 256; 512 is the heap's granule.
        let slack = if align > 512 { align } else { 512 };
        let Some(least) = size
            .checked_add(slack)
            .and_then(|size| size.checked_next_multiple_of(self.page))
        else {
            return Ok(false);
        };
        let ample = (self.reserved / 16)
            .clamp(self.page, MOST_AHEAD)
            .next_multiple_of(self.page)
            .max(least);
        let mut outcome = Ok(0);
        for bytes in [ample, least] {
            if bytes > most {
                outcome = Err(None);
                continue;
            }
            outcome = self.calls.submit(|driver| driver.malloc(bytes)).map_err(Some);
            match outcome {
                Ok(address) => return self.place_segment(heap, address, bytes),
                Err(Some(error)) if error.failure != Failure::OutOfMemory => break,
                Err(_) => {}
            }
        }
        match outcome {
            Err(Some(error)) => Err(error),
            _ => Ok(false),
        }
    }

    fn place_segment(&mut self, heap: &mut Heap, address: u64, bytes: u64) -> Result<bool> {
        const MODULO: u64 = 2 << 20;
        let start = address.next_multiple_of(512);
        let size = (bytes - (start - address)) / 512 * 512;
        // A page of hole behind each keeps segments apart.
        match heap.fresh(size + 2 * MODULO, MODULO) {
            Some(offset) => {
                let offset = offset + start % MODULO;
                self.space.add(start, size, offset);
                self.mapped.insert(
                    offset,
                    Mapped {
                        offset,
                        size: bytes,
                        memory: Memory::Segment(address),
                    },
                );
                self.reserved += bytes;
                heap.open(offset, size, COMMON, 0);
                Ok(true)
            }
            None => {
                let _ = self.calls.submit(|driver| driver.free(address));
                Ok(false)
            }
        }
    }

    /// Gives kept handles back until at most `keep` bytes are reserved; returns the bytes.
    pub fn release_kept(&mut self, keep: u64) -> u64 {
        let mut released = 0;
        while self.reserved > keep {
            let Some((&size, _)) = self.kept.last_key_value() else {
                break;
            };
            let Some(handle) = self.take_kept(size) else { break };
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

    /// Gives what is complete for everybody back to the driver, kept handles first and then the largest, until at most `keep`
    /// bytes are reserved; `within` restricts it to a range of offsets. Returns the bytes.
    pub fn release(&mut self, heap: &mut Heap, keep: u64, within: Option<(u64, u64)>) -> u64 {
        let mut released = if within.is_none() { self.release_kept(keep) } else { 0 };
        let mut idle: Vec<Idle> = Vec::new();
        for (range, offset, bytes) in heap.ranges(COMMON) {
            for mapped in self
                .mapped
                .range(offset.saturating_sub(512)..offset + bytes)
                .map(|(_, mapped)| mapped)
            {
                let inside = mapped.offset >= offset && mapped.end() <= offset + bytes;
                let wanted = within.is_none_or(|(from, to)| mapped.offset >= from && mapped.end() <= to);
                if inside && wanted && !matches!(mapped.memory, Memory::Caller) {
                    idle.push(Idle {
                        range,
                        offset: mapped.offset,
                        size: mapped.size,
                    });
                }
            }
        }
        // Large ones first; within a range from the last to the first, so that what lies before keeps its number.
        idle.sort_by_key(|idle| (std::cmp::Reverse(idle.size), idle.range, std::cmp::Reverse(idle.offset)));
        for piece in idle {
            if self.reserved <= keep {
                break;
            }
            match self.release_idle(heap, piece) {
                Ok(bytes) => released += bytes,
                Err(error) => tracing::warn!(%error, "memory could not be given back"),
            }
        }
        released
    }

    fn release_idle(&mut self, heap: &mut Heap, idle: Idle) -> Result<u64> {
        let Some(mapped) = self.mapped.get(&idle.offset).copied() else {
            return Ok(0);
        };
        // A larger neighbour may have split this range since: its number is found anew.
        let range = heap
            .ranges(COMMON)
            .find(|(_, from, size)| *from <= idle.offset && mapped.end() <= from + size);
        let Some((range, ..)) = range else { return Ok(0) };
        match mapped.memory {
            Memory::Handle(_) => {
                let handle = self.detach(heap, Idle { range, ..idle })?;
                self.keep(handle, idle.size);
                if let Some(handle) = self.take_kept(idle.size)
                    && let Err(error) = self.calls.submit(|driver| driver.release(handle))
                {
                    self.keep(handle, idle.size);
                    return Err(error);
                }
                self.reserved -= idle.size;
                Ok(idle.size)
            }
            Memory::Segment(address) => {
                let bytes = mapped.end() - mapped.offset;
                self.calls.submit(|driver| driver.free(address))?;
                heap.close(range, mapped.offset, bytes);
                self.space.remove(mapped.offset);
                self.mapped.remove(&mapped.offset);
                self.reserved -= mapped.size;
                Ok(mapped.size)
            }
            Memory::Caller | Memory::Stuck(..) => Ok(0),
        }
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

    /// A handle that [`Mapping::handle`] gave out and that nothing maps any more.
    pub fn return_handle(&mut self, handle: Handle, size: u64) {
        self.keep(handle, size);
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

    /// Takes back what nothing uses any more; what the driver refuses stays on the books.
    pub fn give_up(&mut self, mut lost: Lost) {
        let mut found = Found::default();
        if !lost.retry(&self.calls, &mut found) {
            self.lost.push(lost);
        }
        self.recover(found);
    }

    /// Tries again what the driver would not take back.
    pub fn retry(&mut self, heap: &mut Heap) {
        let mut found = Found::default();
        self.lost.retain_mut(|lost| !lost.retry(&self.calls, &mut found));
        self.recover(found);
        let base = self.space.base().unwrap_or_default();
        let stuck: Vec<(Mapped, Handle, NodeId)> = self
            .mapped
            .values()
            .filter_map(|mapped| match mapped.memory {
                Memory::Stuck(handle, node) => Some((*mapped, handle, node)),
                _ => None,
            })
            .collect();
        for (Mapped { offset, size, .. }, handle, node) in stuck {
            if self.calls.submit(|driver| driver.unmap(base + offset, size)).is_ok() {
                heap.unbury(node);
                self.mapped.remove(&offset);
                self.keep(handle, size);
                self.stuck -= 1;
            }
        }
    }

    fn recover(&mut self, found: Found) {
        self.reserved -= found.freed;
        for (handle, size) in found.handles {
            self.keep(handle, size);
        }
    }

    /// Whether something waits to be tried again.
    pub fn has_lost(&self) -> bool {
        self.stuck > 0 || !self.lost.is_empty()
    }

    /// Whether nothing is mapped or kept that the pool obtained itself.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
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
        self.lost.clear();
        self.stuck = 0;
        (self.kept_bytes, self.reserved) = (0, 0);
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
