//! The memory of dedicated allocations: resizable blocks, blocks of `guard`, and blocks of `passthrough`.
//!
//! A resizable block has room to grow, and its pages are committed ahead in proportion. When the room is used up, its
//! handles are mapped a second time in a larger range, and nothing is copied. The old range stays mapped until the
//! block is freed and reclaimed, because a captured graph may hold the old address. What a shrink leaves over stays
//! mapped until it is reclaimed itself; the block may have it back until then.
//!
//! The bytes of a resizable block, from the start of its range:
//!
//! ```text
//! |<--------------------- Range::size: addresses --------------------->|
//! |<------ committed: handles, mapped ------>|<----- room to grow ---->|
//! |<--- max_size --->|<---- pending tail --->|  cut = max_size
//! |<- size ->| ahead |
//! |<--------- peak: the most that the block ever had ---------->| or less
//! ```
//!
//! Where the work of the block before it in the range is pending, that may use the bytes up to [`Remainder::touched`], and the
//! block has those up to [`Remainder::start`] only. Then `max_size` is `start`, if that is less:
//!
//! ```text
//! |<- size ->|
//! |<-- start -->|<-- once that work is over -->|
//! |<---------------- touched ----------------->|
//! ```

use crate::driver::{Failure, Handle, Result};
use crate::pool::MAX_ALIGNMENT;
use crate::pool::driver_calls::DriverCalls;
use crate::pool::free_space::{IdleBytes, Owner};
use crate::pool::physical::deferred_release::DeferredRelease;
use crate::pool::physical::{Locked, PhysicalMemory};
use crate::pool::rounding::align_up;
use crate::pool::stream_cache::Key;

mod gather;
mod grow;
mod tail;

use gather::Plan;
pub use gather::{Budget, Built};
pub use grow::Grown;
pub use tail::{PendingTail, Remainder};

/// The least address space of a resizable block, if there is as much.
const ROOM: u64 = 64 << 20;

/// The address space of one block.
#[derive(Debug, Clone, Copy)]
struct Range {
    base: u64,
    size: u64,
    /// Bytes mapped, from its start.
    mapped: u64,
}

/// A request of at least this part of what a freed block was requested with may take its range.
const SIMILAR: u64 = 16;

/// The kind of memory.
#[derive(Debug)]
enum Backing {
    /// One allocation of the driver's malloc: its address and bytes.
    Malloc(u64, u64),
    /// Handles mapped one behind the other, from the start of each range; the last range is the current one.
    Mapped {
        ranges: Vec<Range>,
        handles: Vec<(Handle, u64)>,
        committed: u64,
    },
}

/// One dedicated allocation.
#[derive(Debug)]
pub struct DedicatedMemory {
    backing: Backing,
    /// Where the block starts.
    pub address: u64,
    /// Bytes in use. While the block is live, its cell has the exact value.
    pub size: u64,
    /// Bytes requested, once the block was freed; 0 for one that was never handed out.
    pub requested: u64,
    /// The most bytes that the block ever had, once it was freed.
    pub peak: u64,
    /// Whether the block may be resized.
    pub resizable: bool,
    /// What the last shrink left over, unless the block has grown again.
    pub pending_tail: Option<PendingTail>,
    /// What the block may not have yet of its range.
    pub remainder: Option<Remainder>,
    /// Bytes with which the range was last requested.
    first_size: u64,
    /// The bytes that the range has beyond what its blocks needed.
    excess: IdleBytes,
    /// The most bytes of the range that its blocks have had, as far as these are still committed.
    range_peak: u64,
    /// The capture that it belongs to, by the pool's own number; 0 means none.
    pub capture: u32,
    /// The owner of its stream's free space; none for a block without a stream.
    pub owner: Option<Owner>,
    /// The key of the cache of the stream that it was allocated on, which keeps that key meanwhile.
    pub origin: Option<Key>,
    /// Whether its memory goes back to the driver once it is reclaimed.
    pub give_back: bool,
}

impl DedicatedMemory {
    fn new(backing: Backing, address: u64, size: u64) -> DedicatedMemory {
        DedicatedMemory {
            backing,
            address,
            size,
            requested: 0,
            peak: 0,
            resizable: false,
            pending_tail: None,
            remainder: None,
            first_size: size,
            excess: IdleBytes::default(),
            range_peak: 0,
            capture: 0,
            owner: None,
            origin: None,
            give_back: false,
        }
    }

    /// A block for the models: `size` bytes from `base` on, and the block at `address` among them.
    #[cfg(loom)]
    pub fn modelled(base: u64, size: u64, address: u64) -> DedicatedMemory {
        DedicatedMemory::new(Backing::Malloc(base, size), address, base + size - address)
    }

    /// One allocation of the driver's malloc. The driver aligns to 256 only, so the allocation is larger than the block
    /// where its address is not aligned enough.
    pub fn malloc(
        calls: &DriverCalls,
        lock: &mut impl Locked,
        size: u64,
        align: u64,
        budget: Budget,
    ) -> Result<Built<DedicatedMemory>> {
        let mut lacking = 0;
        for bytes in [size, size.saturating_add(align)] {
            lacking = lock.physical().lacks(bytes, budget.exchanging);
            if lacking > 0 {
                break;
            }
            let base = calls.malloc(bytes)?;
            let taken = lock.physical().took(base, bytes);
            let address = base.next_multiple_of(align);
            let block = DedicatedMemory::new(Backing::Malloc(base, bytes), address, size);
            if taken <= budget.exchanging && address + size <= base + bytes {
                return Ok(Built::Done(block));
            }
            lock.release(block.into_release());
            // The driver did not use the room beside other small allocations.
            if taken > budget.exchanging {
                lacking = taken - budget.exchanging;
                break;
            }
        }
        Ok(Built::Short(lacking))
    }

    /// A block that ends at an unmapped page, as far as `align` allows.
    pub fn guarded(
        calls: &DriverCalls,
        lock: &mut impl Locked,
        size: u64,
        align: u64,
        budget: Budget,
    ) -> Result<Built<DedicatedMemory>> {
        let page = lock.physical().page;
        let Some(bytes) = align_up(size, page) else {
            return Ok(Built::Short(u64::MAX));
        };
        let room = bytes + page;
        let block = Self::mapped(calls, lock, (bytes, bytes), (room, room), false, budget)?;
        Ok(block.map(|mut block| {
            block.address = (block.address + bytes - size) / align * align;
            block.size = size;
            block
        }))
    }

    /// A block that can grow.
    pub fn resizable(
        calls: &DriverCalls,
        lock: &mut impl Locked,
        size: u64,
        budget: Budget,
    ) -> Result<Built<DedicatedMemory>> {
        let page = lock.physical().page;
        let Some((least, room)) = align_up(size, page).zip(room_for(size, page)) else {
            return Ok(Built::Short(u64::MAX));
        };
        let ahead = ahead(size, page).min(room);
        let block = Self::mapped(calls, lock, (least, ahead), (least, room), true, budget)?;
        Ok(block.map(|mut block| {
            (block.size, block.first_size, block.resizable) = (size, size, true);
            block
        }))
    }

    /// Memory of between `bytes.0` and `bytes.1` bytes, in a range of between `room.0` and `room.1` bytes.
    fn mapped(
        calls: &DriverCalls,
        lock: &mut impl Locked,
        bytes: (u64, u64),
        room: (u64, u64),
        shrinks: bool,
        budget: Budget,
    ) -> Result<Built<DedicatedMemory>> {
        let mut plan = match Plan::new(lock.physical(), 0, bytes, shrinks, budget) {
            Ok(plan) => plan,
            Err(lacking) => return Ok(Built::Short(lacking)),
        };
        let range = Range::reserve(calls, lock.physical().page, room.1, room.0.max(plan.bytes()))?;
        plan.shorten(range.size);
        let memory = Backing::Mapped {
            ranges: vec![range],
            handles: Vec::new(),
            committed: 0,
        };
        let mut block = DedicatedMemory::new(memory, range.base, 0);
        match block.extend(calls, lock, range, plan, false) {
            Ok(Built::Done(())) => Ok(Built::Done(block)),
            outcome => {
                lock.release(range.nothing());
                outcome.map(|short| short.map(|()| block))
            }
        }
    }

    /// Whether it is one allocation of the driver's malloc.
    pub fn is_malloc(&self) -> bool {
        matches!(self.backing, Backing::Malloc(..))
    }

    /// Where its memory is: start, bytes, and whether it is mapped there.
    pub fn extent(&self) -> (u64, u64, bool) {
        match &self.backing {
            Backing::Malloc(address, bytes) => (*address, *bytes, false),
            Backing::Mapped { ranges, committed, .. } => (ranges[ranges.len() - 1].base, *committed, true),
        }
    }

    /// Bytes of memory behind it.
    pub fn committed(&self) -> u64 {
        match &self.backing {
            Backing::Malloc(_, bytes) => *bytes,
            Backing::Mapped { committed, .. } => *committed,
        }
    }

    /// The largest size that needs no change of memory.
    pub fn max_size(&self) -> u64 {
        let mapped = self.max_mapped();
        let remainder = self.remainder.filter(Remainder::limits);
        remainder.map_or(mapped, |remainder| mapped.min(remainder.start))
    }

    /// As [`DedicatedMemory::max_size`], where no work on the block before it is pending.
    pub fn max_mapped(&self) -> u64 {
        match self.pending_tail {
            _ if !self.resizable || matches!(self.backing, Backing::Malloc(..)) => 0,
            Some(pending_tail) => pending_tail.cut,
            None => self.committed(),
        }
    }

    /// Whether it can serve a request of `size` bytes that may safely use it, without wasting most of it.
    pub fn fits(&self, size: u64, page: u64) -> bool {
        let committed = self.committed();
        self.resizable
            && size <= committed
            && committed <= ahead(size.saturating_add(size / 8), page).saturating_add(4 * page)
    }

    /// Whether it is a freed block that had grown, and can serve a request of `size` bytes that may grow likewise.
    pub fn may_serve_growth(&self, size: u64) -> bool {
        let similar = size >= self.first_size / SIMILAR && size <= self.committed();
        self.resizable && self.peak > self.first_size && similar
    }

    /// Whether it can grow to `size` bytes in place.
    pub fn has_room(&self, size: u64) -> bool {
        match &self.backing {
            Backing::Malloc(..) => false,
            Backing::Mapped { ranges, .. } => self.resizable && size <= ranges[ranges.len() - 1].size,
        }
    }

    /// Makes a freed block a block of `size` bytes; `peak` are the bytes that may not be safe for every stream.
    pub fn renew(&mut self, size: u64, peak: u64) {
        self.excess.note(self.committed().saturating_sub(self.peak));
        (self.size, self.first_size, self.peak, self.range_peak) = (size, size, peak, 0);
        (self.requested, self.capture, self.give_back) = (0, 0, false);
        (self.pending_tail, self.remainder) = (None, None);
    }

    /// Makes a freed block that had grown a block of `size` bytes, whose stream most likely needs all of it again.
    pub fn renew_for_growth(&mut self, size: u64) {
        let peak = self.range_peak.max(self.peak);
        self.renew(size, 0);
        self.range_peak = peak;
    }

    /// Ends a window of time in which a live block needs `used` bytes. Returns the bytes at the end that no block of the
    /// range needed in the last windows.
    pub fn end_window(&mut self, used: u64) -> u64 {
        self.excess.end_window(self.committed().saturating_sub(used));
        self.excess.idle()
    }

    /// Gives up all its ranges but the current one, when nothing uses them any more. They are due.
    pub fn leave_old_ranges(&mut self, physical: &mut PhysicalMemory) {
        if let Backing::Mapped { ranges, .. } = &mut self.backing {
            let current = ranges.len() - 1;
            for range in ranges.drain(..current) {
                physical.note_due_range(range.nothing());
            }
        }
    }

    /// Checks the order of its bytes: see the drawing above. The block has `size` bytes.
    pub fn validate(&self, size: u64) -> std::result::Result<(), String> {
        let Backing::Mapped {
            ranges,
            handles,
            committed,
        } = &self.backing
        else {
            return Ok(());
        };
        let held: u64 = handles.iter().map(|(_, size)| size).sum();
        let current = ranges.last().is_some_and(|range| range.mapped == *committed);
        let ranges = ranges.iter().all(|range| range.mapped <= range.size.min(*committed));
        let cut = self
            .pending_tail
            .is_none_or(|tail| tail.cut < *committed && self.boundaries().any(|at| at == tail.cut));
        let touched = self.remainder.is_none_or(|remainder| remainder.touched <= *committed);
        let fits = !self.resizable || size <= self.max_mapped();
        match held == *committed && current && ranges && cut && touched && fits {
            true => Ok(()),
            false => Err(format!("a block of {size} bytes: {self:?}")),
        }
    }

    /// What there is to give up, when nothing uses the block any more.
    pub fn into_release(self) -> DeferredRelease {
        match self.backing {
            Backing::Malloc(address, bytes) => DeferredRelease {
                allocations: vec![(address, bytes)],
                ..DeferredRelease::default()
            },
            Backing::Mapped { ranges, handles, .. } => DeferredRelease {
                mappings: ranges.iter().map(|range| (range.base, range.mapped)).collect(),
                reservations: ranges.iter().map(|range| (range.base, range.size)).collect(),
                handles,
                ..DeferredRelease::default()
            },
        }
    }
}

impl Range {
    /// Reserves a range of `room` bytes, or of less where address space is short, but of at least `least`.
    fn reserve(calls: &DriverCalls, page: u64, room: u64, least: u64) -> Result<Range> {
        let mut size = room.max(least);
        loop {
            match calls.submit(|driver| driver.reserve(size, page.max(MAX_ALIGNMENT))) {
                Ok(base) => return Ok(Range { base, size, mapped: 0 }),
                Err(error) if size == least || error.failure != Failure::OutOfMemory => return Err(error),
                Err(_) => size = (size / 2 / page * page).max(least),
            }
        }
    }

    /// What there is to give up: what is mapped in the range, and its addresses.
    fn nothing(&self) -> DeferredRelease {
        DeferredRelease {
            mappings: (self.mapped > 0)
                .then_some((self.base, self.mapped))
                .into_iter()
                .collect(),
            reservations: vec![(self.base, self.size)],
            ..DeferredRelease::default()
        }
    }
}

/// Bytes committed for `size`: a sixteenth ahead, in whole pages.
fn ahead(size: u64, page: u64) -> u64 {
    size.checked_add(size / 16)
        .and_then(|ahead| align_up(ahead, page))
        .unwrap_or(u64::MAX / page * page)
}

/// The address space for a block of `size` bytes.
fn room_for(size: u64, page: u64) -> Option<u64> {
    size.checked_mul(4).and_then(|room| align_up(room.max(ROOM), page))
}
