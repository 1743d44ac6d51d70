//! The C ABI. `include/trtalloc/trtalloc.h` is generated from this file and those of `src/capi`: the
//! comments on public items are its text.
//!
//! Nulls and panics stop here. A function that fails leaves the reason for [`trtalloc_last_error`] and a line in the log.

// The names are C's, and the safety of each function is in the words a C programmer reads.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

use std::ffi::{CStr, c_char, c_void};

use crate::allocator::{Allocator, Request};
use crate::driver::Stream;
use crate::error::{self, Error};
use crate::handle::{Handle, call};

pub mod hooks;
pub mod output;
pub mod record;
mod support;
pub mod tags;
mod throw;

use support::{
    allocate, at_rest, deallocate, handle, handle_or_report, make, number, of, ordinal, pointer, pointer_to, status,
    status_of,
};

/// An allocator: a pool for each device. Opaque, and safe to use from any thread at any time. It is never freed: after
/// trtalloc_destroy the handle stays valid and answers every request with NULL.
pub struct trtalloc_allocator {
    // Behind the pointer is a Handle.
    _opaque: [u8; 0],
}

/// What became of a call. trtalloc_last_error() says why.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum trtalloc_status {
    /// It was done.
    Ok = 0,
    /// An argument has no meaning: a null pointer, an option that cannot be read, an address that is not a block's.
    InvalidArgument = 1,
    /// The request cannot be met within the limit and the device's memory.
    OutOfMemory = 2,
    /// Not in this build, or not possible with this driver or for this block.
    Unsupported = 3,
    /// A driver call failed.
    Driver = 4,
    /// A file could not be read or written.
    Io = 5,
    /// The library itself failed; the call was undone as far as that is possible.
    Panic = 6,
}

/// One device's figures, in bytes or counts. Fields are only ever added, at the end.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct trtalloc_stats {
    /// Bytes handed out, as rounded.
    pub allocated: u64,
    /// Highest `allocated` since creation or trtalloc_stats_reset_peaks.
    pub allocated_peak: u64,
    /// Bytes asked for, before rounding.
    pub requested: u64,
    /// Bytes that are free and reusable: by the stream that freed them, or by anybody.
    pub cached: u64,
    /// Bytes freed that nobody may reuse yet.
    pub pending: u64,
    /// Physical memory held.
    pub reserved: u64,
    /// Highest `reserved` since creation or trtalloc_stats_reset_peaks.
    pub reserved_peak: u64,
    /// The limit on `reserved`; 0: none.
    pub limit: u64,
    /// Requests that were met.
    pub allocations: u64,
    /// Blocks taken back.
    pub frees: u64,
    /// Successful calls of trtalloc_reallocate.
    pub reallocations: u64,
    /// Those that kept the address.
    pub reallocations_in_place: u64,
    /// Requests refused for want of memory.
    pub out_of_memory: u64,
    /// Driver calls made that submit work or may block.
    pub driver_calls: u64,
    /// Driver calls made that only ask.
    pub driver_queries: u64,
    /// Bytes copied by trtalloc_reallocate, where virtual memory is missing.
    pub bytes_copied: u64,
    /// Pieces of memory moved to another address to make a contiguous range.
    pub remaps: u64,
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

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
/// freed without a stream is anybody's at once, so free it when every use is over. Calls with a stream are refused then,
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
    pointer_to(Handle::process())
}

/// Closes an allocator: new requests get NULL; blocks still out stay valid and may be freed through it or its adapters;
/// memory goes with the last block. NULL and a second time are harmless; trtalloc_default() is left as it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_destroy(allocator: *mut trtalloc_allocator) {
    if allocator.is_null() {
        return;
    }
    call::guarded("trtalloc_destroy", (), || {
        // SAFETY: handles are never freed, and the caller passes no other pointer.
        let handle = unsafe { handle(allocator) }?;
        if handle.is_process() {
            return Err(Error::InvalidArgument(
                "the process's own allocator is never destroyed".into(),
            ));
        }
        if let Some(allocator) = handle.existing() {
            allocator.close();
        }
        Ok(())
    });
}

/// A block of `size` bytes or more on the current device, for use by anybody at once; NULL where the request cannot be
/// met, and where `size` is 0. `alignment` is 0 or a power of two up to 2 MiB. `flags` is 0 or TRTALLOC_RESIZABLE; other
/// bits are ignored, with one line in the log.
/// The block is the caller's until it is given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_allocate(
    allocator: *mut trtalloc_allocator,
    size: u64,
    alignment: u64,
    flags: u32,
) -> *mut c_void {
    // SAFETY: the caller's allocator is null or a handle.
    unsafe {
        allocate(
            "trtalloc_allocate",
            allocator,
            Request {
                size,
                alignment,
                flags,
                stream: None,
                device: None,
            },
        )
    }
}

/// As trtalloc_allocate, for use by work queued on `stream` from now on (a CUstream or cudaStream_t; NULL is the default
/// stream of the current context), on the stream's device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_allocate_async(
    allocator: *mut trtalloc_allocator,
    size: u64,
    alignment: u64,
    flags: u32,
    stream: *mut c_void,
) -> *mut c_void {
    let request = Request {
        size,
        alignment,
        flags,
        stream: of(stream),
        device: None,
    };
    // SAFETY: the caller's allocator is null or a handle.
    unsafe { allocate("trtalloc_allocate_async", allocator, request) }
}

/// As trtalloc_allocate_async, on `device`, which is the stream's; -1: the stream's, whichever it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_allocate_on(
    allocator: *mut trtalloc_allocator,
    device: i32,
    size: u64,
    alignment: u64,
    flags: u32,
    stream: *mut c_void,
) -> *mut c_void {
    let request = Request {
        size,
        alignment,
        flags,
        stream: of(stream),
        device: ordinal(device),
    };
    // SAFETY: the caller's allocator is null or a handle.
    unsafe { allocate("trtalloc_allocate_on", allocator, request) }
}

/// Makes a block that was allocated TRTALLOC_RESIZABLE larger or smaller and keeps the bytes that both sizes have; where
/// virtual memory is there, none is copied. Returns the block's address, which may be another; NULL where it could not be
/// done, and then the old block stands as it was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_reallocate(
    allocator: *mut trtalloc_allocator,
    address: *mut c_void,
    alignment: u64,
    new_size: u64,
) -> *mut c_void {
    // SAFETY: the caller's allocator is null or a handle.
    let Some(handle) = (unsafe { handle_or_report("trtalloc_reallocate", allocator) }) else {
        return std::ptr::null_mut();
    };
    pointer(call::reallocate(
        "trtalloc_reallocate",
        handle,
        number(address),
        alignment,
        new_size,
    ))
}

/// Takes a block back. Work queued so far, on any stream, may still use it. True where it was taken; NULL always is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_deallocate(allocator: *mut trtalloc_allocator, memory: *mut c_void) -> bool {
    // SAFETY: the caller's allocator is null or a handle.
    unsafe { deallocate("trtalloc_deallocate", allocator, memory, None) }
}

/// Takes a block back. Work queued so far on `stream` may still use it, and on the streams of trtalloc_record_stream; work
/// on others must have completed, or be ordered before this point of `stream`. True where it was taken; NULL always is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_deallocate_async(
    allocator: *mut trtalloc_allocator,
    memory: *mut c_void,
    stream: *mut c_void,
) -> bool {
    // SAFETY: the caller's allocator is null or a handle.
    unsafe { deallocate("trtalloc_deallocate_async", allocator, memory, of(stream)) }
}

/// Declares that the block is also used on `stream`: once it is freed, it waits for the work queued there too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_record_stream(
    allocator: *mut trtalloc_allocator,
    memory: *mut c_void,
    stream: *mut c_void,
) -> trtalloc_status {
    status("trtalloc_record_stream", || {
        // SAFETY: the caller's allocator is null or a handle.
        let allocator = unsafe { handle(allocator) }?.existing().ok_or_else(call::foreign)?;
        allocator.record_stream(number(memory) as u64, Stream(number(stream)))
    })
}

/// Says that `stream` is about to be destroyed, so that what it freed can serve others. Not calling it is safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_stream_release(
    allocator: *mut trtalloc_allocator,
    stream: *mut c_void,
) -> trtalloc_status {
    status("trtalloc_stream_release", || {
        // SAFETY: the caller's allocator is null or a handle.
        match unsafe { handle(allocator) }?.existing() {
            Some(allocator) => allocator.stream_release(Stream(number(stream))),
            None => Ok(()),
        }
    })
}

/// Writes a device's figures to `out`: the first min(out_size, what this library knows) bytes, and zeroes up to
/// `out_size`. `out_size` is sizeof(trtalloc_stats) as the caller was compiled. `device` -1: the current one.
/// `limit` is right from the beginning. trtalloc_default() touches no driver before its first allocation: until then the
/// rest is zeroes, and so is a limit in percent of the device's memory, which is not known yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_stats_get(
    allocator: *mut trtalloc_allocator,
    device: i32,
    out: *mut trtalloc_stats,
    out_size: usize,
) -> trtalloc_status {
    status("trtalloc_stats_get", || {
        // SAFETY: the caller's allocator is null or a handle.
        let handle = unsafe { handle(allocator) }?;
        if out.is_null() {
            return Err(Error::InvalidArgument("out is NULL".into()));
        }
        let stats = match handle.existing() {
            Some(allocator) => trtalloc_stats::from(allocator.stats(ordinal(device))?),
            None => at_rest(device).map(|()| handle.stats_at_rest().into())?,
        };
        let known = out_size.min(size_of::<trtalloc_stats>());
        // SAFETY: out holds out_size bytes, as the caller says, and `stats` at least `known`; they do not overlap.
        unsafe {
            out.cast::<u8>().write_bytes(0, out_size);
            out.cast::<u8>()
                .copy_from_nonoverlapping((&raw const stats).cast(), known);
        }
        Ok(())
    })
}

/// Starts a device's peaks anew from what is now. `device` -1: the current one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_stats_reset_peaks(
    allocator: *mut trtalloc_allocator,
    device: i32,
) -> trtalloc_status {
    status("trtalloc_stats_reset_peaks", || {
        // SAFETY: the caller's allocator is null or a handle.
        match unsafe { handle(allocator) }?.existing() {
            Some(allocator) => allocator.reset_peaks(ordinal(device)),
            None => at_rest(device),
        }
    })
}

/// Gives memory that is free back to the driver until at most `keep_bytes` stay reserved. `device` -1: the current one.
/// `*released` gets the bytes given back; `released` may be NULL.
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
        // SAFETY: the caller's allocator is null or a handle.
        let bytes = match unsafe { handle(allocator) }?.existing() {
            Some(allocator) => allocator.trim(ordinal(device), keep_bytes)?,
            None => at_rest(device).map(|()| 0)?,
        };
        if let Some(released) = released {
            *released = bytes;
        }
        Ok(())
    })
}

/// Caps what a device's pool holds; 0: no cap. What it holds beyond the cap it gives back as that falls free. `device` -1:
/// the current one. Opens the driver where trtalloc_default() has not been used yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_set_limit(
    allocator: *mut trtalloc_allocator,
    device: i32,
    bytes: u64,
) -> trtalloc_status {
    status("trtalloc_set_limit", || {
        // SAFETY: the caller's allocator is null or a handle.
        unsafe { handle(allocator) }?
            .allocator()?
            .set_limit(ordinal(device), bytes)
    })
}

/// Lets what TensorRT creates from now on allocate through trtalloc_default() (1), or not (0), where this library stands in
/// front of TensorRT's creation functions: where it was preloaded, linked before TensorRT, or opened RTLD_GLOBAL before what
/// uses TensorRT. A program that finds those functions with dlsym has to call this first. TRTALLOC_STATUS_UNSUPPORTED where
/// the environment has TRTALLOC_DISABLE=1.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_inject(on: i32) -> trtalloc_status {
    status("trtalloc_inject", || match on {
        0 | 1 => crate::inject::set(on == 1),
        _ => Err(Error::InvalidArgument(format!("on is {on}, not 0 or 1"))),
    })
}

/// Why this thread's last failing call failed, in words. Never NULL; empty where none has failed. Valid until the thread's
/// next call of this library.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_last_error() -> *const c_char {
    error::last()
}

/// Why this thread's last failing call failed, as a number: TRTALLOC_STATUS_OK where none has failed. It goes with
/// trtalloc_last_error, so a call that succeeds leaves it as it is.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_last_status() -> trtalloc_status {
    status_of(error::last_status())
}

/// The library's version, as "0.1.0". Valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_version() -> *const c_char {
    VERSION.as_ptr()
}

/// The allocator as an nvinfer1::IGpuAllocator* for the ABI of `tensorrt_version`: NV_TENSORRT_VERSION, or the version that
/// createInfer* is given. The same pointer each time. It belongs to the allocator, is never to be deleted, and stays valid
/// for ever. NULL where this library does not know that version's interface.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_tensorrt_allocator(
    allocator: *mut trtalloc_allocator,
    tensorrt_version: i32,
) -> *mut c_void {
    let adapter = call::guarded("trtalloc_tensorrt_allocator", 0, || {
        // SAFETY: the caller's allocator is null or a handle.
        unsafe { handle(allocator) }?.tensorrt(tensorrt_version)
    });
    pointer(adapter)
}
