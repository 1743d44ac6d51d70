//! The table of dedicated allocations, which finds them by address without a lock.
//!
//! It is a hash table of chains through cells that never move and are reused. Readers follow a chain without a lock. A
//! reader that finds nothing trusts that only if no writer changed the chains meanwhile. A call that changes a block
//! *claims* its cell first, by one compare-and-swap. Two calls for one block take turns, so a free that races with a
//! resize comes either before it or after it. While a call holds the pool's lock it claims a cell only by
//! [`DedicatedTable::try_claim`], which does not wait.
//!
//! Uses: physical.

use std::ops::Deref;

use crate::pool::physical::dedicated_memory::DedicatedMemory;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::sync::{Mutex, MutexGuard, OnceBox, boxed, hint, holds, thread};

const NONE: u32 = 0;
const LIVE: u32 = 1;
const CLAIMED: u32 = 2;

// The models have one bucket, because addresses differ from run to run.
const BUCKETS: usize = if cfg!(loom) { 1 } else { 1 << 14 };
const CHUNK: usize = if cfg!(loom) { 8 } else { 256 };
const CHUNKS: usize = if cfg!(loom) { 1 << 4 } else { 1 << 14 };

/// The part of a block that is read without its lock. Only the call that has claimed the cell writes it.
#[repr(C, align(64))]
pub struct Cell {
    /// Where the block starts.
    pub address: AtomicU64,
    /// Bytes in use.
    pub size: AtomicU64,
    /// Bytes requested.
    pub requested: AtomicU64,
    /// The largest size that needs no change of memory; 0 for a block that cannot be resized.
    pub max_size: AtomicU64,
    /// A shrink frees whole handles if the new size, with its pages ahead, is at most this.
    pub shrinks_at: AtomicU64,
    /// The most bytes that the owner could use before a shrink. Those beyond it and beyond the size were never used.
    pub peak: AtomicU64,
    /// A block that gets fewer bytes gives up some that work on the block before it may use; 0 where there is no such work.
    pub ordered: AtomicU64,
    /// Successful resizes.
    pub resizes: AtomicU64,
    state: AtomicU32,
    next: AtomicU32,
    /// The alignment that was requested.
    pub align: AtomicU64,
    /// 1: used on other streams than the one that will free it.
    pub stream_uses: AtomicU32,
    /// The tag under which it was allocated; 0 means none. Only the call that allocates or has claimed the block changes
    /// it, so the models need no order of it.
    pub tag: std::sync::atomic::AtomicU32,
    block: Mutex<Option<Box<DedicatedMemory>>>,
}

impl Cell {
    fn new() -> Cell {
        Cell {
            address: AtomicU64::new(0),
            size: AtomicU64::new(0),
            requested: AtomicU64::new(0),
            max_size: AtomicU64::new(0),
            shrinks_at: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            ordered: AtomicU64::new(0),
            resizes: AtomicU64::new(0),
            state: AtomicU32::new(NONE),
            next: AtomicU32::new(0),
            align: AtomicU64::new(0),
            stream_uses: AtomicU32::new(0),
            tag: std::sync::atomic::AtomicU32::new(0),
            block: Mutex::new(None),
        }
    }

    /// Updates the sizes that depend on the block's memory, after that has changed.
    pub fn update_limits(&self, block: &DedicatedMemory) {
        self.max_size.store(block.max_size(), Ordering::Relaxed);
        self.shrinks_at.store(block.shrinks_at(), Ordering::Relaxed);
        let ordered = block.remainder.map_or(0, |remainder| remainder.used());
        self.ordered.store(ordered, Ordering::Relaxed);
    }

    /// See `DedicatedMemory::extent`. A thread that changes the block just now may wait for a lock that the caller
    /// holds, so this only tries the block's lock. If that fails, it returns the values that the cell has.
    pub fn extent(&self) -> (u64, u64, bool) {
        let size = self.size.load(Ordering::Relaxed);
        let known = self.block.try_lock();
        let known = known.as_ref().and_then(|block| block.as_ref());
        known.map_or_else(
            || {
                let bytes = self.max_size.load(Ordering::Relaxed).max(size);
                (self.address.load(Ordering::Relaxed), bytes, true)
            },
            |block| block.extent(),
        )
    }

    /// Where the block starts, and its extent; none where there is no block any more. Another call may end the block meanwhile,
    /// and the cell may get another one, so both are read until they belong together.
    pub fn place(&self) -> Option<(u64, (u64, u64, bool))> {
        let mut tries = 0;
        loop {
            let address = self.address.load(Ordering::Acquire);
            if address == 0 {
                return None;
            }
            let extent = self.extent();
            let inside = extent.0 <= address && address - extent.0 <= extent.1;
            let inside = holds("a block lies in its extent", inside);
            let same = self.address.load(Ordering::Acquire) == address;
            let same = holds("a block's address is the same before and after its extent", same);
            if inside && same {
                return Some((address, extent));
            }
            pause(&mut tries);
        }
    }
}

/// A cell that no other call changes while this lives.
pub struct Claimed<'a> {
    cell: &'a Cell,
    /// Its number in the table.
    pub id: u32,
}

impl Claimed<'_> {
    /// The block itself. Its lock is uncontended.
    pub fn block(&self) -> MutexGuard<'_, Option<Box<DedicatedMemory>>> {
        self.cell.block.lock()
    }
}

impl Deref for Claimed<'_> {
    type Target = Cell;

    #[inline]
    fn deref(&self) -> &Cell {
        self.cell
    }
}

impl Drop for Claimed<'_> {
    #[inline]
    fn drop(&mut self) {
        self.cell.state.store(LIVE, Ordering::Release);
    }
}

/// The result of [`DedicatedTable::try_claim`].
pub enum Try<'a> {
    /// The caller has claimed it.
    Claimed(Claimed<'a>),
    /// Another call has claimed it.
    Busy,
    /// There is no block.
    None,
}

#[derive(Default)]
struct FreeCells {
    free: Vec<u32>,
}

/// The dedicated allocations of one pool.
pub struct DedicatedTable {
    buckets: Box<[AtomicU32]>,
    chunks: Box<[OnceBox<[Cell; CHUNK]>]>,
    /// Odd while chains change.
    version: AtomicU64,
    /// The highest number in use so far.
    used: AtomicU32,
    free_cells: Mutex<FreeCells>,
}

impl Default for DedicatedTable {
    fn default() -> DedicatedTable {
        DedicatedTable {
            buckets: (0..BUCKETS).map(|_| AtomicU32::new(0)).collect(),
            chunks: (0..CHUNKS).map(|_| OnceBox::new()).collect(),
            version: AtomicU64::new(0),
            used: AtomicU32::new(0),
            free_cells: Mutex::default(),
        }
    }
}

#[inline]
fn bucket(address: u64) -> usize {
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as usize % BUCKETS
}

impl DedicatedTable {
    #[inline]
    fn cell(&self, id: u32) -> &Cell {
        let chunk = self.chunks[id as usize / CHUNK].get_or_init(|| boxed(Cell::new));
        &chunk[id as usize % CHUNK]
    }

    /// The number of the cell of `address`; 0 where its chain does not contain it. Also returns whether the search came
    /// to an end.
    #[inline]
    fn search(&self, address: u64) -> (u32, bool) {
        let mut id = self.buckets[bucket(address)].load(Ordering::Acquire);
        // A chain that changes may lead anywhere, so the number of steps is bounded.
        for _ in 0..CHUNK * CHUNKS {
            if id == 0 {
                return (0, true);
            }
            let cell = self.cell(id);
            if cell.address.load(Ordering::Relaxed) == address {
                return (id, true);
            }
            id = cell.next.load(Ordering::Acquire);
        }
        (0, false)
    }

    #[inline]
    fn number(&self, address: u64) -> Option<u32> {
        let before = self.version.load(Ordering::Acquire);
        let (id, ended) = self.search(address);
        if id != 0 {
            return Some(id);
        }
        fence(Ordering::Acquire);
        if ended && before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before {
            return None;
        }
        let _held = self.free_cells.lock();
        Some(self.search(address).0).filter(|id| *id != 0)
    }

    /// The block that starts at `address`, for operations that need no claim.
    pub fn find(&self, address: u64) -> Option<&Cell> {
        let cell = self.cell(self.number(address)?);
        (cell.state.load(Ordering::Acquire) != NONE && cell.address.load(Ordering::Relaxed) == address).then_some(cell)
    }

    /// Claims the block that starts at `address`, once no other call has it; none where there is no such block (any
    /// more).
    #[inline]
    pub fn claim(&self, address: u64) -> Option<Claimed<'_>> {
        let mut tries = 0;
        loop {
            let id = self.number(address)?;
            let cell = self.cell(id);
            match cell
                .state
                .compare_exchange(LIVE, CLAIMED, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => {
                    let claimed = Claimed { cell, id };
                    if cell.address.load(Ordering::Relaxed) == address {
                        return Some(claimed);
                    }
                }
                Err(_) => pause(&mut tries),
            }
        }
    }

    /// Claims the cell of that number, if it is a block and no other call has claimed it.
    pub fn try_claim(&self, id: u32) -> Try<'_> {
        let cell = self.cell(id);
        match cell
            .state
            .compare_exchange(LIVE, CLAIMED, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => Try::Claimed(Claimed { cell, id }),
            Err(NONE) => Try::None,
            Err(_) => Try::Busy,
        }
    }

    /// Adds a block; returns it where there are too many.
    pub fn insert(&self, block: Box<DedicatedMemory>, requested: u64, align: u64) -> Result<(), Box<DedicatedMemory>> {
        let mut free_cells = self.free_cells.lock();
        let id = match free_cells.free.pop() {
            Some(id) => id,
            None => {
                let id = self.used.load(Ordering::Relaxed) + 1;
                if id as usize >= CHUNK * CHUNKS {
                    return Err(block);
                }
                self.used.store(id, Ordering::Release);
                id
            }
        };
        let cell = self.cell(id);
        cell.size.store(block.size, Ordering::Relaxed);
        cell.requested.store(requested, Ordering::Relaxed);
        cell.peak.store(0, Ordering::Relaxed);
        cell.resizes.store(0, Ordering::Relaxed);
        cell.align.store(align, Ordering::Relaxed);
        cell.stream_uses.store(0, Ordering::Relaxed);
        cell.tag.store(0, Ordering::Relaxed);
        cell.update_limits(&block);
        let address = block.address;
        *cell.block.lock() = Some(block);
        cell.state.store(LIVE, Ordering::Release);
        self.change(|| self.link(id, address));
        drop(free_cells);
        Ok(())
    }

    /// Removes a block, of which its owner could use `used` bytes at last, and stores its last size and what it touched in it.
    pub fn remove(&self, claimed: Claimed<'_>, used: u64) -> Option<Box<DedicatedMemory>> {
        let (cell, id) = (claimed.cell, claimed.id);
        std::mem::forget(claimed);
        let mut block = cell.block.lock().take();
        if let Some(block) = &mut block {
            block.size = cell.size.load(Ordering::Relaxed);
            block.requested = cell.requested.load(Ordering::Relaxed);
            let before = block.remainder.map_or(0, |remainder| remainder.touched);
            block.peak = cell.peak.load(Ordering::Relaxed).max(used).max(before);
        }
        let mut free_cells = self.free_cells.lock();
        self.change(|| self.unlink(id));
        cell.state.store(NONE, Ordering::Release);
        free_cells.free.push(id);
        block
    }

    /// Moves the block to `address`.
    pub fn move_to(&self, claimed: &Claimed<'_>, address: u64) {
        let _held = self.free_cells.lock();
        self.change(|| {
            self.unlink(claimed.id);
            self.link(claimed.id, address);
        });
    }

    /// Changes chains, under the lock of `free_cells`.
    fn change(&self, change: impl FnOnce()) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        self.version.store(version + 2, Ordering::Release);
    }

    fn link(&self, id: u32, address: u64) {
        let (cell, head) = (self.cell(id), &self.buckets[bucket(address)]);
        cell.address.store(address, Ordering::Relaxed);
        cell.next.store(head.load(Ordering::Relaxed), Ordering::Release);
        head.store(id, Ordering::Release);
    }

    fn unlink(&self, id: u32) {
        let cell = self.cell(id);
        let next = cell.next.load(Ordering::Relaxed);
        let mut at = &self.buckets[bucket(cell.address.load(Ordering::Relaxed))];
        while at.load(Ordering::Relaxed) != id {
            at = &self.cell(at.load(Ordering::Relaxed)).next;
        }
        at.store(next, Ordering::Release);
        cell.address.store(0, Ordering::Relaxed);
    }

    /// Every live block, with its number.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Cell)> {
        (1..=self.used.load(Ordering::Acquire))
            .map(|id| (id, self.cell(id)))
            .filter(|(_, cell)| cell.state.load(Ordering::Acquire) != NONE)
    }
}

/// Waits a moment: hardly at all at first, because other calls mostly hold a block only briefly.
#[cold]
fn pause(tries: &mut u32) {
    *tries += 1;
    match tries {
        0..64 => hint::spin_loop(),
        64..256 => thread::yield_now(),
        _ => thread::sleep(std::time::Duration::from_micros(50)),
    }
}
