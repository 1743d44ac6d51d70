//! The model: which driver, how small, and which rule is taken out.

use crate::rules::Rule;
use crate::state::*;

/// What a driver has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// CUDA 12.5 and later.
    Full,
    /// CUDA 12.0 to 12.4: no context events. A batch is owed a synchronisation.
    NoContextEvents,
    /// Before CUDA 12.0: no ids of streams and contexts either. Each free on a stream has an event of its own.
    NoIds,
}

/// The application may do only so much, so that the whole space can be visited.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Pieces of memory.
    pub pieces: usize,
    /// Stream handles.
    pub handles: u8,
    /// Context handles.
    pub contexts: u8,
    /// Pieces of work that differ and are not over.
    pub work: usize,
    /// Whether `record_stream` is called.
    pub declares: bool,
    /// Whether a stream is captured.
    pub captures: bool,
    /// Whether a request waits without the lock, and streams are released meanwhile.
    pub waits: bool,
    /// Whether calls without a stream are made.
    pub without_stream: bool,
    /// The most steps; 0: as many as there are.
    pub steps: usize,
}

/// Calls that the application may not make, and that the pool does not stand: see docs/ARCHITECTURE.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gaps {
    /// A free on a stream that came to a known handle, and was not allocated on, is made while another context than the
    /// stream's is current.
    pub other_context_current: bool,
}

/// Pool, device and application.
#[derive(Debug, Clone)]
pub struct Model {
    /// The driver.
    pub driver: Driver,
    /// How small.
    pub bounds: Bounds,
    /// The rule that is taken out.
    pub broken: Option<Rule>,
    /// Calls that are allowed although they are known to go wrong.
    pub gaps: Gaps,
}

impl Model {
    /// Whether the pool keeps the rule.
    pub fn holds(&self, rule: Rule) -> bool {
        self.broken != Some(rule)
    }

    /// Whether streams and contexts have ids.
    pub fn has_ids(&self) -> bool {
        self.driver != Driver::NoIds
    }

    /// Nothing was used yet: all memory is free, and the pool's own context is there.
    pub fn begin(&self) -> State {
        let mut contexts = [Life::Unused; CONTEXTS];
        contexts[0] = Life::Live;
        let mut known = [Known::No; CONTEXTS];
        known[0] = if self.has_ids() { Known::Present } else { Known::Any };
        let mut used = [false; CONTEXTS];
        used[0] = true;
        State {
            streams: Default::default(),
            contexts,
            events: Default::default(),
            work: Vec::new(),
            graph: Graph::default(),
            used,
            crossed: [false; CONTEXTS],
            pieces: vec![Place::Common; self.bounds.pieces],
            caches: Default::default(),
            ledgers: Default::default(),
            batches: Vec::new(),
            known,
            spare: [0; CONTEXTS],
            waiting: None,
            fault: None,
        }
    }
}
