//! The library's own code under loom: every interleaving of a few threads, and every value that a load may see.

mod sync;

/// No CUDA in a model.
pub mod cuda {
    use std::sync::Arc;

    use crate::driver::{Driver, Result};

    pub struct CudaDriver;

    impl CudaDriver {
        pub fn open() -> Result<Arc<dyn Driver>> {
            unreachable!("models open the simulated device")
        }
    }
}

pub mod log {
    pub fn line(text: &str) {
        eprintln!("{text}");
    }
}

include!(concat!(env!("OUT_DIR"), "/root.rs"));

mod claims;
mod peak;
mod structures;
mod world;
