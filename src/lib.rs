//! A GPU memory allocator for TensorRT.
//!
//! The library is mostly used from C, C++ and Python, or injected into unchanged programs: see the README. This is the
//! reference for programs in Rust. They begin with these types:
//!
//! * [`Allocator`] allocates, resizes and frees blocks. It has one pool for each device, and any thread may use it. Its
//!   options are those of docs/options.md, as text or as a [`Config`].
//! * [`Request`] describes an allocation: size, alignment, flags, [`Stream`] and device.
//! * [`ExportedAllocator`] exports an allocator to TensorRT, as an `nvinfer1::IGpuAllocator*`, and to C.
//! * [`Stats`] are the statistics of one pool, and [`TagStats`] those of one of its [`tags`].
//! * [`Error`] is the error of every call.
//!
//! A block is an address. Work on the request's stream may use it at once. A block that is freed on a stream may be reused
//! by later work of that stream, and by other streams once the work queued before the free has completed.
//!
//! ```
//! use trtalloc::{Allocator, ExportedAllocator, RESIZABLE, Request, Stream};
//!
//! # fn main() -> trtalloc::Result<()> {
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
//! The C functions are documented in `include/trtalloc/trtalloc.h`. Modules that are public and not listed here are the library's
//! own: its command, tests and benches use them, and any version may change them.

#![deny(unsafe_op_in_unsafe_fn)]
#![deny(missing_docs)]
// In the models, code that only the interfaces for other languages use is unused, and tables have one bucket.
#![cfg_attr(loom, allow(dead_code, missing_docs, clippy::modulo_one))]

#[doc(hidden)]
pub mod allocator;
#[doc(hidden)]
pub mod driver;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod ffi;
#[doc(hidden)]
pub mod history;
#[doc(hidden)]
pub mod pool;
// For its tests. The build script includes this file and checks the soname in Cargo.toml.
#[cfg(test)]
mod soname;
#[doc(hidden)]
pub mod support;
#[cfg(not(loom))]
mod sync;
#[cfg(loom)]
pub mod sync;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod trace;

// The reference: tests/library/layout/reference.rs knows its modules.
pub use allocator::{Allocator, MAX_DEVICES, OomHandler, RESIZABLE, Request};
pub use driver::{DriverError, Failure, Stream};
#[cfg(not(loom))]
pub use ffi::ExportedAllocator;
pub use support::config::Config;
pub use support::error::{Error, Result};
pub use support::stats::{Stats, TagStats};
#[doc(hidden)]
pub use support::{error, stats};
pub use support::{log, tags};

/// The values of options, as [`Config`] has them.
pub mod config {
    pub use crate::driver::DriverChoice;
    pub use crate::driver::sim::Latencies;
    pub use crate::support::config::history::{RecordingContext, RecordingMode, RecordingOptions, StackKind};
    #[doc(hidden)]
    pub use crate::support::config::*;
    pub use crate::support::config::{
        Backing, Kind, Limit, LogLevel, MemoryFrom, Peers, ReleaseThreshold, Rule, Share,
    };
    pub use crate::support::shared_budget::ShareBudget;
}

/// What [`Allocator::snapshot`] returns: the state of every device, and the history that led to it.
pub mod snapshot {
    pub use crate::history::snapshot::{Format, Snapshot};
    pub use crate::history::state::{DeviceState, Piece, PieceState, Segment};
    pub use crate::history::{Action, Event, History, describe};
}

/// Compiles and runs the Rust code of docs/rust.md with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/rust.md")]
pub struct Guide;
