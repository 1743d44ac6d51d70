//! What is known of one block without the pool's lock.
//!
//! A descriptor's place never moves and its number is that of its heap node, so a number read from the index may be followed
//! at any time. Its [`State`] decides who may touch the rest: only the one that moved it from [`State::Live`] owns the block's
//! way back.
//!
//! A block that a stream's cache handed out has that cache as its *home*, and is claimed under the home's lock alone, with
//! plain loads and stores: whoever frees it on its own stream holds that lock anyway. A block without a home is claimed by a
//! compare-and-swap, and its address compared once it can change no more: a bad free may come with the number of a block
//! that is gone, and its owner's free waits that long. State and home are one word, so that nobody mistakes the one kind for
//! the other.

use std::ptr;

use super::heap::NodeId;
use super::stream_cache::StreamCache;
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::sync::{OnceBox, broken, thread};

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum State {
    /// Not a block.
    None = 0,
    /// Handed out.
    Live = 1,
    /// Freed on a stream, in that stream's cache.
    Cached = 2,
    /// Freed, and nobody may have it yet.
    Pending = 3,
    /// Handed out, and looked at by somebody who frees it or takes it for a block that is gone.
    Claimed = 4,
}

const STATES: usize = 7;

/// What [`Block::shared`] is where not all of the other streams are known.
pub const UNKNOWN_USES: u32 = 2;

/// It may be resized, by a copy.
pub const RESIZABLE: u32 = 1;
/// A resize has claimed it, and will give it back or free it.
pub const RESIZING: u32 = 2;

/// One block.
#[repr(align(64))]
pub struct Block {
    /// Where it starts, in the device's address space.
    pub address: AtomicU64,
    /// Bytes carved.
    pub size: AtomicU64,
    /// Bytes asked for.
    pub requested: AtomicU64,
    /// For a cached block, the stamp behind which its last use lies; for one handed out, its stream's allocations until then.
    pub stamp: AtomicU64,
    /// A [`State`], and for a live block its home.
    way: AtomicPtr<StreamCache>,
    /// The next block of a list in a stream cache.
    pub next: AtomicU32,
    /// The capture it belongs to, by the pool's own number; 0 is none.
    pub capture: AtomicU32,
    /// Not 0: used on other streams than the one it will be freed on, as `record_stream` declared. See [`UNKNOWN_USES`].
    pub shared: AtomicU32,
    /// 0, [`RESIZABLE`], or [`RESIZING`].
    pub resizable: AtomicU32,
    /// The tag it was allocated under; 0 is none.
    pub tag: AtomicU32,
}

impl Block {
    /// Bytes carved.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Whether nobody but the stream it is freed on has to do with it: no graph, no other stream, no resize.
    #[inline]
    pub fn is_plain(&self) -> bool {
        let is_0 = |word: &AtomicU32| word.load(Ordering::Relaxed) == 0;
        is_0(&self.capture) && is_0(&self.shared) && is_0(&self.resizable)
    }

    /// Whether work that is not ordered before its free may use it: a graph's, or what was declared for other streams.
    pub fn is_others_too(&self) -> bool {
        self.capture.load(Ordering::Relaxed) != 0 || self.shared.load(Ordering::Relaxed) != 0
    }

    /// Whether a resize has it just now; takes a moment where it does.
    #[cold]
    pub fn is_resizing(&self) -> bool {
        let resizing = self.resizable.load(Ordering::Acquire) == RESIZING;
        if resizing {
            thread::sleep(std::time::Duration::from_micros(50));
        }
        resizing
    }

    /// What it is now.
    pub fn state(&self) -> State {
        match self.way.load(Ordering::Acquire).addr() & STATES {
            0 => State::None,
            1 | 4 => State::Live,
            2 => State::Cached,
            _ => State::Pending,
        }
    }

    /// Whether it is handed out.
    #[inline]
    pub fn is_live(&self) -> bool {
        is_live(self.way.load(Ordering::Acquire))
    }

    /// Hands it out. The caller holds the pool's lock, or that of the cache it was ready in.
    #[inline]
    pub fn hand_out(&self, home: Option<&StreamCache>) {
        self.way.store(live(home), Ordering::Release);
    }

    /// Makes it what is not live. The caller owns its way back, or holds the lock of the cache it is ready in.
    #[inline]
    pub fn become_free(&self, state: State) {
        debug_assert_ne!(state, State::Live);
        self.way
            .store(ptr::without_provenance_mut(state as usize), Ordering::Release);
    }

    /// Claims the way back of a live block at `address` whose home is `home`, whose lock the caller holds; false where it is
    /// not live, not there (any more), or has another home.
    #[inline]
    pub fn claim_at_home(&self, home: &StreamCache, address: u64, to: State) -> bool {
        let mine = self.way.load(Ordering::Acquire) == live(Some(home));
        let mine = mine || broken("a claim at home looks at the state");
        if mine && self.address.load(Ordering::Relaxed) == address {
            self.become_free(to);
            return true;
        }
        false
    }

    /// Claims the way back of a live block at `address`, whatever its home, which is returned; an error where it is not live
    /// or not there (any more). The caller holds no cache's lock.
    #[cold]
    pub fn claim(&self, address: u64) -> Result<Option<&StreamCache>, Gone> {
        loop {
            let way = self.way.load(Ordering::Acquire);
            if way.addr() & STATES == State::Claimed as usize {
                if broken("an owner waits for one who looks") {
                    return Err(Gone);
                }
                thread::yield_now();
                continue;
            }
            if !is_live(way) {
                return Err(Gone);
            }
            let home = way.map_addr(|way| way & !STATES);
            // SAFETY: a word with a home was made of a reference to a cache, and caches live as long as their allocator, which
            // the caller borrows the block from.
            let Some(home) = (unsafe { home.as_ref() }) else {
                let claimed = ptr::without_provenance_mut(State::Claimed as usize);
                let exchanged = self
                    .way
                    .compare_exchange(way, claimed, Ordering::AcqRel, Ordering::Relaxed);
                if exchanged.is_err() && !broken("a claim of a homeless block is one step") {
                    continue;
                }
                let there = self.address.load(Ordering::Relaxed) == address;
                if there || broken("a claim compares the address") {
                    self.become_free(State::Pending);
                    return Ok(None);
                }
                // A bad free raced with the number's reuse for another block, which stays as it is.
                self.hand_out(None);
                return Err(Gone);
            };
            let held = (!broken("a claim with a home holds its lock")).then(|| home.inner.lock());
            if self.claim_at_home(home, address, State::Pending) {
                return Ok(Some(home));
            }
            drop(held);
            // Somebody else claimed it; or it was freed and handed out again, and has another home now.
            if self.way.load(Ordering::Acquire) == way {
                return Err(Gone);
            }
        }
    }
}

/// A block was not there to be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

#[inline]
fn is_live(way: *mut StreamCache) -> bool {
    let state = way.addr() & STATES;
    state == State::Live as usize || state == State::Claimed as usize
}

fn live(home: Option<&StreamCache>) -> *mut StreamCache {
    let home = home.map_or(ptr::null_mut(), |home| ptr::from_ref(home).cast_mut());
    home.map_addr(|home| home | State::Live as usize)
}

const CHUNK: usize = if cfg!(loom) { 8 } else { 1024 };
const CHUNKS: usize = if cfg!(loom) { 1 << 4 } else { 1 << 14 };

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
    /// Highest number there can be.
    pub const MOST: NodeId = (CHUNK * CHUNKS - 1) as NodeId;

    /// The block of that number; numbers are at most [`Blocks::MOST`].
    #[inline]
    pub fn get(&self, id: NodeId) -> &Block {
        let chunk = self.chunks[id as usize / CHUNK].get_or_init(|| boxed(Block::new));
        &chunk[id as usize % CHUNK]
    }
}

impl Block {
    fn new() -> Block {
        Block {
            address: AtomicU64::new(0),
            size: AtomicU64::new(0),
            requested: AtomicU64::new(0),
            stamp: AtomicU64::new(0),
            way: AtomicPtr::new(ptr::null_mut()),
            next: AtomicU32::new(0),
            capture: AtomicU32::new(0),
            shared: AtomicU32::new(0),
            resizable: AtomicU32::new(0),
            tag: AtomicU32::new(0),
        }
    }
}

/// An array that is never on the stack: threads of inference servers may have little of it.
pub(super) fn boxed<T, const N: usize>(make: impl Fn() -> T) -> Box<[T; N]> {
    let slice: Box<[T]> = (0..N).map(|_| make()).collect();
    match slice.try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("a slice of N makes an array of N"),
    }
}
