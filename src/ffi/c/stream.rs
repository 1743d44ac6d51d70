//! Streams: on which a block is also used, and which ones end.

use std::ffi::c_void;

use super::arguments::{exported, number, status};
use super::{trtalloc_allocator, trtalloc_status};
use crate::driver::Stream;
use crate::ffi::call;

/// Declares that the block is also used on `stream`: once freed, it is not reused before the work queued there has
/// completed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_record_stream(
    allocator: *mut trtalloc_allocator,
    memory: *mut c_void,
    stream: *mut c_void,
) -> trtalloc_status {
    status("trtalloc_record_stream", || {
        // SAFETY: the caller's allocator is null or an exported allocator.
        let allocator = unsafe { exported(allocator) }?.existing().ok_or_else(call::foreign)?;
        allocator.record_stream(number(memory) as u64, Stream(number(stream)))
    })
}

/// Announces that `stream` is about to be destroyed, so that other streams can reuse what it freed. Not calling it is
/// safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_stream_release(
    allocator: *mut trtalloc_allocator,
    stream: *mut c_void,
) -> trtalloc_status {
    status("trtalloc_stream_release", || {
        // SAFETY: the caller's allocator is null or an exported allocator.
        match unsafe { exported(allocator) }?.existing() {
            Some(allocator) => allocator.stream_release(Stream(number(stream))),
            None => Ok(()),
        }
    })
}
