//! What a stream has freed and may reuse, behind a lock of its own.
//!
//! A cache is found by the stream's handle, and serves the stream with the id that the last allocation saw. A stream may
//! be destroyed, and its handle may come back as another stream. The next allocation then sees another id. The blocks of
//! the earlier stream become an orphan's, and only completion events can release them. So a block that is freed into the
//! cache of a destroyed stream is never handed out too early. A free does not name its stream to the driver. It queries
//! which context is current, so that reclamation also waits for the work of the new stream's context.
//!
//! Uses: free_space.

pub mod block;
pub mod classes;
pub mod credits;
mod flush;
pub mod hit;
pub mod lifetimes;
pub mod list;
pub mod lock;
pub mod peak;
pub mod table;

use crate::driver::{Context, Stream};
use crate::pool::decide::{EAGER_FREES, StreamTrigger, Uncovered, of_stream};
use crate::pool::driver_calls::Identity;
use crate::pool::free_space::{End, FreeSpace, NodeId, Owner};
use crate::pool::stream_cache::classes::Classes;
use crate::pool::stream_cache::credits::Credits;
use crate::pool::stream_cache::lifetimes::Lifetimes;
use crate::pool::stream_cache::lock::Lock;
use crate::pool::stream_cache::peak::Balance;
use crate::pool::stream_cache::table::KeyCell;
use crate::pool::{Pool, Want};
use crate::sync::atomic::Ordering;
use crate::sync::{OnceBox, broken};
use block::{Block, BlockState};

pub use table::StreamCaches;

/// What a stream handle means. The handle of a default stream is complete only with the current context and the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The handle; null is [`Stream::LEGACY`].
    pub stream: Stream,
    /// The current context for default streams; otherwise 0.
    pub context: usize,
    /// The thread for the per-thread default stream; otherwise 0.
    pub thread: usize,
}

impl Key {
    /// A default stream of `context`; the per-thread one is the calling thread's.
    pub fn default_stream(stream: Stream, context: Context) -> Key {
        let (stream, thread) = match stream {
            // SAFETY: `pthread_self` takes no argument and always succeeds.
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
pub struct ServedStream {
    /// The driver's id of the stream.
    pub id: u64,
    /// The stream's device.
    pub device: i32,
    /// The owner of the free space that its blocks become.
    pub owner: Owner,
    /// The stream's context.
    pub context: Context,
}

/// What a cache has done for the streams of its handle.
pub enum Service {
    /// Nothing: no stream of this handle has allocated yet, or none that is left has.
    Unused,
    /// A stream allocated while it captured. Such a stream cannot be asked for its id, so it owns nothing outside its
    /// capture.
    CapturedOnly,
    /// It serves this stream.
    Serving(ServedStream),
    /// The stream that it served is gone, or the handle is another device's now. What the stream freed is an orphan's.
    Retired,
}

/// A cache's contents.
pub struct Inner {
    /// What the cache does.
    pub service: Service,
    /// The device whose pool knows the context of the last free here, that context, and how many contexts the pool had
    /// forgotten then: see [`Pool::note_free_context`].
    pub known_context: Option<(i32, Context, u64)>,
    /// The same of a green context, with its identity.
    pub known_green: Option<((i32, Context, u64), Identity)>,
    /// Blocks ready for reuse.
    pub ready: Classes,
    /// The number of the completion event that will cover what is freed now.
    pub next_event: u64,
    /// Bytes freed since the last completion event.
    pub uncovered: u64,
    /// Foreign frees since the last completion event: frees of blocks that were allocated elsewhere.
    pub foreign_frees: u64,
    /// The pressure epoch when a completion event was last recorded for it.
    pub pressure_epoch: u64,
    /// Something waits for the stream's next completion event.
    pub awaited: bool,
    /// The pool's `shortages` when last read.
    pub shortages: u64,
    /// How many more frees may record a completion event because of `shortages`.
    pub eager_frees: u32,
    /// The pool's number of the capture in which this stream was last seen; 0 means that it was not capturing.
    pub capture: u32,
    /// The device of that capture.
    pub capture_device: i32,
    /// Blocks in use that have this cache as their origin, in every device's pool, and those that are about to be handed out.
    pub in_use: u64,
    /// Requests satisfied here.
    pub allocations: u64,
    /// Blocks taken back here.
    pub frees: u64,
    /// The sum of both when the pool last gave up what unused caches hold.
    pub calls_before: u64,
    /// The sum when the pool last looked for streams that are gone.
    pub calls_looked_at: Option<u64>,
    /// Bytes requested minus requested bytes taken back here; may be negative.
    pub requested: i64,
    /// Bytes handed out minus bytes taken back here: see [`peak`].
    pub balance: Balance,
    /// The device in whose pool's list of caches that hold blocks this one is.
    pub dirty: Option<i32>,
    /// Stream queries made.
    pub queries: u64,
    /// Bytes of tags that were freed here.
    pub credits: Credits,
    /// The device in whose pool's list of caches with credits this one is.
    pub credited: Option<i32>,
    /// How long its blocks live.
    pub lifetimes: Lifetimes,
}

/// The cache of one stream handle. Two caches share no cache line, and no pair of lines that the processor fetches
/// together.
#[repr(align(128))]
pub struct StreamCache {
    /// The key that finds it: see [`table`].
    key: KeyCell,
    /// The contents.
    pub inner: Lock<Inner>,
    next: OnceBox<StreamCache>,
}

impl StreamCache {
    fn new(key: Key) -> StreamCache {
        StreamCache {
            key: KeyCell::new(key),
            inner: Lock::new(Inner::default()),
            next: OnceBox::new(),
        }
    }
}

impl Default for Inner {
    fn default() -> Inner {
        Inner {
            service: Service::Unused,
            known_context: None,
            known_green: None,
            ready: Classes::default(),
            next_event: 1,
            uncovered: 0,
            foreign_frees: 0,
            pressure_epoch: 0,
            awaited: false,
            shortages: 0,
            eager_frees: 0,
            capture: 0,
            capture_device: 0,
            in_use: 0,
            allocations: 0,
            frees: 0,
            calls_before: 0,
            calls_looked_at: None,
            requested: 0,
            balance: Balance::default(),
            dirty: None,
            queries: 0,
            credits: Credits::default(),
            credited: None,
            lifetimes: Lifetimes::default(),
        }
    }
}

impl Inner {
    /// The stream that this cache serves.
    #[inline]
    pub fn served(&self) -> Option<&ServedStream> {
        match &self.service {
            Service::Serving(served) => Some(served),
            Service::Unused | Service::CapturedOnly | Service::Retired => None,
        }
    }

    /// The owner of what this cache's stream freed, if the stream is of that device.
    pub fn owner_on(&self, device: i32) -> Option<Owner> {
        let served = self.served().filter(|served| served.device == device);
        served.map(|served| served.owner)
    }

    /// Whether this cache may hold blocks of that device.
    #[inline]
    pub fn serves(&self, device: i32) -> bool {
        self.served().is_some_and(|of| of.device == device)
    }

    /// Whether another key may have the cache: it serves no stream, and no block and no capture that runs names it.
    pub fn is_vacant(&self) -> bool {
        let is_named = self.in_use > 0 && !broken("a cache that blocks name keeps its key");
        !is_named && self.capture == 0 && self.served().is_none()
    }

    /// Whether the pool knows the context of a free that is made now.
    #[inline]
    pub fn knows_context(&self, pool: &Pool, context: Context) -> bool {
        self.known_context == Some((pool.device, context, pool.forgotten.load(Ordering::Acquire)))
    }

    /// Hands out a block with this cache as its origin. `cache` is the cache whose contents these are.
    #[inline]
    pub fn hand_out(&mut self, cache: &StreamCache, block: &Block) {
        self.in_use += 1;
        block.hand_out(Some(cache));
    }

    /// Claims a live block at `address` whose origin `cache` is: see [`Block::claim_at_origin`].
    #[inline]
    pub fn claim(&mut self, cache: &StreamCache, block: &Block, address: u64, to: BlockState) -> bool {
        let claimed = block.claim_at_origin(cache, address, to);
        if claimed {
            self.in_use = self.in_use.wrapping_sub(1);
        }
        claimed
    }

    /// Counts a request that `block` satisfies, and returns by how much it raises the charge: see [`Pool::charge`].
    #[inline]
    pub fn count(&mut self, block: &Block, want: &Want) -> u64 {
        block.born.store(self.allocations as u32, Ordering::Relaxed);
        self.allocations += 1;
        self.requested += want.requested as i64;
        self.balance.handed_out(want.size)
    }

    /// Takes back a claimed block of its own device, ready for this stream's next request of that size. `cache` is the
    /// cache whose contents these are.
    #[inline]
    pub fn take(&mut self, pool: &Pool, cache: &StreamCache, id: NodeId, block: &Block) {
        let size = block.size();
        self.uncovered += size;
        block.event_number.store(self.next_event, Ordering::Relaxed);
        self.frees += 1;
        self.requested -= block.requested.load(Ordering::Relaxed) as i64;
        pool.taken_back_into(cache, &mut self.balance, size);
        if self.dirty != Some(pool.device) {
            pool.add_dirty(cache, self);
        }
        self.ready.push(&pool.blocks, size, id);
    }

    /// The end of the stream's arena that serves a request. Where memory is short, all blocks lie together.
    pub fn arena_end(
        &mut self,
        size: u64,
        free_space: &FreeSpace,
        owner: Owner,
        is_short: impl FnOnce() -> bool,
    ) -> End {
        match self.lifetimes.end(size, free_space.needs_of(owner, size)) {
            End::High if is_short() => End::Low,
            end => end,
        }
    }

    /// Notes how long a block of this stream lived, which the stream frees now.
    pub fn note_lifetime(&mut self, block: &Block) {
        let age = self.age(block);
        // An earlier stream of the handle may have counted further.
        self.lifetimes.note(block.size(), if age < 1 << 31 { age } else { 0 });
    }

    /// How many requests of this stream have come since a block of it was handed out, modulo 2³². It is large for a
    /// block of an earlier stream of the handle that had made more of them.
    #[inline]
    fn age(&self, block: &Block) -> u64 {
        u64::from((self.allocations as u32).wrapping_sub(block.born.load(Ordering::Relaxed)))
    }

    /// Whether the free of a block of this stream records a completion event.
    #[inline]
    pub fn wants_event(&mut self, pool: &Pool, block: &Block, trusted: bool) -> bool {
        let shortages = pool.shortages.load(Ordering::Relaxed);
        if self.shortages != shortages {
            (self.shortages, self.eager_frees) = (shortages, EAGER_FREES);
        }
        let eager = (self.eager_frees > 0).then(|| {
            self.eager_frees -= 1;
            self.age(block)
        });
        of_stream(StreamTrigger::Free { trusted, eager }, self.since_event(pool))
    }

    /// Notes a foreign free here, and returns whether a completion event is due.
    pub fn is_event_due(&mut self, pool: &Pool) -> bool {
        self.foreign_frees += 1;
        let foreign = StreamTrigger::ForeignFree {
            frees: self.foreign_frees,
            due: pool.foreign_bytes_due.load(Ordering::Relaxed),
        };
        of_stream(foreign, self.since_event(pool))
    }

    /// What the stream has freed since its last completion event.
    #[inline]
    pub fn since_event(&self, pool: &Pool) -> Uncovered<impl Fn() -> bool> {
        Uncovered {
            bytes: self.uncovered,
            is_wanted: || self.awaited || self.pressure_epoch != pool.pressure_epoch.load(Ordering::Relaxed),
        }
    }
}
