//! How small the numbers are. A scenario has the calls that a part of the argument is about, so that its whole space, or all
//! that so many steps lead to, can be visited.

use crate::model::{Bounds, Driver, Gaps, Model};

/// One or two streams, one context, one block, on a driver that has everything.
const LEAST: Model = Model {
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
        steps: 0,
    },
    broken: None,
    gaps: Gaps {
        other_context_current: false,
    },
};

/// Streams of one context come and go.
pub fn streams() -> Model {
    LEAST
}

/// The same with two blocks, so that one may be freed after what an event covers.
pub fn two_blocks() -> Model {
    let mut model = LEAST;
    model.bounds.pieces = 2;
    model
}

/// Requests wait without the lock, and streams are released meanwhile.
pub fn waits() -> Model {
    let mut model = LEAST;
    model.bounds.waits = true;
    model
}

/// Blocks are declared for other streams.
pub fn declares() -> Model {
    let mut model = LEAST;
    model.bounds.declares = true;
    model
}

/// A stream captures, and its graph is launched on any stream.
pub fn captures() -> Model {
    let mut model = LEAST;
    model.bounds.captures = true;
    model
}

/// A second context comes and goes, and its handle, its streams' and its events' come back.
pub fn contexts() -> Model {
    let mut model = LEAST;
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

/// The same before CUDA 12.0: nothing has an id.
pub fn contexts_without_ids() -> Model {
    Model {
        driver: Driver::NoIds,
        ..contexts()
    }
}

/// Before CUDA 12.0, with two blocks that could share an event, and a third stream that takes what they leave.
pub fn two_blocks_without_ids() -> Model {
    let mut model = contexts_without_ids();
    (model.bounds.pieces, model.bounds.handles, model.bounds.without_stream) = (2, 3, false);
    model
}

/// All of it together.
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

/// At most so many steps.
pub fn within(mut model: Model, steps: usize) -> Model {
    model.bounds.steps = steps;
    model
}
