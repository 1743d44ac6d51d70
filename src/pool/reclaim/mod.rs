//! Deferred reclamation: when freed memory becomes reusable, and for which callers.
//!
//! A freed block of the pool's range goes this way. The stream that freed it may have it again from wherever its own
//! work is all that it waits for; every other caller only from the end of the way.
//!
//! ```text
//!  freed, and goes (Disposition)       waits for                          becomes
//!
//!  on its stream: cached ───────────► flush: its stream's arena ┐
//!  Arena ───────────────────────────► its stream's arena ───────┴─► common: a completion event or a batch covers it and is
//!                                                                   complete, and others need it (share)
//!  Streams ─────────────────────────► completion events (behind) ─► home: the arena that it was handed out from
//!  Contexts ────────────────────────► filed ──cover──► batch ─────► home, or common and due for the driver
//!  on a stream without an id ───────► an event of its own ────────► common (or filed, where the event is lost)
//!  Capture ─► the capture's space ──► its graph's end ────────────► its stream's arena, or filed
//!  Graph ───► kept by the graph ────► its graph's end ────────────► filed
//! ```
//!
//! | what | where | who moves it on |
//! |---|---|---|
//! | cached | [`stream_cache`](crate::pool::stream_cache) | a hit hands it out; `flush` makes it the arena's |
//! | an arena, common | [`free_space`](crate::pool::free_space) | requests; `share`, `send_guests_home`, decay |
//! | behind, filed, batches | [`pending`] | `cover` records, `poll` completes, `return_freed` returns |
//! | an event of its own | [`per_free_events`] | `poll_per_free_events` |
//! | a capture's space, a graph's | [`graphs`] | `reclaim_graphs` |
//!
//! Ranges of their own (`dedicated`) go the same way, except that they have no arena: on its stream, such a block is
//! behind the stream's next completion event, and its stream may take it back from there. Where the way ends, the range
//! is cached, or due for the driver. `decide` says when events are recorded.
//!
//! Uses: dedicated, free_space, physical, stream_cache.

mod contexts;
mod cover;
pub mod free;
mod free_dedicated;
pub mod graphs;
mod later;
mod oneshot;
pub mod pending;
pub mod per_free_events;
mod poll;
pub mod stream_uses;
mod streams;
pub mod synchronization;
pub mod wait;

pub use contexts::{Contexts, Home};

use graphs::Captures;
use pending::{Awaited, PendingFrees};
use stream_uses::StreamUses;

/// The deferred reclamation of one pool. The pool's lock protects it.
///
/// Its methods take the pool for what needs no lock (the driver, the caches, the blocks) and the memory to which they
/// return what was freed.
pub struct Reclaimer {
    pub(in crate::pool) pending: PendingFrees,
    pub(in crate::pool) contexts: Contexts,
    pub(in crate::pool) graphs: Captures,
    pub(in crate::pool) uses: StreamUses,
    /// The pressure epoch when context events last covered everything that was freed.
    covered_epoch: u64,
    /// What was freed could not be covered when that was last tried, because a capture ran.
    prevented_by_capture: bool,
    /// The driver refused the last context event because of a capture that the pool does not see.
    refused_for_capture: bool,
    /// The synchronization that [`Reclaimer::cover_later`] began last.
    synchronized_later: Option<Awaited>,
    /// What shrinks left over and is reusable now, by block and number. It is cached once a call can give the lock up.
    pub(in crate::pool) due_tails: Vec<(u32, u64)>,
    /// How many requests wait for an event without the lock.
    pub(in crate::pool) waiting: u32,
    /// A growth has waited in vain for the work that used its range before (`dedicated_memory::Remainder`).
    pub(in crate::pool) growth_waited_in_vain: bool,
}

impl Reclaimer {
    /// Nothing is pending.
    pub fn new(contexts: Contexts) -> Reclaimer {
        Reclaimer {
            pending: PendingFrees::default(),
            contexts,
            graphs: Captures::default(),
            uses: StreamUses::default(),
            covered_epoch: 0,
            prevented_by_capture: false,
            refused_for_capture: false,
            synchronized_later: None,
            due_tails: Vec::new(),
            waiting: 0,
            growth_waited_in_vain: false,
        }
    }

    /// Whether a shrink has left something over that is reusable now.
    #[inline]
    pub fn has_due_tails(&self) -> bool {
        !self.due_tails.is_empty()
    }

    /// Whether nothing that was freed is pending, and no graph holds memory.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.graphs.is_empty()
    }
}
