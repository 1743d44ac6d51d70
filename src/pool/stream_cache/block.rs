//! What is known of one block without the pool's lock.
//!
//! A descriptor never moves, and its number is that of its node in the free-space bookkeeping. So a number read from
//! the index may be followed at any time. The block's [`State`] decides which thread may use the rest: only the thread
//! that moved it out of [`State::Live`] may free the block.
//!
//! A block that a stream's cache handed out has that cache as its *home*. It is claimed under the home's lock alone,
//! with plain loads and stores, because a free on the block's own stream holds that lock anyway. A block without a home
//! is claimed by a compare-and-swap. Its address is compared after the claim, when it cannot change any more: a bad
//! free may come with the number of a block that is gone, and the owner's free waits for that long. State and home are
//! one word, so that one kind cannot be mistaken for the other.

use std::ptr;

use crate::pool::free_space::NodeId;
use crate::pool::stream_cache::{Key, StreamCache};
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::sync::{OnceBox, boxed, broken, thread};

/// The state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum State {
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
    /// A [`State`], and for a live block its home.
    state_and_home: AtomicPtr<StreamCache>,
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
    pub fn state(&self) -> State {
        match self.state_and_home.load(Ordering::Acquire).addr() & STATES {
            0 => State::None,
            1 | 4 => State::Live,
            2 => State::Cached,
            _ => State::Pending,
        }
    }

    /// Whether the block is in use.
    #[inline]
    pub fn is_live(&self) -> bool {
        is_live(self.state_and_home.load(Ordering::Acquire))
    }

    /// Hands out the block. The caller holds the pool's lock, or the lock of the cache that held the block.
    #[inline]
    pub fn hand_out(&self, home: Option<&StreamCache>) {
        self.state_and_home.store(live(home), Ordering::Release);
    }

    /// Sets a state that is not live. The caller has claimed the block, or holds the lock of the cache that holds it.
    #[inline]
    pub fn become_free(&self, state: State) {
        debug_assert_ne!(state, State::Live);
        self.state_and_home
            .store(ptr::without_provenance_mut(state as usize), Ordering::Release);
    }

    /// Claims a live block at `address` whose home is `home`; the caller holds the home's lock. False where the block
    /// is not live, is not (or no longer) at that address, or has another home.
    #[inline]
    pub fn claim_at_home(&self, home: &StreamCache, address: u64, to: State) -> bool {
        let mine = self.state_and_home.load(Ordering::Acquire) == live(Some(home));
        let mine = mine || broken("a claim at home compares the state");
        if mine && self.address.load(Ordering::Relaxed) == address {
            self.become_free(to);
            return true;
        }
        false
    }

    /// Claims a live block at `address` for its end, and returns the key of its home: the stream that it was allocated on.
    /// An error where the block is not live, or is not (or no longer) at that address. The caller holds no cache's lock.
    #[cold]
    pub fn claim(&self, address: u64) -> Result<Option<Key>, Gone> {
        let home = self.claim_as(address, true)?;
        Ok(home.map(|(_, key)| key))
    }

    /// As [`Block::claim`], for a call that hands the block out again or ends its use of the home, which is returned and
    /// keeps its key until then.
    #[cold]
    pub fn claim_for_resize(&self, address: u64) -> Result<Option<&StreamCache>, Gone> {
        let home = self.claim_as(address, false)?;
        Ok(home.map(|(home, _)| home))
    }

    fn claim_as(&self, address: u64, ends: bool) -> Result<Option<(&StreamCache, Key)>, Gone> {
        loop {
            let word = self.state_and_home.load(Ordering::Acquire);
            if word.addr() & STATES == State::Claimed as usize {
                if broken("the owner's free waits for a thread that checks the block") {
                    return Err(Gone);
                }
                thread::yield_now();
                continue;
            }
            if !is_live(word) {
                return Err(Gone);
            }
            let home = word.map_addr(|word| word & !STATES);
            // SAFETY: a word with a home was made of a reference to a cache. Caches live as long as their allocator,
            // from which the caller borrows the block.
            let Some(home) = (unsafe { home.as_ref() }) else {
                let claimed = ptr::without_provenance_mut(State::Claimed as usize);
                let exchanged =
                    self.state_and_home
                        .compare_exchange(word, claimed, Ordering::AcqRel, Ordering::Relaxed);
                if exchanged.is_err() && !broken("a claim of a block without a home is one step") {
                    continue;
                }
                let there = self.address.load(Ordering::Relaxed) == address;
                if there || broken("a claim compares the address") {
                    self.become_free(State::Pending);
                    return Ok(None);
                }
                // A bad free raced with the reuse of the number for another block. That block stays as it is.
                self.hand_out(None);
                return Err(Gone);
            };
            let mut held = (!broken("a claim with a home holds its lock")).then(|| home.inner.lock());
            if self.claim_at_home(home, address, State::Pending) {
                if let Some(inner) = held.as_mut().filter(|_| ends) {
                    inner.in_use = inner.in_use.wrapping_sub(1);
                }
                return Ok(Some((home, home.key())));
            }
            drop(held);
            // Another thread claimed it; or it was freed and handed out again, and has another home now.
            if self.state_and_home.load(Ordering::Acquire) == word {
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
    state == State::Live as usize || state == State::Claimed as usize
}

fn live(home: Option<&StreamCache>) -> *mut StreamCache {
    let home = home.map_or(ptr::null_mut(), |home| ptr::from_ref(home).cast_mut());
    home.map_addr(|home| home | State::Live as usize)
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
            state_and_home: AtomicPtr::new(ptr::null_mut()),
            next: AtomicU32::new(0),
            capture: AtomicU32::new(0),
            stream_uses: AtomicU32::new(0),
            resizable: AtomicU32::new(0),
            tag: std::sync::atomic::AtomicU32::new(0),
        }
    }
}
