//! History and snapshots.

use std::ffi::c_char;

use super::arguments::{exported, file, status, text};
use super::{trtalloc_allocator, trtalloc_status};
use crate::history::snapshot::Snapshot;

/// Sets what is recorded from now on. The first word is "off", "state" (for live blocks, where they were allocated) or
/// "all" (also every event). Options follow: ",context=none|state|alloc|all" (what gets a stack),
/// ",stacks=none|native|python|all", ",max_entries=N" (how many events are kept, 100000 by default), ",device=N" (only
/// that device is recorded). May be called at any time, from any thread. If only `context` or `stacks` change, the
/// history continues; any other change begins a new one. Opens the driver if trtalloc_default() has not been used yet.
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

/// Writes a snapshot of the memory and the history to the file `path`. The suffix chooses the format: .pickle for
/// PyTorch's memory viewer, .json, or .html, a page for a browser that needs no network. The file appears once it is
/// complete; a failure leaves the file that was there before, or none. Other threads wait only while the state is
/// copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_snapshot(allocator: *mut trtalloc_allocator, path: *const c_char) -> trtalloc_status {
    status("trtalloc_snapshot", || {
        // SAFETY: the caller's pointers are null or valid.
        let (exported, path) = unsafe { (exported(allocator)?, file("path", path)?) };
        match exported.existing() {
            Some(allocator) => allocator.write_snapshot(path),
            None => Snapshot::default().write(path),
        }
    })
}
