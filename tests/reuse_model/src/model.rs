//! The model: its driver, its bounds, and the rule that is removed.

use crate::rules::Rule;
use crate::state::*;

/// The features of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// CUDA 12.5 and later.
    Full,
    /// CUDA 12.0 to 12.4: no context events. A batch needs a synchronization instead.
    NoContextEvents,
    /// Before CUDA 12.0: no ids of streams and contexts either. Each free on a stream has an event of its own.
    NoIds,
}

/// Limits of the application, so that the whole state space can be visited.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Pieces of memory.
    pub pieces: usize,
    /// Stream handles.
    pub handles: u8,
    /// Context handles.
    pub contexts: u8,
    /// The maximum of different pieces of pending work.
    pub work: usize,
    /// Whether `record_stream` is called.
    pub declares: bool,
    /// Whether a stream is captured.
    pub captures: bool,
    /// Whether a request waits without the lock, and streams are released meanwhile.
    pub waits: bool,
    /// Whether calls without a stream are made.
    pub without_stream: bool,
    /// Whether an owner that has no frees stays as long as a batch covers it. Otherwise it is forgotten at once, which has
    /// the same effect as long as its number does not serve again before (`Rule::OwnersOutliveBatches`).
    pub orphans: bool,
    /// The maximum of steps; 0: no limit.
    pub steps: usize,
}

/// Calls that the application may not make, because the pool does not support them: see docs/internals/verification.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gaps {
    /// A free on a stream that reused a known handle and has allocated nothing, while a context other than the stream's
    /// is current.
    pub other_context_current: bool,
}

/// Pool, device and application.
#[derive(Debug, Clone)]
pub struct Model {
    /// The driver.
    pub driver: Driver,
    /// The bounds.
    pub bounds: Bounds,
    /// The rule that is removed.
    pub broken: Option<Rule>,
    /// Calls that are allowed although they are known to fail.
    pub gaps: Gaps,
}

impl Model {
    /// Whether the pool follows the rule.
    pub fn holds(&self, rule: Rule) -> bool {
        self.broken != Some(rule)
    }

    /// Whether streams and contexts have ids.
    pub fn has_ids(&self) -> bool {
        self.driver != Driver::NoIds
    }

    /// The first state: all memory is free, and the pool's own context exists.
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
            sets: Sets {
                pieces: vec![Place::Common; self.bounds.pieces],
                ledgers: Default::default(),
                batches: Vec::new(),
            },
            caches: Default::default(),
            known,
            spare: [0; CONTEXTS],
            waiting: None,
            fault: None,
        }
    }
}
