//! What a pool holds and has done, as the C struct `trtalloc_stats`, and as text for others to read.

mod text;

pub use text::{json, metrics};

/// Bytes and counts of one device's pool. Fields are only ever added, at the end.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Bytes handed out, as rounded.
    pub allocated: u64,
    /// Highest `allocated` since creation or the last reset.
    pub allocated_peak: u64,
    /// Bytes asked for, before rounding.
    pub requested: u64,
    /// Bytes a stream freed and may reuse, and free space anybody may use.
    pub cached: u64,
    /// Bytes freed that nobody may reuse yet.
    pub pending: u64,
    /// Physical memory held.
    pub reserved: u64,
    /// Highest `reserved` since creation or the last reset.
    pub reserved_peak: u64,
    /// The limit on `reserved` in bytes; 0: none.
    pub limit: u64,
    /// Requests that were met.
    pub allocations: u64,
    /// Blocks taken back.
    pub frees: u64,
    /// Successful calls of reallocate.
    pub reallocations: u64,
    /// Those that kept the address.
    pub reallocations_in_place: u64,
    /// Requests refused for want of memory.
    pub out_of_memory: u64,
    /// Driver calls made that submit work or may block.
    pub driver_calls: u64,
    /// Driver calls made that only ask.
    pub driver_queries: u64,
    /// Bytes copied by reallocate where virtual memory is missing.
    pub bytes_copied: u64,
    /// Handles moved to another address to make a contiguous range.
    pub remaps: u64,
}

/// Bytes and counts of what one tag's threads allocated from one device's pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TagStats {
    /// The name.
    pub tag: &'static str,
    /// Bytes handed out, as rounded.
    pub allocated: u64,
    /// Highest `allocated` since creation or the last reset.
    pub allocated_peak: u64,
    /// The limit on `allocated` in bytes; 0: none.
    pub limit: u64,
    /// Requests that were met.
    pub allocations: u64,
    /// Blocks taken back, by whichever thread.
    pub frees: u64,
    /// Requests refused, for the tag's limit or for want of memory.
    pub out_of_memory: u64,
}
