//! All that one device owns: its window, the memory behind it, and the grace of what was freed.
//!
//! A request that its stream's cache cannot meet comes to [`Pool::allocate`], which holds the pool's one lock and climbs the
//! ladder (`ladder.rs`); a free that is not a push into that cache comes to `free.rs`. The lock order is pool, then stream
//! cache; nothing is waited for under either. This folder depends on `driver`, `config`, `error`, `stats` and `sync`
//! only, and tells `record` what happens.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::config::ReleaseThreshold;
use crate::driver::{Capture, Context, Driver, DriverError, Failure, HandleKind, Stream};
use crate::error::{Error, Result};
use crate::record::Recorder;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, broken};

mod admin;
pub mod beside;
pub mod block;
mod build;
pub mod calls;
mod capture;
mod churn;
pub mod classes;
mod free;
pub mod grace;
pub mod heap;
mod in_use;
pub mod index;
mod join;
mod ladder;
mod lock;
mod lost;
mod mapping;
mod nameless;
mod oneshot;
mod resizable;
pub mod rule;
mod settle;
mod shared;
mod space;
mod standalone;
pub mod stream_cache;
mod synchronise;
mod tags;
#[cfg(test)]
mod tests;
mod touch;
mod wait;
mod walk;

#[cfg(loom)]
pub use lock::Lock;

use beside::Beside;
use block::{Block, Blocks};
use calls::{Calls, UNIDENTIFIED};
use capture::Captures;
use churn::Churn;
use grace::Grace;
use heap::{Heap, NodeId};
use in_use::InUse;
use mapping::Mapping;
use rule::SegmentRule;
use shared::Uses;
use space::Space;
use stream_cache::{StreamCache, StreamCaches};
use walk::Marks;

pub use build::Memory;
pub use resizable::Special;
pub use walk::Held;

/// The largest alignment a request may ask for.
pub const MOST_ALIGNED: u64 = 2 << 20;

/// What of the options concerns a pool.
#[derive(Debug, Clone)]
pub struct Options {
    /// How pieces are carved.
    pub rule: SegmentRule,
    /// Bytes; 0: none.
    pub limit: u64,
    /// What stays reserved.
    pub release_threshold: ReleaseThreshold,
    /// The longest wait before out of memory.
    pub wait: Duration,
    /// Each request is one driver allocation.
    pub passthrough: bool,
    /// An unmapped page behind each block.
    pub guard: bool,
    /// A byte over fresh and freed memory.
    pub fill: Option<u8>,
    /// The host's memory, pinned: the host may use what it is given at once, whatever the stream.
    pub pinned: bool,
    /// Properties of physical memory.
    pub kind: HandleKind,
    /// Devices beside its own that may touch it.
    pub peers: Vec<i32>,
    /// Whether each of them must; else those that can.
    pub peers_must: bool,
}

/// Bytes and counts that are read without the lock.
#[derive(Default)]
pub struct Counters {
    /// Asked for, of what was not allocated through a stream cache.
    pub requested: AtomicU64,
    /// Freed, for nobody yet.
    pub pending: AtomicU64,
    /// Requests met, of those not met by a stream cache.
    pub allocations: AtomicU64,
    /// Blocks taken back, of those not taken by a stream cache.
    pub frees: AtomicU64,
    /// Requests refused for want of memory.
    pub out_of_memory: AtomicU64,
    /// Successful resizes, of those not counted in a block that is out.
    pub reallocations: AtomicU64,
    /// Resizes that changed the address.
    pub moves: AtomicU64,
    /// Bytes copied by resizes.
    pub bytes_copied: AtomicU64,
    /// Shrinks that left memory over.
    pub partings: AtomicU64,
}

/// What the pool's lock protects.
struct Core {
    heap: Heap,
    mapping: Mapping,
    grace: Grace,
    captures: Captures,
    uses: Uses,
    /// The pool's hunger when everything freed was last covered.
    covered_hunger: u64,
    /// The hunger up to which a pool that starved once is still short of memory.
    short: u64,
    /// Contexts that have used the pool, with the ids seen then.
    contexts: Vec<(Context, u64)>,
    /// How often one was forgotten: see [`Pool::forgotten`].
    forgotten: Arc<AtomicU64>,
    /// The one driver calls are made in where none of the device is current.
    home: Home,
    churn: Churn,
    limit: u64,
    reserved_peak: u64,
    /// The limit was fixed by the caller's memory.
    fixed: bool,
    /// Everything was given back.
    closed: bool,
    /// How many wait for an event, without the lock.
    waiting: u32,
}

/// One device's memory.
pub struct Pool {
    /// Its number.
    pub device: i32,
    /// See [`Options`].
    pub options: Options,
    calls: Arc<Calls>,
    space: Arc<Space>,
    /// The blocks by number.
    pub blocks: Blocks,
    caches: Arc<StreamCaches>,
    /// See [`Counters`].
    pub counters: Counters,
    in_use: InUse,
    /// How often a request had to go beyond its own: streams then stamp what they hold.
    pub hunger: AtomicU64,
    /// How often a request had to wait, or to take from another stream soon after one had: memory is short, and streams stamp
    /// what they free.
    pub starvation: AtomicU64,
    /// So many bytes of other streams, freed on one, are worth a stamp.
    pub worth: AtomicU64,
    /// How often a context that had used the pool was forgotten: another one may come to its handle then.
    pub forgotten: Arc<AtomicU64>,
    dead: OnceLock<String>,
    core: Mutex<Core>,
    beside: Beside,
    recorder: Arc<Recorder>,
    marks: Marks,
    tags: tags::Tags,
}

/// A request's stream, as the allocator found it.
pub struct Turn<'a> {
    /// Its cache.
    pub cache: &'a StreamCache,
    /// The handle, valid during the call.
    pub stream: Stream,
    /// Its id; 1 where streams are trusted, 0 where the driver has none.
    pub id: u64,
    /// What it says of capture.
    pub capture: Capture,
}

/// What is asked of a pool.
#[derive(Debug, Clone, Copy)]
pub struct Want {
    /// Bytes, as carved.
    pub size: u64,
    /// Bytes, as asked.
    pub requested: u64,
    /// A power of two, at least the rule's start.
    pub align: u64,
}

impl Pool {
    /// The block that starts at `address`; none where that is no block of this window.
    #[inline]
    pub fn find(&self, address: u64) -> Option<(NodeId, &Block)> {
        let id = self.space.index.get(self.space.offset(address)?);
        (id != 0).then(|| (id, self.blocks.get(id)))
    }

    /// Whether the address lies in the window, or is a block beside it.
    pub fn knows(&self, address: u64) -> bool {
        self.space.offset(address).is_some() || self.beside.find(address).is_some()
    }

    /// Why the pool is dead, if it is.
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

    /// What a failed driver call means to a caller. A context with a sticky error kills the pool. One that was destroyed
    /// does not: a thread can have such a context current (cuCtxDestroy), and [`Pool::check_context`] looks at the pool's own.
    fn failed(&self, error: DriverError) -> Error {
        if error.failure == Failure::ContextDead {
            self.die(error.to_string());
        }
        Error::Driver(error)
    }

    /// Makes driver calls possible: in the current context where it is of this device, else in the pool's home.
    fn enter(&self, core: &Core) -> Result<calls::Entered<'_>> {
        let here = self
            .calls
            .ask(|driver| driver.current_device())
            .map_err(|error| self.failed(error))?;
        // A default stream means another one in another context: what is not answered is not guessed.
        let current = if here == Some(self.device) {
            self.calls
                .ask(|driver| driver.current_context())
                .map_err(|error| self.failed(error))?
        } else {
            None
        };
        let context = current.unwrap_or(core.home.context);
        self.calls.enter(context).map_err(|error| self.failed(error))
    }

    /// Refuses to go on where the pool's home was reset: no handle of it may be used again. A home that was created and
    /// destroyed by the application is left for another one.
    fn check_context(&self, core: &mut Core) -> Result<()> {
        let gone = core.home.context;
        if !self.calls.is_gone(gone, core.home.id) {
            return Ok(());
        }
        if core.home.primary {
            return Err(self.failed(calls::refused("cuCtxGetId", Failure::ContextDead)));
        }
        self.drop_context(core, gone);
        self.move_home(core)
    }

    /// The device's primary context is the pool's home from now on.
    fn move_home(&self, core: &mut Core) -> Result<()> {
        core.home = Home::primary(&self.calls, self.device).map_err(|error| self.failed(error))?;
        self.calls.set_home(core.home.context);
        let noted = core.note_context(&self.calls, core.home.context);
        noted.map_err(|error| self.failed(error))
    }

    /// The driver underneath.
    pub fn driver(&self) -> &dyn Driver {
        self.calls.driver()
    }
}

impl Core {
    /// Refuses a request that found the pool alive and got the lock after the allocator was closed: the window belongs to
    /// somebody else by now.
    fn still_open(&self) -> Result<()> {
        if self.closed && !broken("a closed pool is left alone") {
            return Err(Error::Dead("the allocator was destroyed".into()));
        }
        Ok(())
    }

    /// A context uses the pool from now on: what is freed without a stream waits for its work too. An error where it does not
    /// tell who it is, for then nobody would notice another one at its handle.
    fn note_context(&mut self, calls: &Calls, context: Context) -> crate::driver::Result<()> {
        let id = calls.context_id(context)?;
        match self.contexts.iter_mut().find(|(known, _)| *known == context) {
            Some((_, known)) if *known == id => return Ok(()),
            // No event of the pool's is of a context without an id, so it does not matter whether this is the one that was
            // noted: one that is gone took its work with it.
            Some((_, known)) if *known == UNIDENTIFIED => {
                *known = id;
                return Ok(());
            }
            // Another context at a handle that was known: the old one is gone.
            Some(_) => self.forget_context(context),
            None => {}
        }
        self.contexts.push((context, id));
        Ok(())
    }

    /// As [`Core::note_context`] for a free, which is not refused. A context whose id the driver does not tell counts, and
    /// nothing is covered before it is identified.
    fn note_context_of_free(&mut self, calls: &Calls, context: Context) {
        let known = |core: &Core| core.contexts.iter().any(|(known, _)| *known == context);
        match self.note_context(calls, context) {
            Err(error) if !calls::is_of_no_context(&error) && !known(self) => {
                self.contexts.push((context, UNIDENTIFIED));
            }
            _ => {}
        }
    }

    /// A context is gone, and what was known of it goes.
    fn forget_context(&mut self, context: Context) {
        self.contexts.retain(|(known, _)| *known != context);
        self.grace.context_gone(context);
        self.forgotten.fetch_add(1, Ordering::Release);
    }

    fn context_handles(&self) -> Vec<Context> {
        self.contexts.iter().map(|(context, _)| *context).collect()
    }
}

/// The context a pool makes its driver calls in.
#[derive(Debug, Clone, Copy)]
struct Home {
    context: Context,
    /// The driver's id of it; 0 where it has none.
    id: u64,
    /// The device's primary context, which the pool has retained.
    primary: bool,
}

impl Home {
    /// The device's primary context, retained.
    fn primary(calls: &Calls, device: i32) -> crate::driver::Result<Home> {
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

    /// The current context where it is of `device` and not the primary one, which is retained instead.
    fn find(calls: &Calls, device: i32) -> crate::driver::Result<Home> {
        let here = calls.ask(|driver| driver.current_device()).unwrap_or(None) == Some(device);
        let current = if here {
            calls.ask(|driver| driver.current_context())?
        } else {
            None
        };
        // A primary context costs device memory: where nobody has made one, the application's own will do.
        match current {
            Some(context) if !calls.ask(|driver| driver.primary_active(device))? => Ok(Home {
                context,
                id: calls.context_id(context)?,
                primary: false,
            }),
            _ => Home::primary(calls, device),
        }
    }
}

/// Whether a context that has used the pool is still there; if not, its events are others' by now. None where the driver does
/// not tell. The device's primary context is looked at before each request.
fn is_there(calls: &Calls, home: &Home, contexts: &[(Context, u64)], context: Context) -> Option<bool> {
    if home.primary && home.context == context {
        return Some(true);
    }
    match contexts.iter().find(|(known, _)| *known == context) {
        Some((_, id)) => calls.is_there(context, *id),
        None => Some(false),
    }
}
