//! The random work. `play` runs a round, `client` is one thread's work, `graphs` its captures, `short_lived` its short-lived contexts
//! and threads, `neighbour` loads engines beside it, `retry` repeats what is refused, `drawn` has options that are drawn together, and
//! `world` is shared by the threads. The module that includes this one has the clients' device as `machine`.

mod client;
pub mod drawn;
mod graphs;
mod neighbour;
pub mod play;
pub mod random;
mod retry;
mod short_lived;
pub mod world;

use super::machine;
