//! The cxx bridge of TensorRT's allocators: the adapters in `cpp/` forward here. Panics are caught here.
//!
//! An adapter is a C++ object that holds only a reference to an [`ExportedAllocator`] or a [`NamedAllocator`]. Each of
//! its methods calls one method below. A further ABI generation needs another C++ file, another `make_` function and another
//! [`AllocatorAbi`].

use crate::allocator::Request;
use crate::driver::Stream;
use crate::ffi::ExportedAllocator;
use crate::ffi::call;
use crate::ffi::named::NamedAllocator;
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

        type NamedAllocator;
        fn adapter_allocate(self: &NamedAllocator, size: u64, alignment: u64, flags: u32) -> usize;
        fn adapter_allocate_async(self: &NamedAllocator, size: u64, alignment: u64, flags: u32, stream: usize)
        -> usize;
        fn adapter_reallocate(self: &NamedAllocator, address: usize, alignment: u64, new_size: u64) -> usize;
        fn adapter_deallocate(self: &NamedAllocator, memory: usize) -> bool;
        fn adapter_deallocate_async(self: &NamedAllocator, memory: usize, stream: usize) -> bool;
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

        /// # Safety
        /// As `make_tensorrt8`.
        unsafe fn make_named_tensorrt8(named: &NamedAllocator) -> *mut IGpuAllocator8;

        #[namespace = "nvinfer1::v_1_0"]
        type IGpuAllocator;

        /// # Safety
        /// The adapter keeps a reference to `exported`, which must never be freed.
        unsafe fn make_tensorrt10(exported: &ExportedAllocator) -> *mut IGpuAllocator;

        /// # Safety
        /// As `make_tensorrt8`.
        unsafe fn make_named_tensorrt10(named: &NamedAllocator) -> *mut IGpuAllocator;
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

/// As [`make_adapter`], for blocks with a name.
fn make_named_adapter(named: &'static NamedAllocator, abi: AllocatorAbi) -> usize {
    match abi {
        // SAFETY: a static reference is never freed.
        AllocatorAbi::V10 => unsafe { ffi::make_named_tensorrt10(named) }.expose_provenance(),
        // SAFETY: as above.
        AllocatorAbi::V8 => unsafe { ffi::make_named_tensorrt8(named) }.expose_provenance(),
    }
}

fn made(adapter: usize) -> Result<usize> {
    match adapter {
        0 => Err(Error::OutOfMemory("host memory for the adapter".into())),
        adapter => Ok(adapter),
    }
}

impl ExportedAllocator {
    /// The `nvinfer1::IGpuAllocator*` for the ABI of that TensorRT version (`NV_TENSORRT_VERSION`). It belongs to the
    /// allocator: every call returns the same pointer, and the caller never deletes it. Fails for a version whose
    /// interface is not built in.
    pub fn tensorrt(&'static self, version: i32) -> Result<usize> {
        let abi = AllocatorAbi::of(version)?;
        made(self.adapter(abi, || make_adapter(self, abi)))
    }

    /// As [`ExportedAllocator::tensorrt`], an adapter whose blocks count for `name`, whichever thread TensorRT calls
    /// from. The same name gives the same adapter. An empty name gives the adapter without a name, and so does a name
    /// for which there is no tag any more.
    pub fn tensorrt_named(&'static self, version: i32, name: &[u8]) -> Result<usize> {
        let abi = AllocatorAbi::of(version)?;
        match self.named(name) {
            Some(named) => made(named.adapter(abi, || make_named_adapter(named, abi))),
            None => self.tensorrt(version),
        }
    }
}

fn request(size: u64, alignment: u64, flags: u32, stream: Option<usize>) -> Request {
    Request {
        size,
        alignment,
        flags,
        stream: stream.map(Stream),
        device: None,
    }
}

/// The adapters' methods. On failure they set this thread's last error and return 0 or false, as TensorRT expects.
impl ExportedAllocator {
    fn adapter_allocate(&self, size: u64, alignment: u64, flags: u32) -> usize {
        call::allocate("allocate", self, &request(size, alignment, flags, None))
    }

    fn adapter_allocate_async(&self, size: u64, alignment: u64, flags: u32, stream: usize) -> usize {
        call::allocate("allocateAsync", self, &request(size, alignment, flags, Some(stream)))
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

/// As above. A block keeps its name however it is resized and freed.
impl NamedAllocator {
    fn adapter_allocate(&self, size: u64, alignment: u64, flags: u32) -> usize {
        let request = request(size, alignment, flags, None);
        call::allocate_for("allocate", self.exported, &request, self.tag)
    }

    fn adapter_allocate_async(&self, size: u64, alignment: u64, flags: u32, stream: usize) -> usize {
        let request = request(size, alignment, flags, Some(stream));
        call::allocate_for("allocateAsync", self.exported, &request, self.tag)
    }

    fn adapter_reallocate(&self, address: usize, alignment: u64, new_size: u64) -> usize {
        self.exported.adapter_reallocate(address, alignment, new_size)
    }

    fn adapter_deallocate(&self, memory: usize) -> bool {
        self.exported.adapter_deallocate(memory)
    }

    fn adapter_deallocate_async(&self, memory: usize, stream: usize) -> bool {
        self.exported.adapter_deallocate_async(memory, stream)
    }
}
