//! Calls an allocator as TensorRT does, through the C++ virtual functions. The demo, the benches and the tests use it.

use crate::ffi::ExportedAllocator;
use crate::support::error::Result;

#[cxx::bridge(namespace = "trtalloc")]
mod ffi {
    unsafe extern "C++" {
        include!("trtalloc/cpp/client.h");

        #[namespace = "nvinfer1::v_1_0"]
        type IGpuAllocator;

        unsafe fn client_allocate(allocator: *mut IGpuAllocator, size: u64, alignment: u64, flags: u32) -> usize;
        unsafe fn client_allocate_async(
            allocator: *mut IGpuAllocator,
            size: u64,
            alignment: u64,
            flags: u32,
            stream: usize,
        ) -> usize;
        unsafe fn client_reallocate(
            allocator: *mut IGpuAllocator,
            address: usize,
            alignment: u64,
            new_size: u64,
        ) -> usize;
        unsafe fn client_deallocate(allocator: *mut IGpuAllocator, memory: usize) -> bool;
        unsafe fn client_deallocate_async(allocator: *mut IGpuAllocator, memory: usize, stream: usize) -> bool;
    }
}

/// The TensorRT version whose interface [`Client`] uses.
const VERSION: i32 = 100_000;

/// A caller of `nvinfer1::IGpuAllocator`, with the interface of TensorRT 10 and later. Addresses and streams are the
/// driver's; address 0 is none. A failure sets this thread's last error, as in C. Safe from any thread.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    allocator: *mut ffi::IGpuAllocator,
}

// SAFETY: the adapter behind the pointer lives for ever and all its methods may be called from any thread.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

impl Client {
    /// A caller of `exported`'s adapter.
    pub fn new(exported: &'static ExportedAllocator) -> Result<Client> {
        Ok(Client {
            allocator: std::ptr::with_exposed_provenance_mut(exported.tensorrt(VERSION)?),
        })
    }

    /// A caller of the adapter of `exported` whose blocks count for `name`.
    pub fn named(exported: &'static ExportedAllocator, name: &[u8]) -> Result<Client> {
        Ok(Client {
            allocator: std::ptr::with_exposed_provenance_mut(exported.tensorrt_named(VERSION, name)?),
        })
    }

    /// Calls `allocate`; 0 on failure.
    pub fn allocate(self, size: u64, alignment: u64, flags: u32) -> usize {
        // SAFETY: the pointer is to an adapter, which lives for ever.
        unsafe { ffi::client_allocate(self.allocator, size, alignment, flags) }
    }

    /// Calls `allocateAsync`; 0 on failure.
    pub fn allocate_async(self, size: u64, alignment: u64, flags: u32, stream: usize) -> usize {
        // SAFETY: the pointer is to an adapter, which lives for ever.
        unsafe { ffi::client_allocate_async(self.allocator, size, alignment, flags, stream) }
    }

    /// Calls `reallocate`; 0 on failure.
    pub fn reallocate(self, address: usize, alignment: u64, new_size: u64) -> usize {
        // SAFETY: the pointer is to an adapter, which lives for ever.
        unsafe { ffi::client_reallocate(self.allocator, address, alignment, new_size) }
    }

    /// Calls `deallocate`; returns whether the block was freed.
    pub fn deallocate(self, memory: usize) -> bool {
        // SAFETY: the pointer is to an adapter, which lives for ever.
        unsafe { ffi::client_deallocate(self.allocator, memory) }
    }

    /// Calls `deallocateAsync`; returns whether the block was freed.
    pub fn deallocate_async(self, memory: usize, stream: usize) -> bool {
        // SAFETY: the pointer is to an adapter, which lives for ever.
        unsafe { ffi::client_deallocate_async(self.allocator, memory, stream) }
    }
}
