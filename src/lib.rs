//! trtalloc: a GPU memory allocator for TensorRT.
//!
//! Read `docs/ARCHITECTURE.md` for the whole; modules depend downwards only:
//! faces ([`capi`], [`bridge`]) → [`allocator`] → [`pool`] → [`driver`].

#![deny(unsafe_op_in_unsafe_fn)]
#![warn(missing_docs)]

pub mod allocator;
pub mod bridge;
pub mod capi;
pub mod config;
pub mod driver;
pub mod error;
pub mod handle;
pub mod log;
pub mod pool;
pub mod process;
pub mod stats;
pub mod trace;
