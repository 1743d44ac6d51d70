//! The interfaces for other languages, and for TensorRT.
//!
//! Uses: allocator, driver, history, support.

pub mod c;
mod call;
mod exported;
pub mod preload;
pub mod tensorrt;

pub use exported::ExportedAllocator;
