//! Why no byte has two owners, as a state machine that is checked exhaustively for small numbers.
//!
//! The argument in short, with the rules of [`rules::Rule`] that carry it:
//!
//! 1. A stream runs its work in order, so what it freed is its own at once. A stream is known by its handle and its id, because
//!    only the id never returns (`IdsAreCompared`). What a stream that is gone has freed is an orphan's.
//! 2. Another stream gets it behind a completion event: one that was recorded on the stream, in a call that was given it, after
//!    the free. A number says which frees an event covers (`NumbersAreRaisedByEvents`, `OnlyWhatTheEventCovers`).
//! 3. A caller without a stream gets it once such an event has completed (`CommonOnceComplete`).
//! 4. What is freed without a stream, on one that is gone, or on one that is not known waits for an event in every context
//!    that has used the pool (`FreesWithoutStreamWait`, `EveryKnownContext`). So every call makes its context known.
//! 5. A block that was declared for several streams waits for each of them, by handle and id; where one is not known any more,
//!    for the contexts (`DeclaredUsesCount`, `DeclaredUsesHaveIds`, `UnknownUsesWaitForContexts`).
//! 6. Contexts and events go, and their handles return. Contexts are known by ids, and with a context go its events and its
//!    own work, but not the work of other contexts that its streams had waited for (`WaitsOutliveContexts`).
//! 7. Memory of a capture is its graph's until that is gone (`GraphsOwnTheirMemory`).
//! 8. Before CUDA 12.0 there are no ids. Each free has an event of its own, which every stream waits for.
//!
//! [`application`] says which calls are legal, [`device`] what CUDA makes of them, [`pool`] and [`requests`] what the pool
//! does, and [`check`](check()) what must hold in every state. [`scenario`] says how small the numbers are.

pub mod application;
mod canonical;
mod check;
pub mod device;
pub mod model;
pub mod pool;
pub mod requests;
pub mod rules;
pub mod scenario;
pub mod settle;
pub mod state;
mod story;

pub use check::{Outcome, check};
