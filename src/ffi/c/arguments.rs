//! Converts what callers in C pass and receive: pointers, numbers, texts and states.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use super::{trtalloc_allocator, trtalloc_stats, trtalloc_status, trtalloc_tag_stats};
use crate::allocator::{Allocator, MAX_DEVICES, Request};
use crate::driver::Stream;
use crate::ffi::ExportedAllocator;
use crate::ffi::call;
use crate::support::config::{Config, MemoryFrom, variable_of};
use crate::support::error::{Error, Result};
use crate::support::stats::{Stats, TagStats};

/// The exported allocator behind a caller's pointer.
///
/// # Safety
/// `allocator` is null or came from this library, which never frees such an object.
#[inline]
pub(in crate::ffi::c) unsafe fn exported(allocator: *mut trtalloc_allocator) -> Result<&'static ExportedAllocator> {
    // SAFETY: as this function demands.
    match unsafe { allocator.cast::<ExportedAllocator>().as_ref() } {
        Some(exported) => Ok(exported),
        None => Err(Error::InvalidArgument("allocator is NULL".into())),
    }
}

/// As [`exported`], and records and logs the failure.
///
/// # Safety
/// As [`exported`].
#[inline]
pub(in crate::ffi::c) unsafe fn exported_or_report(
    call: &'static str,
    allocator: *mut trtalloc_allocator,
) -> Option<&'static ExportedAllocator> {
    // SAFETY: as this function demands.
    match unsafe { exported(allocator) } {
        Ok(exported) => Some(exported),
        Err(error) => {
            call::report(call, &error);
            None
        }
    }
}

/// # Safety
/// As [`exported`].
#[inline]
pub(in crate::ffi::c) unsafe fn allocate(
    call: &'static str,
    allocator: *mut trtalloc_allocator,
    request: Request,
) -> *mut c_void {
    // SAFETY: as this function demands.
    match unsafe { exported_or_report(call, allocator) } {
        Some(exported) => pointer(call::allocate(call, exported, &request)),
        None => std::ptr::null_mut(),
    }
}

/// # Safety
/// As [`exported`].
#[inline]
pub(in crate::ffi::c) unsafe fn deallocate(
    call: &'static str,
    allocator: *mut trtalloc_allocator,
    memory: *mut c_void,
    stream: Option<Stream>,
) -> bool {
    // SAFETY: as this function demands.
    match unsafe { exported_or_report(call, allocator) } {
        Some(exported) => call::deallocate(call, exported, number(memory), stream),
        None => false,
    }
}

/// Reads the options and the environment, creates the allocator and writes the exported allocator to `out`.
///
/// # Safety
/// `options` is null or a C string, and `out` is null or writable.
pub(in crate::ffi::c) unsafe fn make(
    options: *const c_char,
    out: *mut *mut trtalloc_allocator,
    memory: MemoryFrom,
    allocator: impl FnOnce(Config) -> Result<Arc<Allocator>>,
) -> Result<()> {
    // SAFETY: as this function demands.
    let Some(out) = (unsafe { out.as_mut() }) else {
        return Err(Error::InvalidArgument("out is NULL".into()));
    };
    *out = std::ptr::null_mut();
    let options = match options.is_null() {
        true => "",
        // SAFETY: as this function demands.
        false => unsafe { text("options", options) }?,
    };
    crate::support::log::init_from_environment();
    let config = Config::over_environment(options, memory)?;
    // The process has one level. An allocator whose options name none does not change it.
    if Config::names(options, "log") {
        crate::support::log::init(config.log);
    }
    for key in ["inject", "disable"] {
        if Config::names(options, key) {
            let variable = variable_of(key);
            tracing::warn!(
                "the option `{key}` acts in the environment alone, as {variable}=1; in code there is trtalloc_inject"
            );
        }
    }
    *out = pointer_to(ExportedAllocator::new(allocator(config)?));
    Ok(())
}

/// # Safety
/// `text` is null or a C string that lives as long as the result.
pub(in crate::ffi::c) unsafe fn text<'a>(name: &str, text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Err(Error::InvalidArgument(format!("{name} is NULL")));
    }
    // SAFETY: as this function demands.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| Error::InvalidArgument(format!("{name} is not UTF-8")))
}

/// A file's path, which may have any bytes.
///
/// # Safety
/// As [`text`].
pub(in crate::ffi::c) unsafe fn file<'a>(name: &str, path: *const c_char) -> Result<&'a Path> {
    if path.is_null() {
        return Err(Error::InvalidArgument(format!("{name} is NULL")));
    }
    // SAFETY: as this function demands.
    let path = unsafe { CStr::from_ptr(path) };
    Ok(Path::new(OsStr::from_bytes(path.to_bytes())))
}

pub(in crate::ffi::c) fn pointer_to(exported: &'static ExportedAllocator) -> *mut trtalloc_allocator {
    // The pointer is mutable only for C: every field that changes is atomic.
    std::ptr::from_ref(exported).cast::<trtalloc_allocator>().cast_mut()
}

pub(in crate::ffi::c) fn status(call: &'static str, body: impl FnOnce() -> Result<()>) -> trtalloc_status {
    status_of(call::status(call, body))
}

/// The status with the number that [`Error::status`] returns.
pub(in crate::ffi::c) fn status_of(number: i32) -> trtalloc_status {
    match number {
        0 => trtalloc_status::Ok,
        1 => trtalloc_status::InvalidArgument,
        2 => trtalloc_status::OutOfMemory,
        3 => trtalloc_status::Unsupported,
        4 => trtalloc_status::Driver,
        5 => trtalloc_status::Io,
        _ => trtalloc_status::Panic,
    }
}

/// The stream that a C caller passes. It is never none, since NULL is the default stream.
pub(in crate::ffi::c) fn of(stream: *mut c_void) -> Option<Stream> {
    Some(Stream(number(stream)))
}

/// The device that a C caller passes; -1 is the current one.
pub(in crate::ffi::c) fn ordinal(device: i32) -> Option<i32> {
    (device != -1).then_some(device)
}

/// Checks the device of a call on an allocator that is not open yet. That allocator uses no driver, so it refuses only
/// the numbers that no device can have.
#[cold]
pub(in crate::ffi::c) fn at_rest(device: i32) -> Result<()> {
    match ordinal(device) {
        Some(device) if !(0..MAX_DEVICES).contains(&device) => Err(Error::InvalidArgument(format!("device {device}"))),
        _ => Ok(()),
    }
}

/// Device addresses and driver handles are treated as numbers.
pub(in crate::ffi::c) fn number(pointer: *mut c_void) -> usize {
    pointer.expose_provenance()
}

pub(in crate::ffi::c) fn pointer(number: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(number)
}

/// Writes the first min(out_size, `size_of::<T>()`) bytes of `value` to `out`, and zeroes up to `out_size`.
///
/// # Safety
/// `out` has `out_size` bytes that no other code uses. `T` has no padding.
pub(in crate::ffi::c) unsafe fn write_prefix<T: Copy>(value: &T, out: *mut T, out_size: usize) {
    let known = out_size.min(size_of::<T>());
    // SAFETY: as this function demands; `value` has at least `known` bytes, and does not overlap with `out`.
    unsafe {
        out.cast::<u8>().write_bytes(0, out_size);
        out.cast::<u8>()
            .copy_from_nonoverlapping(std::ptr::from_ref(value).cast(), known);
    }
}

impl From<TagStats> for trtalloc_tag_stats {
    fn from(stats: TagStats) -> trtalloc_tag_stats {
        let TagStats {
            tag: _,
            allocated,
            allocated_peak,
            limit,
            allocations,
            frees,
            out_of_memory,
        } = stats;
        trtalloc_tag_stats {
            allocated,
            allocated_peak,
            limit,
            allocations,
            frees,
            out_of_memory,
        }
    }
}

impl From<Stats> for trtalloc_stats {
    fn from(stats: Stats) -> trtalloc_stats {
        // Each field is named, so that a field that only one of the two has is an error of the compiler.
        let Stats {
            allocated,
            allocated_peak,
            requested,
            cached,
            pending,
            reserved,
            reserved_peak,
            limit,
            allocations,
            frees,
            reallocations,
            reallocations_in_place,
            out_of_memory,
            driver_calls,
            driver_queries,
            bytes_copied,
            remaps,
            device_free,
            device_total,
            held_by_others,
            largest_free,
            waits,
            wait_ns,
            trims,
            trim_ns,
            driver_ns,
            available,
            awaiting_work,
        } = stats;
        trtalloc_stats {
            allocated,
            allocated_peak,
            requested,
            cached,
            pending,
            reserved,
            reserved_peak,
            limit,
            allocations,
            frees,
            reallocations,
            reallocations_in_place,
            out_of_memory,
            driver_calls,
            driver_queries,
            bytes_copied,
            remaps,
            device_free,
            device_total,
            held_by_others,
            largest_free,
            waits,
            wait_ns,
            trims,
            trim_ns,
            driver_ns,
            available,
            awaiting_work,
        }
    }
}
