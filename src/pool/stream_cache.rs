//! What was freed on a stream and is ready for that stream again, behind a lock of its own.
//!
//! A cache is found by the stream's handle and belongs to one *generation* of it: the stream with the id seen when it was last
//! allocated on. A handle may die and come back as another stream. The next allocation sees another id then, and the old
//! generation's blocks become an orphan's, which only a grace can free; so a block that is freed into a dead generation's
//! cache is never handed out too early. Freeing names no stream to the driver; it asks which context is current, so that the work of
//! the new stream's context is waited for too.

use super::Pool;
use super::block::Block;
use super::classes::Classes;
use super::heap::{NodeId, Owner};
use super::lock::Lock;
use crate::driver::{Context, Stream};
use crate::sync::OnceBox;
use crate::sync::atomic::{AtomicU64, Ordering};

/// What a stream handle means: the special ones only together with the current context, and with the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The handle; null is [`Stream::LEGACY`].
    pub stream: Stream,
    /// The current context, for special handles; else 0.
    pub context: usize,
    /// The thread, for the per-thread default stream; else 0.
    pub thread: usize,
}

impl Key {
    /// A default stream of `context`; the per-thread one is the calling thread's.
    pub fn special(stream: Stream, context: Context) -> Key {
        let (stream, thread) = match stream {
            // SAFETY: takes nothing and always succeeds.
            Stream::PER_THREAD => (stream, unsafe { libc::pthread_self() } as usize),
            _ => (Stream::LEGACY, 0),
        };
        Key {
            stream,
            context: context.0,
            thread,
        }
    }
}

/// The stream that a cache serves now.
pub struct Generation {
    /// The driver's id of it.
    pub id: u64,
    /// Its device.
    pub device: i32,
    /// Whose free space its blocks become.
    pub owner: Owner,
    /// Its context.
    pub context: Context,
}

/// A cache's contents.
pub struct Inner {
    /// None until the first allocation on the handle.
    pub generation: Option<Generation>,
    /// Whether there ever was one.
    pub joined: bool,
    /// The device whose pool knows the context of the last free here, that context, and how many the pool had forgotten then:
    /// see [`Pool::meet`].
    pub met: Option<(i32, Context, u64)>,
    /// Blocks ready for reuse.
    pub ready: Classes,
    /// The number of the stamp that will cover what is freed now.
    pub next_stamp: u64,
    /// Bytes freed since the last stamp.
    pub unstamped: u64,
    /// Frees since the last stamp of what was allocated elsewhere.
    pub strangers: u64,
    /// The pool's hunger when this stream was last stamped for it; [`AWAITED`] where its next stamp is waited for.
    pub hunger: u64,
    /// The pool's starvation when last looked at, and how many frees may take a stamp for it.
    pub starvation: u64,
    /// See `starvation`.
    pub eager: u32,
    /// The pool's number of the capture this stream was last seen in; 0: not capturing.
    pub capture: u32,
    /// Requests met and blocks taken back here.
    pub allocations: u64,
    /// See `allocations`.
    pub frees: u64,
    /// Bytes asked for less bytes given back here; may be negative.
    pub requested: i64,
    /// Bytes handed out less bytes taken back here, and what the pool knows of it: see `in_use.rs`.
    pub balance: i64,
    /// See `balance`.
    pub charged: i64,
    /// Stream queries made.
    pub queries: u64,
}

/// The hunger of a stream whose next stamp something waits for: no pool is ever as hungry.
pub const AWAITED: u64 = u64::MAX;

/// So many frees may take a stamp after a request had to wait, of blocks after which not as many more were handed out.
const EAGER: u32 = 256;

/// So many blocks of other streams, freed here, are worth a stamp.
const MANY: u64 = 16;

/// One handle's cache. Two of them share no cache line, nor a pair of lines that are fetched together.
#[repr(align(128))]
pub struct StreamCache {
    /// What it is found by.
    pub key: Key,
    /// The contents.
    pub inner: Lock<Inner>,
    next: OnceBox<StreamCache>,
}

impl StreamCache {
    fn new(key: Key) -> StreamCache {
        let inner = Inner {
            generation: None,
            joined: false,
            met: None,
            ready: Classes::default(),
            next_stamp: 1,
            unstamped: 0,
            strangers: 0,
            hunger: 0,
            starvation: 0,
            eager: 0,
            capture: 0,
            allocations: 0,
            frees: 0,
            requested: 0,
            balance: 0,
            charged: 0,
            queries: 0,
        };
        StreamCache {
            key,
            inner: Lock::new(inner),
            next: OnceBox::new(),
        }
    }
}

impl Inner {
    /// Whether blocks of that device may be its own.
    #[inline]
    pub fn serves(&self, device: i32) -> bool {
        self.generation.as_ref().is_some_and(|of| of.device == device)
    }

    /// Whether the pool knows the context of a free that is made now.
    #[inline]
    pub fn has_met(&self, pool: &Pool, context: Context) -> bool {
        self.met == Some((pool.device, context, pool.forgotten.load(Ordering::Acquire)))
    }

    /// Takes a claimed block of its own device back, ready for this stream's next request of that size.
    #[inline]
    pub fn take(&mut self, pool: &Pool, id: NodeId, block: &Block) {
        let size = block.size();
        self.unstamped += size;
        block.stamp.store(self.next_stamp, Ordering::Relaxed);
        self.frees += 1;
        self.requested -= block.requested.load(Ordering::Relaxed) as i64;
        self.balance -= size as i64;
        self.ready.push(&pool.blocks, size, id);
    }

    /// Whether the free of a block of this stream takes a stamp. An application that is torn down may have destroyed the stream,
    /// so it is named to the driver only where streams are trusted and somebody is hungry; or where memory was short not long
    /// ago, and the block is none that was kept: few were handed out since it was.
    #[inline]
    pub fn wants_stamp(&mut self, pool: &Pool, block: &Block, trusted: bool) -> bool {
        let starvation = pool.starvation.load(Ordering::Relaxed);
        if self.starvation != starvation {
            (self.starvation, self.eager) = (starvation, EAGER);
        }
        if self.eager > 0 {
            self.eager -= 1;
            let age = self.allocations.wrapping_sub(block.stamp.load(Ordering::Relaxed));
            return trusted || age < u64::from(EAGER);
        }
        trusted && self.hunger != pool.hunger.load(Ordering::Relaxed)
    }

    /// Something was freed here that was allocated on another stream: whether a stamp is due. Such a stream may never
    /// allocate, and what it frees is what the other one needs.
    pub fn is_stamp_due(&mut self, pool: &Pool) -> bool {
        self.strangers += 1;
        self.strangers >= MANY
            || self.unstamped >= pool.worth.load(Ordering::Relaxed)
            || self.hunger != pool.hunger.load(Ordering::Relaxed)
    }
}

const BUCKETS: usize = if cfg!(loom) { 1 } else { 1024 };

/// Every stream cache of an allocator. Found without a lock; never removed.
pub struct StreamCaches {
    buckets: Box<[OnceBox<StreamCache>]>,
    /// A bit for each bucket that is not empty: most are, and whoever goes through all caches does so often.
    taken: [AtomicU64; BUCKETS.div_ceil(64)],
}

impl Default for StreamCaches {
    fn default() -> StreamCaches {
        StreamCaches {
            buckets: (0..BUCKETS).map(|_| OnceBox::new()).collect(),
            taken: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl StreamCaches {
    /// The cache of `key`, made where there was none.
    #[inline]
    pub fn get(&self, key: Key) -> &StreamCache {
        let mixed = (key.stream.0 ^ key.context.rotate_left(20) ^ key.thread.rotate_left(40)) as u64;
        let bucket = (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize % BUCKETS;
        let mut cache = self.buckets[bucket].get_or_init(|| {
            self.taken[bucket / 64].fetch_or(1 << (bucket % 64), Ordering::Relaxed);
            Box::new(StreamCache::new(key))
        });
        while cache.key != key {
            cache = cache.next.get_or_init(|| Box::new(StreamCache::new(key)));
        }
        cache
    }

    /// Every cache.
    pub fn all(&self) -> impl Iterator<Item = &StreamCache> {
        let buckets = self
            .taken
            .iter()
            .zip(self.buckets.chunks(64))
            .flat_map(|(taken, buckets)| {
                let mut left = taken.load(Ordering::Acquire);
                std::iter::from_fn(move || {
                    let at = (left != 0).then_some(left.trailing_zeros())?;
                    left &= left - 1;
                    Some(&buckets[at as usize])
                })
            });
        buckets.flat_map(|bucket| std::iter::successors(bucket.get(), |cache| cache.next.get()))
    }
}
