//! TensorRT's interface over an allocator, and injection.

use std::ffi::c_void;

use super::arguments::{exported, pointer, status};
use super::{trtalloc_allocator, trtalloc_status};
use crate::ffi::call;
use crate::support::error::Error;

/// The allocator as an nvinfer1::IGpuAllocator* for the ABI of `tensorrt_version`: NV_TENSORRT_VERSION, or the version that
/// createInfer* is given. The same pointer each time. It belongs to the allocator, is never to be deleted, and stays valid
/// for ever. NULL where this library does not know that version's interface.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_tensorrt_allocator(
    allocator: *mut trtalloc_allocator,
    tensorrt_version: i32,
) -> *mut c_void {
    let adapter = call::guarded("trtalloc_tensorrt_allocator", 0, || {
        // SAFETY: the caller's allocator is null or an exported allocator.
        unsafe { exported(allocator) }?.tensorrt(tensorrt_version)
    });
    pointer(adapter)
}

/// Lets what TensorRT creates from now on allocate through trtalloc_default() (1), or not (0), where this library stands in
/// front of TensorRT's creation functions: where it was preloaded, linked before TensorRT, or opened RTLD_GLOBAL before what
/// uses TensorRT. A program that finds those functions with dlsym has to call this first. TRTALLOC_STATUS_UNSUPPORTED where
/// the environment has TRTALLOC_DISABLE=1.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_inject(on: i32) -> trtalloc_status {
    status("trtalloc_inject", || match on {
        0 | 1 => crate::ffi::preload::set(on == 1),
        _ => Err(Error::InvalidArgument(format!("on is {on}, not 0 or 1"))),
    })
}
