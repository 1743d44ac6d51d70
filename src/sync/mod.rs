//! Atomics, locks, cells and waiting, as the pool and the allocator use them between threads.
//!
//! Ordinarily these are those of std, parking_lot and once_cell. Only the package of the models (`tests/models`) sets
//! `cfg(loom)`, which replaces them with loom's: see docs/internals/verification.md, "Models". Code that no model covers, such as
//! the recorder and the simulated device, uses std and parking_lot directly.
//!
//! Uses: nothing.

mod boxed;
#[cfg(not(loom))]
mod fair;
#[cfg(loom)]
mod modelled;
mod rule;

pub use boxed::boxed;
#[cfg(not(loom))]
pub use fair::{Mutex, MutexGuard, is_watched_lock_held};
#[cfg(loom)]
pub use modelled::*;
#[cfg(not(loom))]
pub use once_cell::race::OnceBox;
#[cfg(not(loom))]
pub use parking_lot::RwLock;
#[cfg(any(test, loom))]
pub use rule::breaking;
pub use rule::{broken, holds, unless_broken};
#[cfg(not(loom))]
pub use std::{cell::UnsafeCell, hint, sync::atomic, thread};
/// A map whose order is the same in every run, so that a run on one thread repeats exactly.
#[cfg(not(loom))]
pub type HashMap<K, V> = std::collections::HashMap<K, V, std::hash::BuildHasherDefault<std::hash::DefaultHasher>>;
