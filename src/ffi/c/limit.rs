//! Limits, trimming, and the handler for requests that cannot be satisfied.

use std::ffi::c_void;
use std::sync::Arc;

use super::arguments::{at_rest, exported, ordinal, status};
use super::{trtalloc_allocator, trtalloc_status};
use crate::allocator::OomHandler;

/// Limits the memory that a device's pool holds; 0: no limit. If the pool holds more now, it returns the excess to the
/// driver as memory becomes free. `device` -1: the current one. Opens the driver if trtalloc_default() has not been
/// used yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_set_limit(
    allocator: *mut trtalloc_allocator,
    device: i32,
    bytes: u64,
) -> trtalloc_status {
    status("trtalloc_set_limit", || {
        // SAFETY: the caller's allocator is null or an exported allocator.
        unsafe { exported(allocator) }?
            .allocator()?
            .set_limit(ordinal(device), bytes)
    })
}

/// Returns free memory to the driver until at most `keep_bytes` stay reserved. `device` -1: the current one.
/// `*released` is set to the number of bytes returned; `released` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_trim(
    allocator: *mut trtalloc_allocator,
    device: i32,
    keep_bytes: u64,
    released: *mut u64,
) -> trtalloc_status {
    status("trtalloc_trim", || {
        // SAFETY: released is null or the caller's to write.
        let released = unsafe { released.as_mut() };
        // SAFETY: the caller's allocator is null or an exported allocator.
        let bytes = match unsafe { exported(allocator) }?.existing() {
            Some(allocator) => allocator.trim(ordinal(device), keep_bytes)?,
            None => at_rest(device).map(|()| 0)?,
        };
        if let Some(released) = released {
            *released = bytes;
        }
        Ok(())
    })
}

/// Called when a request cannot be satisfied. Returning true makes the allocator try the request again. `context` is
/// the pointer that trtalloc_on_oom received.
pub type trtalloc_oom_handler = Option<unsafe extern "C" fn(context: *mut c_void, device: i32, size: u64) -> bool>;

/// Sets the function that is called, with `context`, when a request cannot be satisfied. It replaces the one set
/// before; NULL sets none. It runs on the requesting thread, so it may run on several threads at once. It may use the
/// allocator: allocate, free, trim. A request of its own that cannot be satisfied calls no handler. One request
/// is tried again at most 100 times. A call that has begun may still be running when this function or
/// trtalloc_destroy returns; trtalloc_destroy removes the handler. The handler must return: an exception that leaves it
/// ends the process. Opens the driver if trtalloc_default() has not been used yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_on_oom(
    allocator: *mut trtalloc_allocator,
    handler: trtalloc_oom_handler,
    context: *mut c_void,
) -> trtalloc_status {
    status("trtalloc_on_oom", || {
        // SAFETY: the caller's allocator is null or an exported allocator.
        let allocator = unsafe { exported(allocator) }?.allocator()?;
        allocator.on_oom(handler.map(|function| {
            let context = context.expose_provenance();
            let handler = move |device, size| {
                let context = std::ptr::with_exposed_provenance_mut(context);
                // SAFETY: the caller registered this function to be called with this context.
                unsafe { function(context, device, size) }
            };
            Arc::new(handler) as OomHandler
        }));
        Ok(())
    })
}
