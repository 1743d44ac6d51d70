//! Deferred reclamation: when freed memory becomes reusable, and for which callers.
//!
//! Freed memory that waits for the same thing is a *set* ([`sets`]): who need not wait for it, what every other caller waits
//! for, and the memory. A free sends its block to one of these places (`free.rs`, `Disposition`), and what ends a wait sends
//! it on:
//!
//! ```text
//!  a free                      set: asker, wait                                then
//!
//!  on its stream ────────────► the cache ─flush─► its arena ─┐
//!    from another cache ─────► its arena ────────────────────┴─ share ───────► common, as far as an event covers it and is complete
//!    a range of its own ─────► its stream     Streams: the next event ───────► the range cache, or the driver
//!  used on several streams ──► no one         Streams: an event of each ─────► home: the arena that it was handed out from
//!  without a stream ─────────► no one         Filed ─cover─► Contexts ───────► home; common and due for the driver
//!                                             ▲      ▲
//!  on a stream without an id ► that handle    │      Event ──────────────────► common; filed where the event is lost
//!  inside its capture ───────► that stream    Graph ─────────────────────────► its stream's arena, behind the next event
//!  of a graph, elsewhere ────► no one         Graph ─────────────────────────► filed
//! ```
//!
//! | what | where | what moves it on |
//! |---|---|---|
//! | the cache | [`stream_cache`](crate::pool::stream_cache) | a hit hands it out; `flush` makes it the arena's |
//! | an arena, common | [`free_space`](crate::pool::free_space) | requests; `share`, `send_guests_home`, decay |
//! | a set | [`sets`] | `cover` records events, a poll finds what is complete (`pending`), `end_waits` returns it |
//! | sets that wait for graphs | [`graphs`] knows each graph's | `reclaim_graphs` |
//!
//! An arena is a set, too: its stream need not wait, and other callers wait for its events. But requests are cut from it, and
//! each of its ranges has a number of an event of its own. So it lies in the free space, where ranges coalesce.
//!
//! `decide` says when events are recorded.
//!
//! Uses: dedicated, free_space, physical, stream_cache.

mod contexts;
mod cover;
pub mod free;
mod free_dedicated;
pub mod graphs;
mod later;
mod oneshot;
mod own_context;
pub mod pending;
pub mod per_free_events;
mod poll;
pub mod sets;
pub mod stream_uses;
mod streams;
pub mod synchronization;
mod vacate;
pub mod wait;

pub use contexts::Contexts;
pub use own_context::OwnContext;

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
    /// With how many owners streams that are gone are looked for.
    look_at: usize,
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
            look_at: vacate::FIRST_LOOK,
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
        self.pending.sets.is_empty() && self.graphs.is_empty()
    }
}
