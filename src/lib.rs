//! trtalloc: a GPU memory allocator for TensorRT.
//!
//! An [`Allocator`](allocator::Allocator) has a pool for each device; a [`ExportedAllocator`](handle::ExportedAllocator) makes one available to
//! other languages, and to TensorRT as an `nvinfer1::IGpuAllocator*`.
//!
//! ```
//! use trtalloc::allocator::{Allocator, RESIZABLE, Request};
//! use trtalloc::driver::Stream;
//!
//! # fn main() -> trtalloc::support::error::Result<()> {
//! // The simulated device; without `driver` it is the GPU that is here.
//! let memory = Allocator::create("driver=sim,limit=1GiB")?;
//! let request = Request { size: 1 << 20, alignment: 0, flags: 0, stream: Some(Stream::DEFAULT), device: None };
//! let block = memory.allocate(request)?;
//! memory.deallocate(block, request.stream)?;
//! // The stream runs in order, so what it freed may serve it at once.
//! assert_eq!(memory.allocate(request)?, block);
//!
//! let grows = memory.allocate(Request { flags: RESIZABLE, ..request })?;
//! let grown = memory.reallocate(grows, 0, 64 << 20)?;
//! assert_eq!(memory.stats(None)?.bytes_copied, 0);
//! memory.deallocate(grown, None)?;
//!
//! // What TensorRT 11.4 takes for setGpuAllocator. It lives as long as the process.
//! let interface = trtalloc::ffi::ExportedAllocator::new(memory).tensorrt(110_400)?;
//! assert_ne!(interface, 0);
//! # Ok(())
//! # }
//! ```
//!
//! Read `docs/ARCHITECTURE.md` for the whole; modules depend downwards only:
//! [`ffi`] → [`allocator`] → [`pool`] → [`history`] → [`support`] → [`driver`].

#![deny(unsafe_op_in_unsafe_fn)]
#![deny(missing_docs)]
// What only the interfaces of other languages use has no user in the models, and one bucket is enough there.
#![cfg_attr(loom, allow(dead_code, missing_docs, clippy::modulo_one))]

pub mod allocator;
pub mod driver;
#[cfg(not(loom))]
pub mod ffi;
pub mod history;
pub mod pool;
// The build script's, which holds Cargo.toml to it.
#[cfg(test)]
mod soname;
pub mod support;
#[cfg(not(loom))]
mod sync;
#[cfg(loom)]
pub mod sync;
#[cfg(not(loom))]
pub mod trace;

pub use support::{config, error, log, stats, tags};

/// The README's Rust is compiled with the crate's documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
