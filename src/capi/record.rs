//! History, snapshots, and what is called when memory is short.

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::sync::Arc;

use super::support::{handle, status, text};
use super::{trtalloc_allocator, trtalloc_status};
use crate::allocator::OomHandler;
use crate::record::snapshot::Snapshot;

/// Sets what is recorded from now on: "off", "state" (of what is live, where it was allocated) or "all" (and every event),
/// then ",context=none|state|alloc|all" (what gets a stack), ",stacks=none|native|python|all", ",max_entries=N" (events that
/// are kept, 100000 by default), ",device=N" (no other one's). May be called at any time, from any thread; a history goes on
/// where only `context` or `stacks` change, and begins anew where the rest does. Opens the driver where
/// trtalloc_default() has not been used yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_history(
    allocator: *mut trtalloc_allocator,
    options: *const c_char,
) -> trtalloc_status {
    status("trtalloc_history", || {
        // SAFETY: the caller's pointers are null or valid.
        let (handle, options) = unsafe { (handle(allocator)?, text("options", options)?) };
        handle.allocator()?.history(options)
    })
}

/// Writes what is held, and the history, to the file `path`, by its suffix: .pickle or .json, as PyTorch's memory viewer reads
/// them, or .html, a page for a browser that needs no network. The file appears when it is whole; on a failure there is none, or what was there before. Other threads wait only
/// while the state is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_snapshot(allocator: *mut trtalloc_allocator, path: *const c_char) -> trtalloc_status {
    status("trtalloc_snapshot", || {
        // SAFETY: the caller's pointers are null or valid.
        let (handle, path) = unsafe { (handle(allocator)?, Path::new(text("path", path)?)) };
        match handle.existing() {
            Some(allocator) => allocator.write_snapshot(path),
            None => Snapshot::default().write(path),
        }
    })
}

/// Called when a request cannot be met; true asks for another try. `context` is what trtalloc_on_oom was given.
pub type trtalloc_oom_handler = Option<unsafe extern "C" fn(context: *mut c_void, device: i32, size: u64) -> bool>;

/// Sets what is called, with `context`, when a request cannot be met, in place of what was set before; NULL: nothing. It is
/// called on the requesting thread, on several threads at once where several ask, and may use the allocator: allocate, free,
/// trim. A request of its own that cannot be met does not call it again. One request is tried at most 100 times more. A call
/// that has begun may still be running when this returns. Opens the driver where trtalloc_default() has not been used yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_on_oom(
    allocator: *mut trtalloc_allocator,
    handler: trtalloc_oom_handler,
    context: *mut c_void,
) -> trtalloc_status {
    status("trtalloc_on_oom", || {
        // SAFETY: the caller's allocator is null or a handle.
        let allocator = unsafe { handle(allocator) }?.allocator()?;
        allocator.on_oom(handler.map(|function| {
            let context = context.expose_provenance();
            let handler = move |device, size| {
                let context = std::ptr::with_exposed_provenance_mut(context);
                // SAFETY: the caller's function, with the caller's context, as it asked for.
                unsafe { function(context, device, size) }
            };
            Arc::new(handler) as OomHandler
        }));
        Ok(())
    })
}
