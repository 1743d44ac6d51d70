//! Bytes and counts that are read without the pool's lock.

use std::cell::Cell;
use std::time::Instant;

use crate::pool::stream_cache::Inner;
use crate::pool::{Core, Pool};
use crate::sync::atomic::{AtomicU64, Ordering};

/// What is counted under the pool's lock. An atomic operation would take as long as that lock. Each stream cache has counts
/// of its own, and [`Counters`] has what is counted without a lock. Only the sums mean something: each count may be below
/// zero, and wraps.
#[derive(Default)]
pub struct Counts {
    /// Requested bytes.
    pub requested: u64,
    /// Requests satisfied.
    pub allocations: u64,
    /// Blocks taken back.
    pub frees: u64,
}

impl Counts {
    /// Counts a request that was satisfied; a dedicated allocation counts its requested bytes itself.
    pub fn allocated(&mut self, requested: u64) {
        self.allocations = self.allocations.wrapping_add(1);
        self.requested = self.requested.wrapping_add(requested);
    }
}

/// The pool's counters that need no lock.
#[derive(Default)]
pub struct Counters {
    /// As in [`Counts`].
    pub requested: AtomicU64,
    /// Bytes freed in a dead pool, which are never reusable.
    pub pending: AtomicU64,
    /// As in [`Counts`].
    pub allocations: AtomicU64,
    /// As in [`Counts`].
    pub frees: AtomicU64,
    /// Requests refused because memory ran out.
    pub out_of_memory: AtomicU64,
    /// Successful resizes, except those that a live block still counts itself.
    pub reallocations: AtomicU64,
    /// Resizes that changed the address.
    pub moves: AtomicU64,
    /// Bytes copied by resizes.
    pub bytes_copied: AtomicU64,
    /// Shrinks that left memory over.
    pub tails: AtomicU64,
    /// Waits for work.
    pub waits: Timed,
    /// Trims.
    pub trims: Timed,
}

/// How often something was done, and how long it took. No thread relies on its order, so the models leave it out.
#[derive(Default)]
pub struct Timed {
    /// How often.
    pub count: std::sync::atomic::AtomicU64,
    /// Nanoseconds in all.
    pub nanoseconds: std::sync::atomic::AtomicU64,
}

impl Timed {
    /// Does it.
    pub fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let outcome = work();
        self.count.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds
            .fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        outcome
    }
}

/// What a freed block takes from the counters.
#[derive(Debug, Clone, Copy)]
pub struct FreedBytes {
    /// Bytes allocated.
    pub allocated: u64,
    /// Bytes requested; 0 for a dedicated allocation, which counts them itself.
    pub requested: u64,
    /// The resizes that a dedicated allocation has counted.
    pub resizes: u64,
}

thread_local! {
    /// Whether refusals of this thread's requests do not count.
    static UNCOUNTED: Cell<bool> = const { Cell::new(false) };
}

/// Makes an attempt at a request whose refusal was counted before.
pub fn uncounted<T>(attempt: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            UNCOUNTED.set(self.0);
        }
    }
    let _restore = Restore(UNCOUNTED.replace(true));
    attempt()
}

impl Pool {
    /// Counts a free: its bytes are no longer in use. The caller holds the pool's lock until the block is filed,
    /// because a close that finds nothing in use returns all memory to the driver. A dead pool returns nothing.
    #[inline]
    pub(in crate::pool) fn count_free(&self, counts: &mut Counts, bytes: FreedBytes) {
        counts.frees = counts.frees.wrapping_add(1);
        counts.requested = counts.requested.wrapping_sub(bytes.requested);
        self.count_taken_back(bytes);
    }

    /// As [`Pool::count_free`], in a dead pool, without its lock.
    pub(in crate::pool) fn count_free_in_dead_pool(&self, bytes: FreedBytes) {
        let counters = &self.counters;
        counters.pending.fetch_add(bytes.allocated, Ordering::Relaxed);
        counters.frees.fetch_add(1, Ordering::Relaxed);
        counters.requested.fetch_sub(bytes.requested, Ordering::Relaxed);
        self.count_taken_back(bytes);
    }

    fn count_taken_back(&self, bytes: FreedBytes) {
        // An atomic operation costs more than a comparison.
        if bytes.resizes != 0 {
            self.counters.reallocations.fetch_add(bytes.resizes, Ordering::Relaxed);
        }
        self.taken_back(bytes.allocated);
    }

    /// Bytes that were freed and are not yet reusable.
    pub(in crate::pool) fn pending_bytes(&self, core: &Core) -> u64 {
        let Core { memory, reclaimer, .. } = core;
        let waiting = reclaimer.pending.sets.account().total() + reclaimer.graphs.free_bytes(&memory.free_space);
        waiting + self.counters.pending.load(Ordering::Relaxed)
    }

    /// Counts a request that was refused for lack of memory.
    pub fn count_refused(&self) {
        if !UNCOUNTED.get() {
            self.counters.out_of_memory.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes back the count of a refusal, because the request goes on.
    pub(in crate::pool) fn uncount_refused(&self) {
        if !UNCOUNTED.get() {
            self.counters.out_of_memory.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes over what a cache has counted, because its stream is gone or belongs to another device.
    pub(in crate::pool) fn take_over_counts(&self, inner: &mut Inner) {
        let counters = &self.counters;
        let allocations = std::mem::take(&mut inner.allocations);
        counters.allocations.fetch_add(allocations, Ordering::Relaxed);
        counters
            .frees
            .fetch_add(std::mem::take(&mut inner.frees), Ordering::Relaxed);
        let requested = std::mem::take(&mut inner.requested) as u64;
        counters.requested.fetch_add(requested, Ordering::Relaxed);
        let queries = std::mem::take(&mut inner.queries);
        self.calls.queries.fetch_add(queries, Ordering::Relaxed);
        self.take_over_charge(inner);
        self.subtract_credits(inner);
    }
}
