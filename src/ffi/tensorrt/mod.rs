//! TensorRT's interfaces: the bridge to the C++ adapters in `cpp/`, which serve each ABI generation.

pub mod abi;
mod allocator_bridge;
pub mod client;
pub mod output;
mod output_bridge;
