//! The library's own code under shuttle: random interleavings of more threads and calls than can be tried one by one.

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
