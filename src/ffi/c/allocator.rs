//! Allocators: creating, finding and closing them.

use std::ffi::{c_char, c_void};

use super::arguments::{exported, make, number, pointer_to, status};
use super::trtalloc_status;
use crate::allocator::Allocator;
use crate::ffi::ExportedAllocator;
use crate::ffi::call;
use crate::support::config::MemoryFrom;
use crate::support::error::Error;

/// An allocator: a pool for each device. It is opaque and safe to use from any thread at any time. It is never freed:
/// after trtalloc_destroy it stays valid, and every request returns NULL. Its tables stay in the host's memory, so create
/// one for the process or for each model, not one for each request.
pub struct trtalloc_allocator {
    // The pointer is to an ExportedAllocator.
    _opaque: [u8; 0],
}

/// Creates an allocator and opens the driver. `options` is "key=value,key=value", or NULL. For keys that it does not name,
/// the environment's TRTALLOC_KEY counts, then the default; a process with another user's rights (setuid) does not read
/// the environment. Fails if there is no driver, or if an option cannot be read.
/// `*out` is set to the allocator, or to NULL on failure. Pass it to trtalloc_destroy when it is no longer needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_create(options: *const c_char, out: *mut *mut trtalloc_allocator) -> trtalloc_status {
    status("trtalloc_create", || {
        // SAFETY: the caller's pointers are null or valid.
        unsafe { make(options, out, MemoryFrom::Driver, Allocator::from_config) }
    })
}

/// Creates an allocator over `bytes` bytes of external memory at `base`: a device's memory, pinned memory or any other.
/// The caller keeps owning the memory: the allocator never accesses it and never frees it. It must stay valid until its
/// last block is freed. All of it belongs to one device: that of `device=`, or the current one. `base` need not be
/// aligned: the address of each block is a multiple of the rule's alignment (`rule=`) or of the request's, whichever is
/// larger. Memory too small for one block is an invalid argument.
/// No driver is needed. Where driver=auto finds no device, and with driver=none, the allocator cannot know when work
/// completes. Then a block that is freed without a stream may be reused at once, so free it after its last use has
/// ended. Calls with a stream are refused unless streams=trusted is set; then only the same stream reuses what was
/// freed on it. `options` and `out` are as in trtalloc_create.
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
        unsafe {
            make(options, out, MemoryFrom::Caller, |config| {
                Allocator::over(base, bytes, config)
            })
        }
    })
}

/// The process's own allocator, with the options of the environment (TRTALLOC_KEY). It is never NULL and never
/// destroyed. Its first allocation opens the driver; if that fails, every request returns NULL for the same reason.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_default() -> *mut trtalloc_allocator {
    pointer_to(ExportedAllocator::process())
}

/// Closes an allocator: new requests return NULL. Blocks that are still allocated stay valid and can be freed through
/// the allocator or its adapters, but not resized; the memory is released with the last block. The call waits for work that
/// may use it, at most wait_ms; memory that work uses longer is released later. The handler of trtalloc_on_oom is removed.
/// NULL and a second call do nothing. trtalloc_default() is not closed.
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
            allocator.write_at_exit();
            // What its context points to may be gone from now on.
            allocator.on_oom(None);
            allocator.close();
        }
        Ok(())
    });
}
