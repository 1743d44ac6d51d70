//! Interfaces for other languages and for TensorRT: the C functions ([`c`]), the C++ adapters that TensorRT calls
//! ([`tensorrt`]), and injection into unchanged programs ([`preload`]).
//!
//! Uses: allocator, driver, history, support.

pub mod c;
mod call;
mod exported;
mod named;
pub mod preload;
pub mod tensorrt;

pub use exported::ExportedAllocator;
