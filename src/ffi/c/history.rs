//! History and snapshots.

use std::ffi::c_char;
use std::path::Path;

use super::arguments::{exported, status, text};
use super::{trtalloc_allocator, trtalloc_status};
use crate::history::snapshot::Snapshot;

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
        let (exported, options) = unsafe { (exported(allocator)?, text("options", options)?) };
        exported.allocator()?.history(options)
    })
}

/// Writes what is held, and the history, to the file `path`, by its suffix: .pickle or .json, as PyTorch's memory viewer reads
/// them, or .html, a page for a browser that needs no network. The file appears when it is whole; on a failure there is none,
/// or what was there before. Other threads wait only while the state is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_snapshot(allocator: *mut trtalloc_allocator, path: *const c_char) -> trtalloc_status {
    status("trtalloc_snapshot", || {
        // SAFETY: the caller's pointers are null or valid.
        let (exported, path) = unsafe { (exported(allocator)?, Path::new(text("path", path)?)) };
        match exported.existing() {
            Some(allocator) => allocator.write_snapshot(path),
            None => Snapshot::default().write(path),
        }
    })
}
