//! The cxx bridge: TensorRT's interfaces, implemented in C++ (`cpp/`), forward here, and panics stop here.
//!
//! An adapter is a C++ object that holds a [`Handle`] and nothing else; each of its methods is one call of a method below.
//! Another generation of the interface is one more C++ file, one more `make_` function and one more [`Generation`].

use crate::allocator::Request;
use crate::driver::Stream;
use crate::error::{Error, Result};
use crate::handle::{Handle, call};

pub mod client;
pub mod output;

#[cxx::bridge(namespace = "trtalloc")]
mod ffi {
    extern "Rust" {
        type Handle;
        fn adapter_allocate(self: &Handle, size: u64, alignment: u64, flags: u32) -> usize;
        fn adapter_allocate_async(self: &Handle, size: u64, alignment: u64, flags: u32, stream: usize) -> usize;
        fn adapter_reallocate(self: &Handle, address: usize, alignment: u64, new_size: u64) -> usize;
        fn adapter_deallocate(self: &Handle, memory: usize) -> bool;
        fn adapter_deallocate_async(self: &Handle, memory: usize, stream: usize) -> bool;
    }

    unsafe extern "C++" {
        include!("trtalloc/cpp/adapter.h");
        include!("trtalloc/cpp/hidden.h");

        #[namespace = "nvinfer1"]
        #[cxx_name = "IGpuAllocator"]
        type IGpuAllocator8;

        /// # Safety
        /// The handle is kept: it must never be freed.
        unsafe fn make_tensorrt8(handle: &Handle) -> *mut IGpuAllocator8;

        #[namespace = "nvinfer1::v_1_0"]
        type IGpuAllocator;

        /// # Safety
        /// The handle is kept: it must never be freed.
        unsafe fn make_tensorrt10(handle: &Handle) -> *mut IGpuAllocator;
    }
}

/// Interfaces that differ in their virtual functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// TensorRT 10 and 11, and TensorRT-RTX 1.
    Ten = 0,
    /// TensorRT 8 and 9.
    Eight = 1,
}

impl Generation {
    /// How many there are.
    pub const COUNT: usize = 2;

    /// The generation that a version belongs to: `NV_TENSORRT_VERSION`, or what createInfer* was given. Below 10000 it is
    /// TensorRT 8 or 9 (8601, 9100), up to 19999 TensorRT-RTX (10300), from 100000 TensorRT 10 and 11 (101601).
    pub fn of(version: i32) -> Result<Generation> {
        match version {
            8000..=9999 => Ok(Generation::Eight),
            10000..=19999 | 100_000..=119_999 => Ok(Generation::Ten),
            _ => Err(Error::InvalidArgument(format!(
                "no TensorRT has version {version}, or it is older than 8 or newer than 11"
            ))),
        }
    }
}

/// An adapter of that generation over `handle`, as its C++ base pointer; 0 where host memory is out.
pub(crate) fn make_adapter(handle: &'static Handle, generation: Generation) -> usize {
    match generation {
        // SAFETY: a static reference is never freed.
        Generation::Ten => unsafe { ffi::make_tensorrt10(handle) }.expose_provenance(),
        // SAFETY: as above.
        Generation::Eight => unsafe { ffi::make_tensorrt8(handle) }.expose_provenance(),
    }
}

/// What the adapters' methods come down to. Failures are this thread's last error and 0 or false, as TensorRT expects.
impl Handle {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_their_generation() {
        for version in [10000, 10300, 10701, 19999, 100_000, 101_601, 110_400, 119_999] {
            assert_eq!(Generation::of(version).ok(), Some(Generation::Ten), "{version}");
        }
        for version in [8000, 8001, 8200, 8601, 9100, 9300, 9999] {
            assert_eq!(Generation::of(version).ok(), Some(Generation::Eight), "{version}");
        }
        for version in [i32::MIN, -1, 0, 7103, 7999, 20000, 99999, 120_000, i32::MAX] {
            assert!(
                matches!(Generation::of(version), Err(Error::InvalidArgument(_))),
                "{version}"
            );
        }
    }
}
