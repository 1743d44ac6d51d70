//! A state machine that shows why no byte has two owners. It is checked exhaustively for small numbers.
//!
//! The argument in short, with the rules of [`rules::Rule`] that it needs:
//!
//! 1. A stream runs its work in order, so it can reuse its own frees at once. A stream is identified by its handle and
//!    its id, because only the id is never reused (`IdsAreCompared`). Frees of a destroyed stream become an orphan's.
//! 2. Another stream gets memory after a completion event that was recorded on the freeing stream, in a call on that
//!    stream, after the free. A number says which frees an event covers (`NumbersAreRaisedByEvents`,
//!    `OnlyWhatTheEventCovers`). Numbers begin again with each owner, so an owner stays as long as a batch or a set
//!    names it (`OwnersOutliveBatches`, `OwnersOutliveSets`).
//! 3. A caller without a stream gets memory once such an event has completed (`CommonOnceComplete`).
//! 4. Memory that is freed without a stream, or on a destroyed or unknown stream, waits for an event in every context
//!    that has used the pool (`FreesWithoutStreamWait`, `EveryKnownContext`). So every call registers its context.
//! 5. A block that was declared for several streams waits for each of them, by handle and id. If a stream is not known
//!    any more, it waits for the contexts (`DeclaredUsesCount`, `DeclaredUsesHaveIds`, `UnknownUsesWaitForContexts`).
//! 6. Contexts and events are destroyed, and their handles are reused. Contexts are identified by ids. With a context
//!    its events and its own work end, but not the work of other contexts that its streams had waited for
//!    (`WaitsOutliveContexts`).
//! 7. Memory of a capture belongs to its graph until the graph is destroyed (`GraphsOwnTheirMemory`). Then it waits for
//!    events like any other free (`GraphsGoOnToEvents`).
//! 8. Before CUDA 12.0 there are no ids. Each free has an event of its own, which every stream waits for.
//!
//! Freed memory that waits is a set: see [`state::Set`] and [`sets`]. [`application`] says which calls are legal, [`device`] how CUDA carries them out, [`pool`] and [`requests`] how the
//! pool does, and [`check`](check()) which invariants hold in every state. [`scenario`] has the small numbers.

pub mod application;
mod canonical;
mod check;
mod counterexample;
pub mod device;
pub mod model;
pub mod pool;
pub mod reclaim;
pub mod requests;
pub mod rules;
pub mod scenario;
pub mod sets;
pub mod state;

pub use check::{Outcome, check};
