//! The cxx bridge of TensorRT's allocators: the adapters in `cpp/` forward here. Panics are caught here.
//!
//! An adapter is a C++ object that holds only a reference to an [`ExportedAllocator`]. Each of its methods calls one
//! method below. A further ABI generation needs another C++ file, another `make_` function and another
//! [`AllocatorAbi`].

use crate::allocator::Request;
use crate::driver::Stream;
use crate::ffi::ExportedAllocator;
use crate::ffi::call;
use crate::ffi::tensorrt::abi::AllocatorAbi;
use crate::support::error::{Error, Result};

#[cxx::bridge(namespace = "trtalloc")]
mod ffi {
    extern "Rust" {
        type ExportedAllocator;
        fn adapter_allocate(self: &ExportedAllocator, size: u64, alignment: u64, flags: u32) -> usize;
        fn adapter_allocate_async(
            self: &ExportedAllocator,
            size: u64,
            alignment: u64,
            flags: u32,
            stream: usize,
        ) -> usize;
        fn adapter_reallocate(self: &ExportedAllocator, address: usize, alignment: u64, new_size: u64) -> usize;
        fn adapter_deallocate(self: &ExportedAllocator, memory: usize) -> bool;
        fn adapter_deallocate_async(self: &ExportedAllocator, memory: usize, stream: usize) -> bool;
    }

    unsafe extern "C++" {
        include!("trtalloc/cpp/adapter.h");
        include!("trtalloc/cpp/hidden.h");

        #[namespace = "nvinfer1"]
        #[cxx_name = "IGpuAllocator"]
        type IGpuAllocator8;

        /// # Safety
        /// The adapter keeps a reference to `exported`, which must never be freed.
        unsafe fn make_tensorrt8(exported: &ExportedAllocator) -> *mut IGpuAllocator8;

        #[namespace = "nvinfer1::v_1_0"]
        type IGpuAllocator;

        /// # Safety
        /// The adapter keeps a reference to `exported`, which must never be freed.
        unsafe fn make_tensorrt10(exported: &ExportedAllocator) -> *mut IGpuAllocator;
    }
}

/// Creates the adapter for `abi`, and returns its C++ base pointer; 0 where host memory has run out.
fn make_adapter(exported: &'static ExportedAllocator, abi: AllocatorAbi) -> usize {
    match abi {
        // SAFETY: a static reference is never freed.
        AllocatorAbi::V10 => unsafe { ffi::make_tensorrt10(exported) }.expose_provenance(),
        // SAFETY: as above.
        AllocatorAbi::V8 => unsafe { ffi::make_tensorrt8(exported) }.expose_provenance(),
    }
}

impl ExportedAllocator {
    /// The `nvinfer1::IGpuAllocator*` for the ABI of that TensorRT version (`NV_TENSORRT_VERSION`). It belongs to the
    /// allocator: every call returns the same pointer, and the caller never deletes it. Fails for a version whose
    /// interface is not built in.
    pub fn tensorrt(&'static self, version: i32) -> Result<usize> {
        let abi = AllocatorAbi::of(version)?;
        match self.adapter(abi, || make_adapter(self, abi)) {
            0 => Err(Error::OutOfMemory("host memory for the adapter".into())),
            adapter => Ok(adapter),
        }
    }
}

/// The adapters' methods. On failure they set this thread's last error and return 0 or false, as TensorRT expects.
impl ExportedAllocator {
    fn adapter_allocate(&self, size: u64, alignment: u64, flags: u32) -> usize {
        call::allocate(
            "allocate",
            self,
            Request {
                size,
                alignment,
                flags,
                stream: None,
                device: None,
            },
        )
    }

    fn adapter_allocate_async(&self, size: u64, alignment: u64, flags: u32, stream: usize) -> usize {
        let stream = Some(Stream(stream));
        call::allocate(
            "allocateAsync",
            self,
            Request {
                size,
                alignment,
                flags,
                stream,
                device: None,
            },
        )
    }

    fn adapter_reallocate(&self, address: usize, alignment: u64, new_size: u64) -> usize {
        call::reallocate("reallocate", self, address, alignment, new_size)
    }

    fn adapter_deallocate(&self, memory: usize) -> bool {
        call::deallocate("deallocate", self, memory, None)
    }

    fn adapter_deallocate_async(&self, memory: usize, stream: usize) -> bool {
        call::deallocate("deallocateAsync", self, memory, Some(Stream(stream)))
    }
}
