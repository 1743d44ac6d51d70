//! The bounds of the scenarios. A scenario allows the calls that one part of the argument concerns, so that all its
//! states, or all states within a number of steps, can be visited.

use crate::model::{Bounds, Driver, Gaps, Model};

/// One or two streams, one context and one block, on a driver with all features.
const MINIMAL: Model = Model {
    driver: Driver::Full,
    bounds: Bounds {
        pieces: 1,
        handles: 2,
        contexts: 1,
        work: 2,
        declares: false,
        captures: false,
        waits: false,
        without_stream: true,
        orphans: false,
        steps: 0,
    },
    broken: None,
    gaps: Gaps {
        other_context_current: false,
    },
};

/// Streams of one context are created and destroyed.
pub fn streams() -> Model {
    MINIMAL
}

/// The same while owners stay as long as batches cover their frees, and their numbers come back afterwards.
pub fn orphans() -> Model {
    let mut model = MINIMAL;
    model.bounds.orphans = true;
    model
}

/// Two blocks, so that one may be freed after the event that covers the other.
pub fn two_blocks() -> Model {
    let mut model = MINIMAL;
    model.bounds.pieces = 2;
    model
}

/// Requests wait without the lock, and streams are released meanwhile.
pub fn waits() -> Model {
    let mut model = MINIMAL;
    model.bounds.waits = true;
    model
}

/// Blocks are declared for other streams.
pub fn declares() -> Model {
    let mut model = MINIMAL;
    model.bounds.declares = true;
    model
}

/// A stream captures, and its graph is launched on any stream.
pub fn captures() -> Model {
    let mut model = MINIMAL;
    model.bounds.captures = true;
    model
}

/// A second context is created and destroyed, and its handle, its streams' and its events' are reused.
pub fn contexts() -> Model {
    let mut model = MINIMAL;
    model.bounds.contexts = 2;
    model
}

/// The same before CUDA 12.5: contexts are synchronized.
pub fn contexts_without_events() -> Model {
    Model {
        driver: Driver::NoContextEvents,
        ..contexts()
    }
}

/// The same before CUDA 12.0: there are no ids.
pub fn contexts_without_ids() -> Model {
    Model {
        driver: Driver::NoIds,
        ..contexts()
    }
}

/// Before CUDA 12.0, with two blocks that could share an event, and a third stream that reuses them.
pub fn two_blocks_without_ids() -> Model {
    let mut model = contexts_without_ids();
    (model.bounds.pieces, model.bounds.handles, model.bounds.without_stream) = (2, 3, false);
    model
}

/// All features together.
pub fn everything() -> Model {
    let mut model = contexts();
    model.bounds = Bounds {
        pieces: 2,
        handles: 3,
        declares: true,
        captures: true,
        waits: true,
        ..model.bounds
    };
    model
}

/// Limits the number of steps.
pub fn within(mut model: Model, steps: usize) -> Model {
    model.bounds.steps = steps;
    model
}
