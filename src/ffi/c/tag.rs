//! Tags: names for allocations.

use std::ffi::{CStr, c_char};

use super::arguments::{at_rest, exported, ordinal, status, text, write_prefix};
use super::{trtalloc_allocator, trtalloc_status};
use crate::ffi::call;
use crate::support::error::Error;
use crate::support::tags;

/// Sets the tag of this thread's allocations from now on, in every allocator: the name of an engine, a model or a
/// framework. NULL: no tag. trtalloc_stats_json and trtalloc_metrics report what each tag holds, and
/// trtalloc_set_tag_limit limits it. A tag has at most 255 bytes of UTF-8, and a process at most 1023 tags; further
/// ones are refused, and the thread keeps the tag from before. The text is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_set_tag(tag: *const c_char) {
    call::guarded("trtalloc_set_tag", (), || {
        let tag = match tag.is_null() {
            true => None,
            // SAFETY: the caller passes a C string.
            false => Some(unsafe { text("tag", tag) }?),
        };
        tags::set(tag)
    });
}

/// Limits the bytes that blocks with one tag may take of a device's pool, after rounding; 0: no limit. A request beyond
/// the limit returns NULL; blocks that are already allocated stay. `device` -1: the current one. Opens the driver if
/// trtalloc_default() has not been used yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_set_tag_limit(
    allocator: *mut trtalloc_allocator,
    device: i32,
    tag: *const c_char,
    bytes: u64,
) -> trtalloc_status {
    status("trtalloc_set_tag_limit", || {
        // SAFETY: the caller's pointers are null or valid.
        let (exported, tag) = unsafe { (exported(allocator)?, text("tag", tag)?) };
        exported.allocator()?.set_tag_limit(ordinal(device), tag, bytes)
    })
}

/// One tag's statistics on one device, in bytes or counts. New fields are added only at the end.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct trtalloc_tag_stats {
    /// Bytes allocated, after rounding.
    pub allocated: u64,
    /// Highest `allocated` since creation or trtalloc_stats_reset_peaks.
    pub allocated_peak: u64,
    /// The limit on `allocated`; 0: none.
    pub limit: u64,
    /// Requests that succeeded.
    pub allocations: u64,
    /// Blocks freed, by any thread.
    pub frees: u64,
    /// Requests refused because of the tag's limit or because memory ran out.
    pub out_of_memory: u64,
}

/// Writes the statistics of one tag, or of an adapter's name, to `out`, as trtalloc_stats_get writes a device's. All
/// are 0 for a tag under which the device has no block and no limit yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_tag_stats_get(
    allocator: *mut trtalloc_allocator,
    device: i32,
    tag: *const c_char,
    out: *mut trtalloc_tag_stats,
    out_size: usize,
) -> trtalloc_status {
    status("trtalloc_tag_stats_get", || {
        // SAFETY: the caller's allocator is null or an exported allocator.
        let exported = unsafe { exported(allocator) }?;
        if out.is_null() || tag.is_null() {
            let name = if out.is_null() { "out" } else { "tag" };
            return Err(Error::InvalidArgument(format!("{name} is NULL")));
        }
        // SAFETY: the caller passes a C string.
        let tag = unsafe { CStr::from_ptr(tag) }.to_bytes();
        let figures = match exported.existing() {
            Some(allocator) => allocator.stats_of_tag(ordinal(device), tag)?,
            None => at_rest(device).map(|()| None)?,
        };
        let stats = figures.map(trtalloc_tag_stats::from).unwrap_or_default();
        // SAFETY: the caller guarantees that `out` has `out_size` bytes.
        unsafe { write_prefix(&stats, out, out_size) };
        Ok(())
    })
}
