//! Names for allocations, and figures as text.

use std::ffi::c_char;

use super::support::{at_rest, handle, ordinal, status, text};
use super::{trtalloc_allocator, trtalloc_status};
use crate::error::{Error, Result};
use crate::handle::{Handle, call};
use crate::tags;

/// Names this thread's allocations from now on, in every allocator: an engine, a model, a framework. NULL: no name. What a
/// name holds is told by trtalloc_stats_json and trtalloc_metrics, and can be limited by trtalloc_set_tag_limit. A name has
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
        let (handle, tag) = unsafe { (handle(allocator)?, text("tag", tag)?) };
        handle.allocator()?.set_tag_limit(ordinal(device), tag, bytes)
    })
}

/// Writes a device's figures as one JSON object to `buffer`: the names of trtalloc_stats, and `tags`, a list with an object
/// for each tag. `device` -1: the current one. As snprintf, it writes at most `size` bytes with a closing NUL and returns the
/// bytes that the whole text has without it; 0 where it failed. `buffer` may be NULL where `size` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_stats_json(
    allocator: *mut trtalloc_allocator,
    device: i32,
    buffer: *mut c_char,
    size: usize,
) -> usize {
    // SAFETY: as the caller says.
    unsafe {
        written("trtalloc_stats_json", allocator, buffer, size, |handle| {
            match handle.existing() {
                Some(allocator) => allocator.stats_json(ordinal(device)),
                None => at_rest(device).map(|()| crate::stats::json(device, &handle.stats_at_rest(), &[])),
            }
        })
    }
}

/// Writes the figures of every device and of its tags to `buffer` in the OpenMetrics text format, for a server to expose to
/// Prometheus; otherwise as trtalloc_stats_json.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_metrics(
    allocator: *mut trtalloc_allocator,
    buffer: *mut c_char,
    size: usize,
) -> usize {
    // SAFETY: as the caller says.
    unsafe {
        written("trtalloc_metrics", allocator, buffer, size, |handle| {
            match handle.existing() {
                Some(allocator) => allocator.metrics(),
                None => Ok(crate::stats::metrics(&[])),
            }
        })
    }
}

/// # Safety
/// `allocator` is null or a handle; `buffer` has `size` bytes.
unsafe fn written(
    name: &'static str,
    allocator: *mut trtalloc_allocator,
    buffer: *mut c_char,
    size: usize,
    make: impl FnOnce(&Handle) -> Result<String>,
) -> usize {
    call::guarded(name, 0, || {
        // SAFETY: as this function demands.
        let text = make(unsafe { handle(allocator) }?)?;
        if size > 0 {
            if buffer.is_null() {
                return Err(Error::InvalidArgument("buffer is NULL".into()));
            }
            // Text that is cut in the middle of a character is the reader's to notice: the length says so.
            let bytes = text.len().min(size - 1);
            // SAFETY: `buffer` has `size` bytes, of which `bytes + 1` are written; nothing else knows them.
            unsafe {
                buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), bytes);
                buffer.add(bytes).write(0);
            }
        }
        Ok(text.len())
    })
}
