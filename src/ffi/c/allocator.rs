//! Allocators: made, found, closed.

use std::ffi::{c_char, c_void};

use super::arguments::{exported, make, number, pointer_to, status};
use super::trtalloc_status;
use crate::allocator::Allocator;
use crate::ffi::ExportedAllocator;
use crate::ffi::call;
use crate::support::error::Error;

/// An allocator: a pool for each device. Opaque, and safe to use from any thread at any time. It is never freed: after
/// trtalloc_destroy the allocator stays valid and answers every request with NULL.
pub struct trtalloc_allocator {
    // Behind the pointer is a ExportedAllocator.
    _opaque: [u8; 0],
}

/// Makes an allocator. `options` is "key=value,key=value", or NULL for the defaults; the environment is not read. Opens
/// the driver, and fails where there is none, or an option cannot be read.
/// `*out` gets the allocator, or NULL on failure; give it to trtalloc_destroy when it is no longer needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_create(options: *const c_char, out: *mut *mut trtalloc_allocator) -> trtalloc_status {
    status("trtalloc_create", || {
        // SAFETY: the caller's pointers are null or valid.
        unsafe { make(options, out, Allocator::from_config) }
    })
}

/// Makes an allocator over `bytes` bytes at `base`: a device's memory, pinned memory or any other. It stays the caller's: it
/// is never touched and never freed, must live until the last block of it is given back, and is one device's (`device=`, or
/// the current one). `base` may lie anywhere: blocks start at multiples of the rule's alignment (`rule=`) or of the
/// request's, whichever is larger, as addresses. Memory in which not one block has room is an invalid argument.
/// No driver is needed. Where driver=auto finds no device, or with driver=none, nothing can be known of work: a block that is
/// freed without a stream may be handed out at once, so free it when every use is over. Calls with a stream are refused then,
/// unless streams=trusted: what is freed on a stream serves that stream alone. `options` and `out` as in trtalloc_create.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_create_from(
    base: *mut c_void,
    bytes: u64,
    options: *const c_char,
    out: *mut *mut trtalloc_allocator,
) -> trtalloc_status {
    status("trtalloc_create_from", || {
        let base = number(base) as u64;
        // SAFETY: the caller's pointers are null or valid.
        unsafe { make(options, out, |config| Allocator::over(base, bytes, config)) }
    })
}

/// The process's own allocator, with the options of the environment (TRTALLOC_KEY). Never NULL, never destroyed. Opens no
/// driver before its first allocation; if that fails, every request gets NULL for the same reason.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_default() -> *mut trtalloc_allocator {
    pointer_to(ExportedAllocator::process())
}

/// Closes an allocator: new requests get NULL; blocks still out stay valid and may be freed through it or its adapters;
/// memory goes with the last block. NULL and a second time are harmless; trtalloc_default() is left as it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_destroy(allocator: *mut trtalloc_allocator) {
    if allocator.is_null() {
        return;
    }
    call::guarded("trtalloc_destroy", (), || {
        // SAFETY: exported allocators are never freed, and the caller passes no other pointer.
        let exported = unsafe { exported(allocator) }?;
        if exported.is_process() {
            return Err(Error::InvalidArgument(
                "the process's own allocator is never destroyed".into(),
            ));
        }
        if let Some(allocator) = exported.existing() {
            allocator.close();
        }
        Ok(())
    });
}
