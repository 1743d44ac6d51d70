//! TensorRT's interface of an allocator, and injection.

use std::ffi::{CStr, c_char, c_void};

use super::arguments::{exported, pointer, status};
use super::{trtalloc_allocator, trtalloc_status};
use crate::ffi::call;
use crate::support::error::Error;

/// The allocator as an nvinfer1::IGpuAllocator* for the ABI of `tensorrt_version`: NV_TENSORRT_VERSION, or the version
/// that createInfer* receives. Every call returns the same pointer. The object belongs to the allocator: the caller
/// never deletes it, and it stays valid for ever. Returns NULL if this library does not know that version's interface.
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

/// As trtalloc_tensorrt_allocator, an adapter whose blocks count for `name`: a model's or an engine's. It holds for every
/// request through the adapter, whichever thread TensorRT calls from and whatever that thread's tag is. A name is a tag:
/// trtalloc_stats_json, trtalloc_metrics, snapshots and reports show what each holds, and trtalloc_set_tag_limit limits it.
/// The same name gives the same adapter. The text is copied. What is not UTF-8 in it is replaced, and a name of more than
/// 255 bytes is cut. NULL or "", and a further name where the process has 1023 tags, give the adapter without a name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_tensorrt_allocator_named(
    allocator: *mut trtalloc_allocator,
    tensorrt_version: i32,
    name: *const c_char,
) -> *mut c_void {
    let adapter = call::guarded("trtalloc_tensorrt_allocator_named", 0, || {
        let name = match name.is_null() {
            true => &[],
            // SAFETY: the caller passes a C string.
            false => unsafe { CStr::from_ptr(name) }.to_bytes(),
        };
        // SAFETY: the caller's allocator is null or an exported allocator.
        unsafe { exported(allocator) }?.tensorrt_named(tensorrt_version, name)
    });
    pointer(adapter)
}

/// Switches injection on (1) or off (0): whether objects that TensorRT creates from now on allocate through
/// trtalloc_default(). It has an effect only if this library's functions come before TensorRT's creation functions: the
/// library was preloaded, linked before TensorRT, or opened with RTLD_GLOBAL before the library that uses TensorRT. A
/// program that looks these functions up with dlsym must call this first. Returns TRTALLOC_STATUS_UNSUPPORTED if the
/// environment has TRTALLOC_DISABLE=1.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_inject(on: i32) -> trtalloc_status {
    status("trtalloc_inject", || match on {
        0 | 1 => crate::ffi::preload::set(on == 1),
        _ => Err(Error::InvalidArgument(format!("on is {on}, not 0 or 1"))),
    })
}
