//! The library's own code under loom: every interleaving of a few threads, and every value that a load may see.
//! What is covered, and what is not, is in docs/ARCHITECTURE.md under "Models".

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
        pub fn is_absent(_: &crate::driver::DriverError) -> bool {
            unreachable!("models open the simulated device")
        }
    }
}

/// Nor AscendCL.
pub mod ascend {
    use std::sync::Arc;

    use crate::driver::{Driver, Result};

    pub struct AscendDriver;

    impl AscendDriver {
        pub fn open(_media: bool) -> Result<Arc<dyn Driver>> {
            unreachable!("models open the simulated device")
        }
    }
}

pub mod log {
    pub fn line(text: &str) {
        eprintln!("{text}");
    }

    pub fn unknown_flags(bits: u32) {
        line(&format!("flags {bits:#x} are not known"));
    }
}

// The library's source, as `build.rs` copied it; what only its unit tests or its other faces use is not used here.
mod library {
    #![allow(dead_code, unused_imports, unused_variables, unused_braces, clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/root.rs"));
}
use library::{allocator, answer, config, driver, error, nvtx, pool, process, record, stats, tags};

mod claims;
mod close;
mod grace;
mod peak;
mod structures;
mod world;
