//! Statistics: as a struct, and as text.

use std::ffi::c_char;

use super::arguments::{at_rest, exported, ordinal, status, write_prefix};
use super::{trtalloc_allocator, trtalloc_status};
use crate::ffi::ExportedAllocator;
use crate::ffi::call;
use crate::support::error::{Error, Result};

/// One device's statistics, in bytes or counts. New fields are added only at the end.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct trtalloc_stats {
    /// Bytes allocated, after rounding.
    pub allocated: u64,
    /// Highest `allocated` since creation or trtalloc_stats_reset_peaks.
    pub allocated_peak: u64,
    /// Bytes requested, before rounding.
    pub requested: u64,
    /// Bytes that are free and reusable, by the stream that freed them or by any stream.
    pub cached: u64,
    /// Bytes freed but not yet reusable.
    pub pending: u64,
    /// Physical memory held.
    pub reserved: u64,
    /// Highest `reserved` since creation or trtalloc_stats_reset_peaks.
    pub reserved_peak: u64,
    /// The limit on `reserved`; 0: none.
    pub limit: u64,
    /// Requests that succeeded.
    pub allocations: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Successful calls of trtalloc_reallocate.
    pub reallocations: u64,
    /// Those that kept the block's address.
    pub reallocations_in_place: u64,
    /// Requests refused because memory ran out.
    pub out_of_memory: u64,
    /// Driver calls that submit work or may block.
    pub driver_calls: u64,
    /// Driver calls that only query.
    pub driver_queries: u64,
    /// Bytes copied by trtalloc_reallocate, for blocks that have no pages of their own.
    pub bytes_copied: u64,
    /// Handles of physical memory moved to another address to make a contiguous range.
    pub remaps: u64,
    /// Bytes free on the device; 0 where the driver does not say. Only trtalloc_stats_get and trtalloc_stats_json
    /// ask it.
    pub device_free: u64,
    /// The device's memory; 0 as above.
    pub device_total: u64,
    /// Bytes of the device that others hold: contexts, kernels, other allocators and other processes; 0 as above.
    pub held_by_others: u64,
    /// The largest range that is free for every stream. A request of this size needs no more memory.
    pub largest_free: u64,
    /// Times that a request or a trim waited for work to complete.
    pub waits: u64,
    /// Nanoseconds of these waits.
    pub wait_ns: u64,
    /// Trims: calls of trtalloc_trim, limits that were lowered, and a framework's calls to empty the cache.
    pub trims: u64,
    /// Nanoseconds of these trims.
    pub trim_ns: u64,
    /// Nanoseconds of the calls counted in driver_calls.
    pub driver_ns: u64,
    /// Bytes that requests can still have in total: `cached` and `pending`, and what the limit, the headroom and the
    /// device leave beyond `reserved`. The second part is 0 where device_total is, for external memory, and for pinned
    /// memory without a limit.
    pub available: u64,
    /// Bytes of `cached` and `pending` that are free for one stream or for none, because the work that used them is not
    /// known to have completed. No request has to wait for the rest of `available`. trtalloc_stats_get queries no event,
    /// so work counts until a request has found it complete.
    pub awaiting_work: u64,
}

/// Writes a device's statistics to `out`: the first min(out_size, the size that this library knows) bytes, and zeroes
/// up to `out_size`. `out_size` is the caller's sizeof(trtalloc_stats). `device` -1: the current one.
/// trtalloc_default() initializes no driver before its first allocation. Until then all fields are 0 except `limit`. A
/// limit in percent of the device's memory is known once the process itself has initialized CUDA; before, and with
/// driver=ascend, it is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_stats_get(
    allocator: *mut trtalloc_allocator,
    device: i32,
    out: *mut trtalloc_stats,
    out_size: usize,
) -> trtalloc_status {
    status("trtalloc_stats_get", || {
        // SAFETY: the caller's allocator is null or an exported allocator.
        let exported = unsafe { exported(allocator) }?;
        if out.is_null() {
            return Err(Error::InvalidArgument("out is NULL".into()));
        }
        let stats = match exported.existing() {
            Some(allocator) => trtalloc_stats::from(allocator.stats_with_device(ordinal(device))?),
            None => at_rest(device).map(|()| exported.stats_at_rest(ordinal(device)).into())?,
        };
        // SAFETY: the caller guarantees that `out` has `out_size` bytes.
        unsafe { write_prefix(&stats, out, out_size) };
        Ok(())
    })
}

/// Sets a device's peaks to the present values. `device` -1: the current one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_stats_reset_peaks(
    allocator: *mut trtalloc_allocator,
    device: i32,
) -> trtalloc_status {
    status("trtalloc_stats_reset_peaks", || {
        // SAFETY: the caller's allocator is null or an exported allocator.
        match unsafe { exported(allocator) }?.existing() {
            Some(allocator) => allocator.reset_peaks(ordinal(device)),
            None => at_rest(device),
        }
    })
}

/// Writes a device's statistics to `buffer` as one JSON object: the fields of trtalloc_stats, and `tags`, a list with
/// an object for each tag. `device` -1: the current one. As snprintf, it writes at most `size` bytes including a
/// closing NUL, and returns the length of the whole text without the NUL; 0 on failure. `buffer` may be NULL if `size`
/// is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_stats_json(
    allocator: *mut trtalloc_allocator,
    device: i32,
    buffer: *mut c_char,
    size: usize,
) -> usize {
    // SAFETY: the caller guarantees both pointers.
    unsafe {
        written(
            "trtalloc_stats_json",
            allocator,
            buffer,
            size,
            |exported| match exported.existing() {
                Some(allocator) => allocator.stats_json(ordinal(device)),
                None => at_rest(device).map(|()| {
                    let stats = exported.stats_at_rest(ordinal(device));
                    crate::support::stats::json(device, &stats, &[])
                }),
            },
        )
    }
}

/// Writes the statistics of every device and of its tags to `buffer` in the OpenMetrics text format, which Prometheus
/// reads; otherwise as trtalloc_stats_json.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_metrics(
    allocator: *mut trtalloc_allocator,
    buffer: *mut c_char,
    size: usize,
) -> usize {
    // SAFETY: the caller guarantees both pointers.
    unsafe {
        written("trtalloc_metrics", allocator, buffer, size, |exported| {
            match exported.existing() {
                Some(allocator) => allocator.metrics(),
                None => Ok(crate::support::stats::metrics(&[])),
            }
        })
    }
}

/// # Safety
/// `allocator` is null or an exported allocator; `buffer` has `size` bytes.
unsafe fn written(
    name: &'static str,
    allocator: *mut trtalloc_allocator,
    buffer: *mut c_char,
    size: usize,
    make: impl FnOnce(&ExportedAllocator) -> Result<String>,
) -> usize {
    call::guarded(name, 0, || {
        // SAFETY: as this function demands.
        let text = make(unsafe { exported(allocator) }?)?;
        if size > 0 {
            if buffer.is_null() {
                return Err(Error::InvalidArgument("buffer is NULL".into()));
            }
            // The cut may be in the middle of a character. The caller sees by the length that the text is incomplete.
            let bytes = text.len().min(size - 1);
            // SAFETY: `buffer` has `size` bytes, of which `bytes + 1` are written; no other code uses them meanwhile.
            unsafe {
                buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), bytes);
                buffer.add(bytes).write(0);
            }
        }
        Ok(text.len())
    })
}
