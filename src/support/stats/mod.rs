//! Statistics of a pool: the C struct `trtalloc_stats`, and text formats for other programs.

mod text;

pub use text::{json, json_of_pool, metrics};

/// Bytes and counts of one device's pool. New fields are added only at the end.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Bytes allocated, after rounding.
    pub allocated: u64,
    /// Highest `allocated` since creation or the last reset.
    pub allocated_peak: u64,
    /// Bytes requested, before rounding.
    pub requested: u64,
    /// Free bytes that a stream's cache or any stream may reuse.
    pub cached: u64,
    /// Bytes freed but not yet reusable.
    pub pending: u64,
    /// Bytes of physical memory held.
    pub reserved: u64,
    /// Highest `reserved` since creation or the last reset.
    pub reserved_peak: u64,
    /// The limit on `reserved` in bytes; 0: none.
    pub limit: u64,
    /// Requests that succeeded.
    pub allocations: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Successful calls of reallocate.
    pub reallocations: u64,
    /// Those that kept the block's address.
    pub reallocations_in_place: u64,
    /// Requests refused because memory ran out.
    pub out_of_memory: u64,
    /// Driver calls that submit work or may block.
    pub driver_calls: u64,
    /// Driver calls that only query.
    pub driver_queries: u64,
    /// Bytes copied by reallocate, for blocks that have no pages of their own.
    pub bytes_copied: u64,
    /// Handles moved to another address to make a contiguous range.
    pub remaps: u64,
    /// Bytes free on the device; 0 unless asked for with [`stats_with_device`](crate::allocator::Allocator::stats_with_device), or where the driver does not
    /// say.
    pub device_free: u64,
    /// The device's memory; 0 as above.
    pub device_total: u64,
    /// Bytes of the device that others hold; 0 as above.
    pub held_by_others: u64,
    /// The largest range that is free for every stream; 0 unless asked for as above.
    pub largest_free: u64,
    /// Times that a request or a trim waited for work to complete.
    pub waits: u64,
    /// Nanoseconds of these waits.
    pub wait_ns: u64,
    /// Trims, also those of a limit that was lowered.
    pub trims: u64,
    /// Nanoseconds of these trims.
    pub trim_ns: u64,
    /// Nanoseconds of the driver calls that submit work or may block.
    pub driver_ns: u64,
    /// Bytes that requests can still have in total: free and pending ones, and what the limit, the headroom and the device
    /// leave beyond them; 0 unless asked for as above.
    pub available: u64,
    /// Bytes of `cached` and `pending` that are free for one stream or for none, because the work that used them is not known
    /// to have completed; 0 unless asked for as above.
    pub awaiting_work: u64,
}

impl Stats {
    /// With the device's free memory and its total, as the driver reports them.
    pub(crate) fn on_device(self, (free, total): (u64, u64)) -> Stats {
        Stats {
            device_free: free,
            device_total: total,
            held_by_others: total.saturating_sub(free).saturating_sub(self.reserved),
            ..self
        }
    }

    /// With what requests can still have, where so many bytes may be created beyond the reserved ones.
    pub(crate) fn with_growth(self, growth: u64) -> Stats {
        let held = self.cached + self.pending;
        Stats {
            available: held.saturating_add(growth),
            ..self
        }
    }
}

/// Bytes that a pool may create beyond `reserved`, which the limit, the headroom and the device's `free` bytes leave.
pub fn growth(reserved: u64, limit: u64, free: u64, headroom: u64) -> u64 {
    let below = match limit {
        0 => u64::MAX,
        limit => limit.saturating_sub(reserved),
    };
    below.min(free.saturating_sub(headroom))
}

/// Bytes and counts of what threads with one tag allocated from one device's pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TagStats {
    /// The tag.
    pub tag: &'static str,
    /// Bytes allocated, after rounding.
    pub allocated: u64,
    /// Highest `allocated` since creation or the last reset.
    pub allocated_peak: u64,
    /// The limit on `allocated` in bytes; 0: none.
    pub limit: u64,
    /// Requests that succeeded.
    pub allocations: u64,
    /// Blocks freed, by any thread.
    pub frees: u64,
    /// Requests refused because of the tag's limit or because memory ran out.
    pub out_of_memory: u64,
}
