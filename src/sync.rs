//! What threads share the pool and the allocator with: atomics, locks, cells, and what a thread does while it waits.
//!
//! Ordinarily these are std's, parking_lot's and once_cell's own. `cfg(loom)` is set by the package of the models alone
//! (`tests/models`), and puts loom's in their place: see docs/ARCHITECTURE.md, "Models". What no model covers names std and
//! parking_lot itself, as the recorder and the simulated device do.

#[cfg(loom)]
mod modelled;
mod rule;

#[cfg(loom)]
pub use modelled::*;
#[cfg(not(loom))]
pub use once_cell::race::OnceBox;
#[cfg(not(loom))]
pub use parking_lot::{Mutex, MutexGuard, RwLock};
#[cfg(any(test, loom))]
pub use rule::breaking;
pub use rule::{broken, unless_broken};
#[cfg(not(loom))]
pub use std::{cell::UnsafeCell, collections::HashMap, hint, sync::atomic, thread};
