//! All that an allocator owns on one device: its address range, the memory behind it, and freed memory that is pending.
//!
//! A request that its stream's cache cannot satisfy comes to [`Pool::allocate`]. It holds the pool's one lock and goes
//! through the slow path (`slow_path`). A free that does not simply go back into that cache comes to `reclaim`. The
//! lock order is pool, then stream cache. The pool waits for nothing while it holds either lock. This folder depends on
//! `driver`, `config`, `error`, `stats` and `sync` only, and reports events to `record`.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::driver::{Capture, Context, Driver, DriverError, Failure, HandleKind, Stream};
use crate::history::Recorder;
use crate::support::config::ReleaseThreshold;
use crate::support::error::{Error, Result};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, broken};

pub mod block;
mod build;
mod close;
pub mod dedicated;
pub mod driver_calls;
mod fill;
pub mod free_space;
mod inspect;
mod physical;
pub mod reclaim;
mod resize;
pub mod rounding;
mod slow_path;
pub mod stream_cache;
mod tags;
#[cfg(test)]
mod tests;

pub use physical::index;
#[cfg(loom)]
pub use stream_cache::lock::Lock;

use block::{Block, Blocks};
use dedicated::DedicatedTable;
use driver_calls::{DriverCalls, UNIDENTIFIED};
use free_space::{FreeSpace, NodeId};
use inspect::Marks;
use physical::PhysicalMemory;
use physical::address_space::AddressSpace;
use reclaim::Reclaimer;
use reclaim::graphs::Captures;
use reclaim::stream_uses::StreamUses;
use rounding::RoundingRule;
use slow_path::growth_allowance::GrowthAllowance;
use stream_cache::peak::InUse;
use stream_cache::{StreamCache, StreamCaches};

pub use build::MemorySource;
pub use inspect::Inspection;
pub use slow_path::dedicated::DedicatedKind;

/// The largest alignment that a request may ask for.
pub const MAX_ALIGNMENT: u64 = 2 << 20;

/// The options that concern a pool.
#[derive(Debug, Clone)]
pub struct Options {
    /// The rounding rule.
    pub rule: RoundingRule,
    /// The limit of reserved memory, in bytes; 0 means none.
    pub limit: u64,
    /// How much free memory stays reserved.
    pub release_threshold: ReleaseThreshold,
    /// The longest wait for pending memory before a request is refused.
    pub wait: Duration,
    /// Each request is one allocation from the driver.
    pub passthrough: bool,
    /// Each block is followed by an unmapped page.
    pub guard: bool,
    /// The byte that fills new and freed memory.
    pub fill: Option<u8>,
    /// The memory is pinned host memory. The host may use a block as soon as it is returned, whatever the stream.
    pub pinned: bool,
    /// The properties of the physical memory.
    pub kind: HandleKind,
    /// Other devices that may access the memory.
    pub peers: Vec<i32>,
    /// Whether each peer must be able to access the memory; otherwise only the peers that can get access.
    pub peers_must: bool,
}

/// Bytes and counts that are read without the pool's lock.
#[derive(Default)]
pub struct Counters {
    /// Requested bytes of the blocks that no stream cache counts.
    pub requested: AtomicU64,
    /// Bytes freed and not yet reusable.
    pub pending: AtomicU64,
    /// Requests satisfied outside the stream caches.
    pub allocations: AtomicU64,
    /// Blocks taken back outside the stream caches.
    pub frees: AtomicU64,
    /// Requests refused because memory ran out.
    pub out_of_memory: AtomicU64,
    /// Successful resizes, except those that a live block still counts itself.
    pub reallocations: AtomicU64,
    /// Resizes that changed the address.
    pub moves: AtomicU64,
    /// Bytes copied by resizes.
    pub bytes_copied: AtomicU64,
    /// Shrinks that left memory over.
    pub tails: AtomicU64,
}

/// The data that the pool's lock protects.
struct Core {
    free_space: FreeSpace,
    physical: PhysicalMemory,
    grace: Reclaimer,
    captures: Captures,
    uses: StreamUses,
    /// The pressure epoch (`pressure_epoch`) when context events last covered everything that was freed.
    covered_epoch: u64,
    /// The pressure epoch up to which memory still counts as short after a request had to wait.
    shortage_until: u64,
    /// Contexts that have used the pool, with the ids that they had then.
    contexts: Vec<(Context, u64)>,
    /// How often the pool forgot a context: see [`Pool::forgotten`].
    forgotten: Arc<AtomicU64>,
    /// The context for driver calls when no context of the device is current.
    home: Home,
    allowance: GrowthAllowance,
    limit: u64,
    reserved_peak: u64,
    /// External memory fixed the limit.
    is_external: bool,
    /// All memory was returned to the driver.
    closed: bool,
    /// How many requests wait for an event without the lock.
    waiting: u32,
}

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
    dead: OnceLock<String>,
    core: Mutex<Core>,
    dedicated: DedicatedTable,
    recorder: Arc<Recorder>,
    marks: Marks,
    tags: tags::Tags,
}

/// A request's stream, as the allocator found it.
pub struct StreamView<'a> {
    /// The stream's cache.
    pub cache: &'a StreamCache,
    /// The stream's handle, valid during the call.
    pub stream: Stream,
    /// The stream's id; 1 where streams are trusted, 0 where the driver has no ids.
    pub id: u64,
    /// The stream's capture state.
    pub capture: Capture,
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

    fn die(&self, reason: String) {
        if self.dead.set(reason.clone()).is_ok() {
            tracing::error!(device = self.device, %reason, "the pool is dead: its requests fail from now on");
        }
    }

    /// The error that a failed driver call means for the caller. A sticky error of a context kills the pool. A
    /// destroyed context does not: a thread can still have such a context current (cuCtxDestroy), and
    /// [`Pool::check_context`] looks at the pool's own.
    fn failed(&self, error: DriverError) -> Error {
        if error.failure == Failure::ContextDead {
            self.die(error.to_string());
        }
        Error::Driver(error)
    }

    /// Makes driver calls possible: in the current context if it is of this device, otherwise in the pool's home
    /// context.
    fn enter(&self, core: &Core) -> Result<driver_calls::Entered<'_>> {
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
        let context = current.unwrap_or(core.home.context);
        self.calls.enter(context).map_err(|error| self.failed(error))
    }

    /// Fails if the pool's home context was reset, because none of its handles may be used again. If the application
    /// created and destroyed the home context, the pool moves to another one.
    fn check_context(&self, core: &mut Core) -> Result<()> {
        let gone = core.home.context;
        if !self.calls.is_gone(gone, core.home.id) {
            return Ok(());
        }
        if core.home.primary {
            return Err(self.failed(driver_calls::refused("cuCtxGetId", Failure::ContextDead)));
        }
        self.drop_context(core, gone);
        self.move_home(core)
    }

    /// Makes the device's primary context the pool's home.
    fn move_home(&self, core: &mut Core) -> Result<()> {
        core.home = Home::primary(&self.calls, self.device).map_err(|error| self.failed(error))?;
        self.calls.set_home(core.home.context);
        let noted = core.note_context(&self.calls, core.home.context);
        noted.map_err(|error| self.failed(error))
    }

    /// The driver that the pool calls.
    pub fn driver(&self) -> &dyn Driver {
        self.calls.driver()
    }
}

impl Core {
    /// Refuses a request that found the pool alive but got the lock after the allocator was closed. The addresses may
    /// belong to another owner by then.
    fn still_open(&self) -> Result<()> {
        if self.closed && !broken("a closed pool is left alone") {
            return Err(Error::Dead("the allocator was destroyed".into()));
        }
        Ok(())
    }

    /// Notes that a context uses the pool: memory freed without a stream waits for its work too from now on. It fails
    /// where the driver does not return the context's id, because the pool could not notice another context with the
    /// same handle then.
    fn note_context(&mut self, calls: &DriverCalls, context: Context) -> crate::driver::Result<()> {
        let id = calls.context_id(context)?;
        match self.contexts.iter_mut().find(|(known, _)| *known == context) {
            Some((_, known)) if *known == id => return Ok(()),
            // The pool has no event in a context without an id. So it does not matter whether this context is the one
            // that was noted: if that one is gone, its work is gone too.
            Some((_, known)) if *known == UNIDENTIFIED => {
                *known = id;
                return Ok(());
            }
            // Another context has a known handle, so the old context is gone.
            Some(_) => self.forget_context(context),
            None => {}
        }
        self.contexts.push((context, id));
        Ok(())
    }

    /// As [`Core::note_context`], for a free, which is never refused. A context whose id the driver does not return
    /// counts too, and nothing is covered by an event before the context is identified.
    fn note_context_of_free(&mut self, calls: &DriverCalls, context: Context) {
        let known = |core: &Core| core.contexts.iter().any(|(known, _)| *known == context);
        match self.note_context(calls, context) {
            Err(error) if !driver_calls::is_of_no_context(&error) && !known(self) => {
                self.contexts.push((context, UNIDENTIFIED));
            }
            _ => {}
        }
    }

    /// A context is gone; forgets what was known of it.
    fn forget_context(&mut self, context: Context) {
        self.contexts.retain(|(known, _)| *known != context);
        self.grace.context_gone(context);
        self.forgotten.fetch_add(1, Ordering::Release);
    }

    fn context_handles(&self) -> Vec<Context> {
        self.contexts.iter().map(|(context, _)| *context).collect()
    }
}

/// The context in which a pool makes its driver calls.
#[derive(Debug, Clone, Copy)]
struct Home {
    context: Context,
    /// The context's id; 0 where the driver has none.
    id: u64,
    /// The context is the device's primary context, and the pool has retained it.
    primary: bool,
}

impl Home {
    /// Retains the device's primary context and returns it.
    fn primary(calls: &DriverCalls, device: i32) -> crate::driver::Result<Home> {
        let context = calls.submit(|driver| driver.primary_retain(device))?;
        let id = calls.context_id(context).inspect_err(|_| {
            let _ = calls.submit(|driver| driver.primary_release(device));
        })?;
        Ok(Home {
            context,
            id,
            primary: true,
        })
    }

    /// The current context if it is of `device` and is not the primary context; otherwise the primary context,
    /// retained.
    fn find(calls: &DriverCalls, device: i32) -> crate::driver::Result<Home> {
        let here = calls.query(|driver| driver.current_device()).unwrap_or(None) == Some(device);
        let current = if here {
            calls.query(|driver| driver.current_context())?
        } else {
            None
        };
        // A primary context costs device memory. While it is not active, the application's own context is used instead.
        match current {
            Some(context) if !calls.query(|driver| driver.primary_active(device))? => Ok(Home {
                context,
                id: calls.context_id(context)?,
                primary: false,
            }),
            _ => Home::primary(calls, device),
        }
    }
}

/// Whether a context that has used the pool still exists. If it does not, its events may belong to another owner. None
/// where the driver cannot answer. The device's primary context is checked before each request.
fn is_there(calls: &DriverCalls, home: &Home, contexts: &[(Context, u64)], context: Context) -> Option<bool> {
    if home.primary && home.context == context {
        return Some(true);
    }
    match contexts.iter().find(|(known, _)| *known == context) {
        Some((_, id)) => calls.is_there(context, *id),
        None => Some(false),
    }
}
