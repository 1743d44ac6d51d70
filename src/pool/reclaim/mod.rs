//! Deferred reclamation: when freed memory becomes reusable, and for which callers.
//!
//! [`free`] takes back blocks that their stream's cache cannot take. [`pending`] knows which event covers which frees,
//! `cover` records events for whole contexts, and `poll` returns what they covered once they have completed. Some
//! frees follow rules of their own: streams without ids (`per_free_events`), blocks that several streams use
//! (`stream_uses`), and memory that belongs to a graph (`graphs`).
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
    put_off: bool,
    /// The driver refused the last context event because of a capture that the pool does not see.
    refused_for_capture: bool,
    /// The synchronization that [`Reclaimer::cover_later`] began last.
    synchronized_later: Option<Awaited>,
    /// How many requests wait for an event without the lock.
    pub(in crate::pool) waiting: u32,
    /// A growth has waited in vain for the work that used its range before (`dedicated_memory::Remainder`).
    pub(in crate::pool) outlasts_growth: bool,
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
            put_off: false,
            refused_for_capture: false,
            synchronized_later: None,
            waiting: 0,
            outlasts_growth: false,
        }
    }

    /// Whether nothing that was freed is pending, and no graph holds memory.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.graphs.is_empty()
    }
}
