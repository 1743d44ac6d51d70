//! TensorRT's interfaces. C++ adapters in `cpp/` implement them, one for each ABI generation ([`abi`]), and forward
//! through cxx bridges to an [`ExportedAllocator`](crate::ffi::ExportedAllocator) or an [`Output`](output::Output).

pub mod abi;
mod allocator_bridge;
pub mod client;
pub mod output;
mod output_bridge;
