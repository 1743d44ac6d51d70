//! Blocks: allocating, resizing and freeing them.

use std::ffi::c_void;

use super::arguments::{allocate, deallocate, exported_or_report, number, of, ordinal, pointer};
use super::trtalloc_allocator;
use crate::allocator::Request;
use crate::ffi::call;

/// Allocates `size` bytes or more on the current device, for use on any stream at once. Returns NULL if the request
/// cannot be satisfied, or if `size` is 0. `alignment` is 0 or a power of two up to 2 MiB. `flags` is 0 or
/// TRTALLOC_RESIZABLE; other bits are ignored, with one line in the log.
/// The caller owns the block until it is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_allocate(
    allocator: *mut trtalloc_allocator,
    size: u64,
    alignment: u64,
    flags: u32,
) -> *mut c_void {
    // SAFETY: the caller's allocator is null or an exported allocator.
    unsafe {
        allocate(
            "trtalloc_allocate",
            allocator,
            Request {
                size,
                alignment,
                flags,
                stream: None,
                device: None,
            },
        )
    }
}

/// As trtalloc_allocate, for use by work queued on `stream` from now on (a CUstream or cudaStream_t; NULL is the
/// default stream of the current context), on the stream's device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_allocate_async(
    allocator: *mut trtalloc_allocator,
    size: u64,
    alignment: u64,
    flags: u32,
    stream: *mut c_void,
) -> *mut c_void {
    let request = Request {
        size,
        alignment,
        flags,
        stream: of(stream),
        device: None,
    };
    // SAFETY: the caller's allocator is null or an exported allocator.
    unsafe { allocate("trtalloc_allocate_async", allocator, request) }
}

/// As trtalloc_allocate_async, on `device`, which must be the stream's device; -1 stands for the stream's device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_allocate_on(
    allocator: *mut trtalloc_allocator,
    device: i32,
    size: u64,
    alignment: u64,
    flags: u32,
    stream: *mut c_void,
) -> *mut c_void {
    let request = Request {
        size,
        alignment,
        flags,
        stream: of(stream),
        device: ordinal(device),
    };
    // SAFETY: the caller's allocator is null or an exported allocator.
    unsafe { allocate("trtalloc_allocate_on", allocator, request) }
}

/// Makes a block larger or smaller that was allocated with TRTALLOC_RESIZABLE, and keeps the bytes that both sizes
/// have. With virtual memory nothing is copied. Returns the block's address, which may be another one. Returns NULL on
/// failure, and then the old block is unchanged. The call may wait for pending work, at most `wait_ms`. The bytes that
/// the block grows by may be used at once, on any stream: no work on a block that had them before is pending. Only work
/// that the caller itself has queued on the block may still use what the block gave up when it became smaller.
/// `alignment` is the one with which the block was allocated. With virtual memory the block keeps that alignment: 0
/// stands for it, and any other value is refused, except the smallest one (512 for CUDA). Where the bytes are copied to
/// a new block (backing=malloc, passthrough=1), the new block has `alignment`, or the smallest alignment if it is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_reallocate(
    allocator: *mut trtalloc_allocator,
    address: *mut c_void,
    alignment: u64,
    new_size: u64,
) -> *mut c_void {
    // SAFETY: the caller's allocator is null or an exported allocator.
    let Some(exported) = (unsafe { exported_or_report("trtalloc_reallocate", allocator) }) else {
        return std::ptr::null_mut();
    };
    pointer(call::reallocate(
        "trtalloc_reallocate",
        exported,
        number(address),
        alignment,
        new_size,
    ))
}

/// Frees a block. Work queued so far may still use it: on any stream of a context that has called the allocator for this
/// device, or of the primary context of a device that can use the block. Returns true if the block was freed, and for
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_deallocate(allocator: *mut trtalloc_allocator, memory: *mut c_void) -> bool {
    // SAFETY: the caller's allocator is null or an exported allocator.
    unsafe { deallocate("trtalloc_deallocate", allocator, memory, None) }
}

/// Frees a block. Work queued so far on `stream`, and on the streams of trtalloc_record_stream, may still use it. Work
/// on other streams must have completed, or be ordered before this point of `stream`. Returns true if the block was
/// freed, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_deallocate_async(
    allocator: *mut trtalloc_allocator,
    memory: *mut c_void,
    stream: *mut c_void,
) -> bool {
    // SAFETY: the caller's allocator is null or an exported allocator.
    unsafe { deallocate("trtalloc_deallocate_async", allocator, memory, of(stream)) }
}
