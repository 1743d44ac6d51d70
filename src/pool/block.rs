//! What is known of one block without any lock.
//!
//! A descriptor's place never moves and its number is that of its heap node, so a number read from the index may be followed
//! at any time. `state` decides who may touch the rest: only the one that moved it from [`LIVE`] owns the block's way back.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use once_cell::race::OnceBox;

use super::heap::NodeId;

/// Not a block.
pub const NONE: u32 = 0;
/// Handed out.
pub const LIVE: u32 = 1;
/// Freed on a stream, in that stream's cache.
pub const CACHED: u32 = 2;
/// Freed, and nobody may have it yet.
pub const PENDING: u32 = 3;

/// One block.
#[repr(align(64))]
pub struct Block {
    /// Where it starts, in the device's address space.
    pub address: AtomicU64,
    /// Bytes carved.
    pub size: AtomicU64,
    /// Bytes asked for.
    pub requested: AtomicU64,
    /// For a cached block, the stamp behind which its last use lies.
    pub stamp: AtomicU64,
    /// One of this module's states.
    pub state: AtomicU32,
    /// The next block of a list in a stream cache.
    pub next: AtomicU32,
    /// The capture it belongs to, by the pool's own number; 0 is none.
    pub capture: AtomicU32,
    /// 1: used on other streams than the one it will be freed on, as `record_stream` declared.
    pub shared: AtomicU32,
}

impl Block {
    /// Bytes carved.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Claims the way back of a live block at `address`; false where it is not live or not there (any more).
    #[inline]
    pub fn claim(&self, address: u64, to: u32) -> bool {
        if self
            .state
            .compare_exchange(LIVE, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            return false;
        }
        if self.address.load(Ordering::Relaxed) == address {
            return true;
        }
        // A bad free raced with the number's reuse for another block, which stays as it is.
        self.state.store(LIVE, Ordering::Release);
        false
    }
}

const CHUNK: usize = 1024;
const CHUNKS: usize = 1 << 14;

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
    const fn new() -> Block {
        Block {
            address: AtomicU64::new(0),
            size: AtomicU64::new(0),
            requested: AtomicU64::new(0),
            stamp: AtomicU64::new(0),
            state: AtomicU32::new(NONE),
            next: AtomicU32::new(0),
            capture: AtomicU32::new(0),
            shared: AtomicU32::new(0),
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
