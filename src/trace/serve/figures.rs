//! The figures of a row.

/// The calls that take or return memory.
pub const MEMORY_CALLS: [&str; 7] = [
    "cuMemCreate",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemRelease",
    "cuMemAlloc",
    "cuMemFree",
];

/// The allocator's calls so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Calls {
    /// [`MEMORY_CALLS`].
    pub memory: u64,
    /// Waits of one stream for another.
    pub waits: u64,
}

/// What was seen in the measured part of a run.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Requests of streams.
    pub requests: u64,
    /// [`MEMORY_CALLS`].
    pub memory_calls: u64,
    /// Waits of one stream for another that the allocator queued.
    pub waits: u64,
    /// The largest over the streams: the time in which the stream completed its requests over the length of its work.
    pub device_time: f64,
    /// The most memory of the device that was allocated after a call.
    pub memory: u64,
    /// The longest simulated time of a call of the allocator.
    pub longest: u64,
    /// Requests for memory that were refused, in the measured part and before.
    pub refused: u64,
    /// The first reason.
    pub reason: Option<String>,
    /// Allocations that the order checker judged, and its violations, in all of the run.
    pub checked: u64,
    /// What it found.
    pub violations: Vec<String>,
}

impl Figures {
    /// Adds the calls between two counts.
    pub fn add(&mut self, before: Calls, after: Calls) {
        self.memory_calls += after.memory - before.memory;
        self.waits += after.waits - before.waits;
    }

    /// A count for each 1,000 requests.
    pub fn per_thousand(&self, count: u64) -> f64 {
        count as f64 * 1000.0 / self.requests.max(1) as f64
    }
}

/// When a stream's measured part began, and how much work it had since.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Progress {
    pub begun: u64,
    pub ended: u64,
    pub work: u64,
}

impl Progress {
    pub fn device_time(&self) -> f64 {
        (self.ended - self.begun) as f64 / self.work.max(1) as f64
    }
}
