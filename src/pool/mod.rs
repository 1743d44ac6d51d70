//! All that an allocator owns on one device: its address range, the memory behind it, and freed memory that is pending.
//!
//! A request that its stream's cache ([`stream_cache`]) can satisfy needs only that cache's lock. Any other request
//! holds the pool's one lock and goes through the `slow_path`. A free that does not simply go back into the cache
//! comes to [`reclaim`]. The lock order is pool, then stream cache. The pool waits for nothing while it holds either
//! lock.
//!
//! Uses: driver, history, support, sync.
//!
//! The parts, each of which uses only those above it:
//!
//! * `free_space`: what is free, in offsets
//! * `physical`: handles and segments, the address range, the memory of dedicated allocations
//! * `dedicated`: the table that finds dedicated allocations
//! * `decide`: whether an event is recorded now, and what it covers
//! * `stream_cache`: what each stream may reuse at once
//! * `reclaim`: when freed memory becomes reusable
//! * `give_back`: memory goes back to the driver without the lock
//! * `slow_path`: the phases of a request that missed its cache
//! * `resize`: growing and shrinking
//! * `decay`: what was idle for long goes back to the driver
//! * `sharing`, `budgeted_driver`: a budget of several processes
//! * `inspect`: statistics, snapshots, validation

use std::sync::{Arc, OnceLock};

use crate::driver::{Capture, Driver, DriverError, Failure, Stream};
use crate::history::Recorder;
use crate::support::error::{Error, Result};
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::sync::{Mutex, MutexGuard, broken};

mod budgeted_driver;
mod build;
mod close;
pub mod counters;
mod decay;
mod decide;
pub mod dedicated;
pub mod driver_calls;
mod fill;
pub mod free_space;
mod give_back;
mod inspect;
mod memory;
mod options;
mod physical;
pub mod reclaim;
mod recording;
mod resize;
pub mod rounding;
pub mod sharing;
mod slow_path;
pub mod stream_cache;
mod tags;
#[cfg(test)]
mod tests;

#[cfg(loom)]
pub use physical::dedicated_memory::DedicatedMemory;
pub use physical::deferred_release::Unbuilt;
pub use physical::index;
#[cfg(loom)]
pub use stream_cache::lock::Lock;

pub use counters::Counters;
use decay::Decay;
use dedicated::DedicatedTable;
use driver_calls::DriverCalls;
use free_space::NodeId;
use inspect::Marks;
use memory::Memory;
use physical::address_space::AddressSpace;
use reclaim::sets::Freed;
use reclaim::{Contexts, Reclaimer};
use slow_path::growth_allowance::GrowthAllowance;
use slow_path::rise::Rise;
use stream_cache::block::{Block, Blocks};
use stream_cache::list::CacheList;
use stream_cache::peak::InUse;
use stream_cache::{Key, StreamCaches};

pub use build::MemorySource;
pub use decay::WINDOWS;
pub use inspect::Inspection;
pub use options::Options;
pub use reclaim::free::FreedOn;
pub use slow_path::dedicated::DedicatedKind;

/// The largest alignment that a request may ask for.
pub const MAX_ALIGNMENT: u64 = 2 << 20;

/// The data that the pool's lock protects.
struct Core {
    memory: Memory,
    reclaimer: Reclaimer,
    allowance: GrowthAllowance,
    decay: Decay,
    rise: Rise,
    /// The pressure epoch up to which memory still counts as short after a request had to wait.
    shortage_until: u64,
    /// All memory was returned to the driver.
    closed: bool,
}

/// Arranges for a function to be called at regular times from now on; false where that is not possible.
pub type StartTimer = Box<dyn Fn() -> bool + Send + Sync>;

/// All memory of one allocator on one device.
pub struct Pool {
    /// The device's number.
    pub device: i32,
    /// See [`Options`].
    pub options: Options,
    calls: Arc<DriverCalls>,
    addresses: Arc<AddressSpace>,
    /// The blocks by number.
    pub blocks: Blocks,
    caches: Arc<StreamCaches>,
    /// See [`Counters`].
    pub counters: Counters,
    in_use: InUse,
    /// The caches that hold blocks.
    dirty: CacheList,
    /// The pressure epoch: how often a request could not be satisfied from its own and common free space. When it
    /// changes, streams record completion events for what they hold.
    pub pressure_epoch: AtomicU64,
    /// How often a request had to wait, or took memory from another stream soon after a request had to wait. Memory is
    /// short then, and streams record completion events for what they free.
    pub shortages: AtomicU64,
    /// A completion event is due once a stream has freed this many bytes of other streams' blocks.
    pub foreign_bytes_due: AtomicU64,
    /// How often the pool forgot a context that had used it. Another context may get the same handle afterwards.
    pub forgotten: Arc<AtomicU64>,
    /// Whether idle memory is looked for at regular times: see [`Pool::decay`].
    decaying: AtomicBool,
    /// Starts that.
    start_decay: OnceLock<StartTimer>,
    /// Whether the pool looks at regular times for other processes that are short: see [`Pool::look_for_waiters`].
    looking: AtomicBool,
    /// Starts that.
    start_looking: OnceLock<StartTimer>,
    /// Why the pool is dead, if it is.
    dead: OnceLock<String>,
    core: Mutex<Core>,
    dedicated: DedicatedTable,
    recorder: Arc<Recorder>,
    marks: Marks,
    tags: tags::Tags,
}

/// A request's stream, as the allocator found it.
pub struct StreamView {
    /// The key of the stream's cache.
    pub key: Key,
    /// The stream's handle, valid during the call.
    pub stream: Stream,
    /// The stream's id; 1 where streams are trusted, 0 where the driver has no ids.
    pub id: u64,
    /// The stream's capture state.
    pub capture: Capture,
    /// The device that the stream's cache served when the request looked there.
    pub device: Option<i32>,
}

/// What a request needs.
#[derive(Debug, Clone, Copy)]
pub struct Want {
    /// Bytes after rounding.
    pub size: u64,
    /// Bytes before rounding.
    pub requested: u64,
    /// A power of two, at least the alignment of the rounding rule.
    pub align: u64,
}

impl Pool {
    /// The bytes that the owner of a block of `requested` bytes may access.
    #[inline]
    fn usable(&self, requested: u64) -> u64 {
        self.options.rule.extent(requested).unwrap_or(u64::MAX)
    }

    /// The block that starts at `address`; none where no block of this pool's address range starts there.
    #[inline]
    pub fn find(&self, address: u64) -> Option<(NodeId, &Block)> {
        let id = self.addresses.index.get(self.addresses.offset(address)?);
        (id != 0).then(|| (id, self.blocks.get(id)))
    }

    /// Whether the address lies in the pool's address range, or belongs to a dedicated allocation.
    pub fn knows(&self, address: u64) -> bool {
        self.addresses.offset(address).is_some() || self.dedicated.find(address).is_some()
    }

    /// Fails with the reason if the pool is dead.
    #[inline]
    pub fn alive(&self) -> Result<()> {
        match self.dead.get() {
            None => Ok(()),
            Some(reason) => Err(Error::Dead(reason.clone())),
        }
    }

    fn is_dead(&self) -> bool {
        self.dead.get().is_some()
    }

    fn die(&self, reason: String) {
        if self.dead.set(reason.clone()).is_ok() {
            tracing::error!(device = self.device, %reason, "the pool is dead: its requests fail from now on");
        }
    }

    /// The error that a failed driver call means for the caller. A sticky error of a context kills the pool. A
    /// destroyed context does not: a thread can still have such a context current (cuCtxDestroy), and
    /// [`Reclaimer::check_context`] looks at the pool's own.
    fn failed(&self, error: DriverError) -> Error {
        if error.failure == Failure::ContextDead {
            self.die(error.to_string());
        }
        Error::Driver(error)
    }

    /// Takes the pool's lock for a request: the pool is alive and open, its context exists, and what graphs that are
    /// gone leave is reclaimed.
    #[inline]
    fn admit(&self) -> Result<MutexGuard<'_, Core>> {
        self.alive()?;
        let mut core = self.core.lock();
        core.still_open()?;
        let Core { memory, reclaimer, .. } = &mut *core;
        reclaimer.check_context(self)?;
        reclaimer.reclaim_graphs(self, memory);
        Ok(core)
    }

    /// Makes driver calls possible: in the current context if it is of this device, otherwise in the pool's own
    /// context.
    fn enter<'p>(&'p self, contexts: &Contexts) -> Result<driver_calls::Entered<'p>> {
        let here = self
            .calls
            .query(|driver| driver.current_device())
            .map_err(|error| self.failed(error))?;
        // A default stream means another stream in another context, so a failed query is an error here, not a guess.
        let current = if here == Some(self.device) {
            self.calls
                .query(|driver| driver.current_context())
                .map_err(|error| self.failed(error))?
        } else {
            None
        };
        let context = current.unwrap_or(contexts.own.context);
        self.calls.enter(context).map_err(|error| self.failed(error))
    }

    /// The driver that the pool calls.
    pub fn driver(&self) -> &dyn Driver {
        self.calls.driver()
    }
}

impl Core {
    /// Files what was freed: it waits for all contexts.
    fn file(&mut self, freed: Freed) {
        self.reclaimer.pending.sets.file(freed, &self.memory.free_space);
    }

    /// Refuses a request that found the pool alive but got the lock after the allocator was closed. The addresses may
    /// belong to another owner by then.
    fn still_open(&self) -> Result<()> {
        if self.closed && !broken("a closed pool is left alone") {
            return Err(Error::Dead("the allocator was destroyed".into()));
        }
        Ok(())
    }
}
