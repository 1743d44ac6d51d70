//! What all folders above the drivers share: options, errors, statistics, tags, the log, and the state of the process.
//!
//! Uses: driver, sync.

pub mod config;
#[cfg(not(loom))]
pub mod control;
pub mod error;
pub(crate) mod fork_gate;
#[cfg(not(loom))]
pub mod helper_thread;
pub mod log;
pub mod nvtx;
#[cfg(not(loom))]
pub mod own_descriptor;
pub mod private_folder;
pub mod process;
#[cfg(not(loom))]
pub mod run_statistics;
pub mod shared_budget;
pub(crate) mod sort;
pub mod stats;
mod stderr;
pub mod tags;
