//! What is known of one block without the pool's lock.
//!
//! A descriptor never moves, and its number is that of its node in the free-space bookkeeping. So a number read from
//! the index may be followed at any time. The block's [`BlockState`] decides which thread may use the rest: only the thread
//! that moved it out of [`BlockState::Live`] may free the block.
//!
//! A block that a stream's cache handed out has that cache as its *origin*. It is claimed under the origin's lock alone,
//! with plain loads and stores, because a free on the block's own stream holds that lock anyway. A block without an origin
//! is claimed by a compare-and-swap. Its address is compared after the claim, when it cannot change any more: a bad
//! free may come with the number of a block that is gone, and the owner's free waits for that long. State and origin are
//! one word, so that one kind cannot be mistaken for the other.

use std::ptr;

use crate::pool::free_space::NodeId;
use crate::pool::stream_cache::{Key, StreamCache};
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::sync::{OnceBox, boxed, broken, holds, thread};

/// The state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum BlockState {
    /// Not a block.
    None = 0,
    /// In use.
    Live = 1,
    /// Freed on a stream, in that stream's cache.
    Cached = 2,
    /// Freed and not yet reusable.
    Pending = 3,
    /// In use, and just now checked by a thread that frees it or that mistakes it for a block that is gone.
    Claimed = 4,
}

const STATES: usize = 7;

/// The value of [`Block::stream_uses`] where some of the other streams are unknown.
pub const UNKNOWN_USES: u32 = 2;

/// A resize has claimed the block, and will return or free it.
pub const RESIZING: u32 = 2;
/// No work from before the block can use its memory. A bit of [`Block::resizable`].
pub const COMPLETE: u32 = 4;
/// Where [`Block::resizable`] has the alignment, as a power of two.
const ALIGNMENT: u32 = 8;

/// The value of [`Block::resizable`] for a block that may be resized, by a copy, and was allocated with this alignment.
pub fn resizable(align: u64) -> u32 {
    1 | align.trailing_zeros() << ALIGNMENT
}

/// The alignment in that value.
pub fn alignment(resizable: u32) -> u64 {
    1 << (resizable >> ALIGNMENT)
}

/// One block.
#[repr(align(64))]
pub struct Block {
    /// Its start, in the device's address space.
    pub address: AtomicU64,
    /// Bytes allocated.
    pub size: AtomicU64,
    /// Bytes requested.
    pub requested: AtomicU64,
    /// The completion event that covers the last use of a block in a cache.
    pub event_number: AtomicU64,
    /// A [`BlockState`], and for a live block its origin.
    state_and_origin: AtomicPtr<StreamCache>,
    /// The next block of a list in a stream cache.
    pub next: AtomicU32,
    /// The capture that it belongs to, by the pool's own number; 0 means none.
    pub capture: AtomicU32,
    /// Not 0: `record_stream` declared uses on other streams than the one that frees the block. See [`UNKNOWN_USES`].
    pub stream_uses: AtomicU32,
    /// 0, [`resizable`], or [`RESIZING`].
    pub resizable: AtomicU32,
    /// How many requests its stream's cache had satisfied when it was handed out, modulo 2³².
    pub born: AtomicU32,
    /// The tag under which it was allocated; 0 means none, as for every block that is not in use. Only the call that
    /// allocates or has claimed the block changes it, so the models need no order of it.
    pub tag: std::sync::atomic::AtomicU32,
}

impl Block {
    /// Bytes allocated.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Whether only the stream that frees the block is concerned: no graph, no other stream, no resize.
    #[inline]
    pub fn is_plain(&self) -> bool {
        let is_0 = |word: &AtomicU32| word.load(Ordering::Relaxed) == 0;
        is_0(&self.capture) && is_0(&self.stream_uses) && is_0(&self.resizable)
    }

    /// Whether work that is not ordered before the free may use the block: a graph's work, or work on other declared
    /// streams.
    pub fn has_other_users(&self) -> bool {
        self.capture.load(Ordering::Relaxed) != 0 || self.stream_uses.load(Ordering::Relaxed) != 0
    }

    /// Whether a resize has claimed the block just now; sleeps for a moment if so.
    #[cold]
    pub fn is_resizing(&self) -> bool {
        let resizing = self.resizable.load(Ordering::Acquire) == RESIZING;
        if resizing {
            thread::sleep(std::time::Duration::from_micros(50));
        }
        resizing
    }

    /// The state of the block.
    pub fn state(&self) -> BlockState {
        match self.state_and_origin.load(Ordering::Acquire).addr() & STATES {
            0 => BlockState::None,
            1 | 4 => BlockState::Live,
            2 => BlockState::Cached,
            _ => BlockState::Pending,
        }
    }

    /// Whether the block is in use.
    #[inline]
    pub fn is_live(&self) -> bool {
        is_live(self.state_and_origin.load(Ordering::Acquire))
    }

    /// Hands out the block. The caller holds the pool's lock, or the lock of the cache that held the block.
    #[inline]
    pub fn hand_out(&self, origin: Option<&StreamCache>) {
        self.state_and_origin.store(live(origin), Ordering::Release);
    }

    /// Sets a state that is not live. The caller has claimed the block, or holds the lock of the cache that holds it.
    #[inline]
    pub fn become_free(&self, state: BlockState) {
        debug_assert_ne!(state, BlockState::Live);
        self.state_and_origin
            .store(ptr::without_provenance_mut(state as usize), Ordering::Release);
    }

    /// Claims a live block at `address` whose origin is `origin`; the caller holds the origin's lock. False where the block
    /// is not live, is not (or no longer) at that address, or has another origin.
    #[inline]
    pub fn claim_at_origin(&self, origin: &StreamCache, address: u64, to: BlockState) -> bool {
        let mine = self.state_and_origin.load(Ordering::Acquire) == live(Some(origin));
        let mine = holds("a claim at the origin compares the state", mine);
        if mine && self.address.load(Ordering::Relaxed) == address {
            self.become_free(to);
            return true;
        }
        false
    }

    /// Claims a live block at `address` for its end, and returns the key of its origin: the stream that it was allocated on.
    /// An error where the block is not live, or is not (or no longer) at that address. The caller holds no cache's lock.
    #[cold]
    pub fn claim(&self, address: u64) -> Result<Option<Key>, Gone> {
        let origin = self.claim_as(address, true)?;
        Ok(origin.map(|(_, key)| key))
    }

    /// As [`Block::claim`], for a call that hands the block out again or ends its use of the origin, which is returned and
    /// keeps its key until then.
    #[cold]
    pub fn claim_for_resize(&self, address: u64) -> Result<Option<&StreamCache>, Gone> {
        let origin = self.claim_as(address, false)?;
        Ok(origin.map(|(origin, _)| origin))
    }

    fn claim_as(&self, address: u64, ends: bool) -> Result<Option<(&StreamCache, Key)>, Gone> {
        loop {
            let word = self.state_and_origin.load(Ordering::Acquire);
            if word.addr() & STATES == BlockState::Claimed as usize {
                if broken("the owner's free waits for a thread that checks the block") {
                    return Err(Gone);
                }
                thread::yield_now();
                continue;
            }
            if !is_live(word) {
                return Err(Gone);
            }
            let origin = word.map_addr(|word| word & !STATES);
            // SAFETY: a word with an origin was made of a reference to a cache. Caches live as long as their allocator,
            // from which the caller borrows the block.
            let Some(origin) = (unsafe { origin.as_ref() }) else {
                let claimed = ptr::without_provenance_mut(BlockState::Claimed as usize);
                let exchanged =
                    self.state_and_origin
                        .compare_exchange(word, claimed, Ordering::AcqRel, Ordering::Relaxed);
                if exchanged.is_err() && !broken("a claim of a block without an origin is one step") {
                    continue;
                }
                let there = self.address.load(Ordering::Relaxed) == address;
                if holds("a claim compares the address", there) {
                    self.become_free(BlockState::Pending);
                    return Ok(None);
                }
                // A bad free raced with the reuse of the number for another block. That block stays as it is.
                self.hand_out(None);
                return Err(Gone);
            };
            let mut held = (!broken("a claim with an origin holds its lock")).then(|| origin.inner.lock());
            if self.claim_at_origin(origin, address, BlockState::Pending) {
                if let Some(inner) = held.as_mut().filter(|_| ends) {
                    inner.in_use = inner.in_use.wrapping_sub(1);
                }
                return Ok(Some((origin, origin.key())));
            }
            drop(held);
            // Another thread claimed it; or it was freed and handed out again, and has another origin now.
            if self.state_and_origin.load(Ordering::Acquire) == word {
                return Err(Gone);
            }
        }
    }
}

/// The block was not there to be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

#[inline]
fn is_live(word: *mut StreamCache) -> bool {
    let state = word.addr() & STATES;
    state == BlockState::Live as usize || state == BlockState::Claimed as usize
}

fn live(origin: Option<&StreamCache>) -> *mut StreamCache {
    let origin = origin.map_or(ptr::null_mut(), |origin| ptr::from_ref(origin).cast_mut());
    origin.map_addr(|origin| origin | BlockState::Live as usize)
}

const CHUNK: usize = if cfg!(loom) { 8 } else { 1024 };
// A unit test reaches the end of the table.
const CHUNKS: usize = match (cfg!(loom), cfg!(test)) {
    (true, _) => 1 << 4,
    (_, true) => 1 << 5,
    _ => 1 << 14,
};

/// Every block of a pool, by number.
pub struct Blocks {
    chunks: Box<[OnceBox<[Block; CHUNK]>]>,
}

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks {
            chunks: (0..CHUNKS).map(|_| OnceBox::new()).collect(),
        }
    }
}

impl Blocks {
    /// The highest possible number.
    pub const MAX: NodeId = (CHUNK * CHUNKS - 1) as NodeId;

    /// The block with that number; numbers are at most [`Blocks::MAX`].
    #[inline]
    pub fn get(&self, id: NodeId) -> &Block {
        let chunk = self.chunks[id as usize / CHUNK].get_or_init(|| boxed(Block::new));
        &chunk[id as usize % CHUNK]
    }

    /// As [`Blocks::get`], for a node that may never have been a block; none where its number is too high for one.
    #[inline]
    pub fn find(&self, id: NodeId) -> Option<&Block> {
        (id <= Blocks::MAX).then(|| self.get(id))
    }
}

impl Block {
    fn new() -> Block {
        Block {
            address: AtomicU64::new(0),
            size: AtomicU64::new(0),
            requested: AtomicU64::new(0),
            event_number: AtomicU64::new(0),
            born: AtomicU32::new(0),
            state_and_origin: AtomicPtr::new(ptr::null_mut()),
            next: AtomicU32::new(0),
            capture: AtomicU32::new(0),
            stream_uses: AtomicU32::new(0),
            resizable: AtomicU32::new(0),
            tag: std::sync::atomic::AtomicU32::new(0),
        }
    }
}
