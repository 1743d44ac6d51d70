//! Tags: names for allocations.

use std::ffi::c_char;

use super::arguments::{exported, ordinal, status, text};
use super::{trtalloc_allocator, trtalloc_status};
use crate::ffi::call;
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
