//! A GPU memory allocator for TensorRT.
//!
//! The library is mostly used from C, C++ and Python, or injected into unchanged programs: see the README. This is the
//! reference for programs in Rust. They need these types:
//!
//! * [`Allocator`](allocator::Allocator) allocates, resizes and frees blocks. It has one pool for each device, and any
//!   thread may use it. Its options are those of docs/options.md, as text or as a [`Config`](config::Config).
//! * [`Request`](allocator::Request) describes an allocation: size, alignment, flags, stream and device.
//! * [`ExportedAllocator`](ffi::ExportedAllocator) exports an allocator to TensorRT, as an `nvinfer1::IGpuAllocator*`, and
//!   to C.
//! * [`Stats`](stats::Stats) are the statistics of one pool.
//! * [`Error`](error::Error) is the error of every call.
//!
//! A block is an address. Work on the request's stream may use it at once. A block that is freed on a stream may be reused
//! by later work of that stream, and by other streams once the work queued before the free has completed.
//!
//! ```
//! use trtalloc::allocator::{Allocator, RESIZABLE, Request};
//! use trtalloc::driver::Stream;
//! use trtalloc::ffi::ExportedAllocator;
//!
//! # fn main() -> trtalloc::error::Result<()> {
//! // `driver=sim` is the simulated device. Without it, the allocator uses the GPU of this machine.
//! let allocator = Allocator::create("driver=sim,limit=1GiB")?;
//! let request = Request { size: 1 << 20, alignment: 0, flags: 0, stream: Some(Stream::DEFAULT), device: None };
//! let block = allocator.allocate(request)?;
//! allocator.deallocate(block, request.stream)?;
//! // A stream runs its work in order, so it reuses at once what was freed on it.
//! assert_eq!(allocator.allocate(request)?, block);
//!
//! // A resizable block grows in place, or moves without a copy.
//! let small = allocator.allocate(Request { flags: RESIZABLE, ..request })?;
//! let large = allocator.reallocate(small, 0, 64 << 20)?;
//! assert_eq!(allocator.stats(None)?.bytes_copied, 0);
//! allocator.deallocate(large, None)?;
//!
//! // The argument of setGpuAllocator in TensorRT 11.4. It is valid until the process ends.
//! let interface = ExportedAllocator::new(allocator).tensorrt(110_400)?;
//! assert_ne!(interface, 0);
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! | module | content |
//! |---|---|
//! | [`allocator`] | [`Allocator`](allocator::Allocator), which all interfaces call |
//! | [`config`], [`error`], [`stats`], [`tags`], [`log`] | options, errors, statistics, tags, and the log |
//! | [`history`] | recorded events, [snapshots](history::snapshot), and [reports](history::report) on them |
//! | [`ffi`] | the interfaces for TensorRT and for C, and injection |
//! | [`driver`] | the [`Driver`](driver::Driver) trait, and its drivers for CUDA, AscendCL, the simulated device, and none |
//! | [`trace`] | traces of allocations, to be replayed and measured |
//! | [`pool`] | one device's memory: the design is in `docs/ARCHITECTURE.md` and `docs/internals` |
//! | [`support`] | what several modules share |
//!
//! The C functions are documented in `include/trtalloc/trtalloc.h`.

#![deny(unsafe_op_in_unsafe_fn)]
#![deny(missing_docs)]
// In the models, code that only the interfaces for other languages use is unused, and tables have one bucket.
#![cfg_attr(loom, allow(dead_code, missing_docs, clippy::modulo_one))]

pub mod allocator;
pub mod driver;
#[cfg(not(loom))]
pub mod ffi;
pub mod history;
pub mod pool;
// For its tests. The build script includes this file and checks the soname in Cargo.toml.
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

/// Compiles and runs the Rust code of docs/rust.md with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/rust.md")]
pub struct Guide;
