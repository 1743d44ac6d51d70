//! The interface of a pool, and this project's pool behind it, called through the C++ vtable.

use std::sync::Arc;

use trtalloc::driver::sim::SimDriver;
use trtalloc::driver::{Context, Driver};
use trtalloc::ffi::tensorrt::client::Client;

use crate::common::Rig;

/// The maximum number of streams that a pool is called with.
pub const STREAMS: usize = 4;

/// A pool that any thread can call. A block is an address; 0 is no block.
pub trait Pool: Sync {
    fn allocate(&self, size: u64, stream: usize) -> usize;
    /// Frees a block; `size` is the requested size, which RMM needs.
    fn deallocate(&self, block: usize, size: u64, stream: usize) -> bool;
    /// One of [`STREAMS`] streams.
    fn stream(&self, number: usize) -> usize {
        (1 + number) << 12
    }
    /// Called on a thread before its first call.
    fn enter(&self) {}
    /// Called on a thread after its last call.
    fn leave(&self) {}
}

/// This project: `IGpuAllocator`'s virtual functions over the simulated device.
pub struct Ours {
    client: Client,
    driver: Arc<SimDriver>,
    context: Context,
    streams: [usize; STREAMS],
}

impl Ours {
    /// The allocator of `rig`, which must outlive it.
    pub fn of(rig: &Rig) -> Ours {
        Ours {
            client: rig.client,
            driver: rig.driver.clone(),
            context: rig.application.context(),
            streams: std::array::from_fn(|_| rig.application.create_stream().unwrap().0),
        }
    }
}

impl Pool for Ours {
    #[inline]
    fn allocate(&self, size: u64, stream: usize) -> usize {
        self.client.allocate_async(size, 0, 0, stream)
    }

    #[inline]
    fn deallocate(&self, block: usize, _size: u64, stream: usize) -> bool {
        self.client.deallocate_async(block, stream)
    }

    fn stream(&self, number: usize) -> usize {
        self.streams[number]
    }

    /// Makes the context current as an application does, so that the allocator need not look for one.
    fn enter(&self) {
        self.driver.context_push(self.context).unwrap();
    }

    fn leave(&self) {
        self.driver.context_pop().unwrap();
    }
}
