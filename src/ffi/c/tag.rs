//! Tags: names for allocations.

use std::ffi::c_char;

use super::arguments::{exported, ordinal, status, text};
use super::{trtalloc_allocator, trtalloc_status};
use crate::ffi::call;
use crate::support::tags;

/// Names this thread's allocations from now on, in every allocator: an engine, a model, a framework. NULL: no name. What a
/// name holds is in trtalloc_stats_json and trtalloc_metrics, and can be limited by trtalloc_set_tag_limit. A name has
/// at most 255 bytes of UTF-8, and a process at most 1023 of them; another is refused, and the one before stays. The text is
/// not kept by pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_set_tag(tag: *const c_char) {
    call::guarded("trtalloc_set_tag", (), || {
        let tag = match tag.is_null() {
            true => None,
            // SAFETY: a C string, as the caller says.
            false => Some(unsafe { text("tag", tag) }?),
        };
        tags::set(tag)
    });
}

/// Caps what blocks of one tag may take of a device's pool, in bytes as handed out; 0: no cap. A request beyond it gets NULL,
/// and memory that is out already stays. `device` -1: the current one. Opens the driver where trtalloc_default() has not been
/// used yet.
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
