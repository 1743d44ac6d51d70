//! The statistics of a pool.

use crate::pool::Pool;
use crate::support::stats::Stats;
use crate::sync::atomic::Ordering::Relaxed;

impl Pool {
    /// The pool's statistics now.
    pub fn stats(&self) -> Stats {
        let core = self.core.lock();
        let (counters, physical) = (&self.counters, &core.memory.physical);
        let mut stats = Stats {
            allocated: self.in_use(),
            allocated_peak: self.in_use.peak(),
            requested: counters.requested.load(Relaxed),
            pending: counters.pending.load(Relaxed),
            reserved: physical.reserved(),
            reserved_peak: physical.reserved_peak,
            limit: physical.limit,
            allocations: counters.allocations.load(Relaxed),
            frees: counters.frees.load(Relaxed),
            reallocations: counters.reallocations.load(Relaxed),
            bytes_copied: counters.bytes_copied.load(Relaxed),
            out_of_memory: counters.out_of_memory.load(Relaxed),
            driver_calls: self.calls.submitted.load(Relaxed),
            driver_queries: self.calls.queries.load(Relaxed),
            remaps: physical.remaps,
            waits: counters.waits.count.load(Relaxed),
            wait_ns: counters.waits.nanoseconds.load(Relaxed),
            trims: counters.trims.count.load(Relaxed),
            trim_ns: counters.trims.nanoseconds.load(Relaxed),
            driver_ns: self.calls.nanoseconds.load(Relaxed),
            ..Stats::default()
        };
        for cache in self.caches.all() {
            let inner = cache.inner.lock();
            if inner.serves(self.device) {
                stats.requested = stats.requested.wrapping_add_signed(inner.requested);
                stats.allocations += inner.allocations;
                stats.frees += inner.frees;
                stats.driver_queries += inner.queries;
            }
        }
        for (_, block) in self.dedicated.all() {
            stats.requested = stats.requested.wrapping_add(block.requested.load(Relaxed));
            stats.reallocations += block.resizes.load(Relaxed);
        }
        stats.reallocations_in_place = stats.reallocations.saturating_sub(counters.moves.load(Relaxed));
        stats.cached = stats.reserved.saturating_sub(stats.allocated + stats.pending);
        stats
    }

    /// As [`Pool::stats`], with what the driver says of the device, and the largest free range, which takes a look at
    /// every range.
    pub fn stats_with_device(&self) -> Stats {
        let stats = self.stats();
        let largest_free = self.core.lock().memory.free_space.largest_common();
        Stats {
            largest_free,
            ..stats.on_device(self.calls.device_memory(self.home(), self.device))
        }
    }

    /// Restarts the peaks.
    pub fn reset_peaks(&self) {
        let mut core = self.core.lock();
        let physical = &mut core.memory.physical;
        physical.reserved_peak = physical.reserved();
        self.reset_peak_in_use();
        self.reset_tag_peaks();
    }
}
