//! The statistics of a pool.

use crate::pool::Pool;
use crate::pool::physical::PhysicalMemory;
use crate::support::stats::{Stats, growth};
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
        let (largest_free, home) = {
            let core = self.core.lock();
            let home = core.reclaimer.contexts.home.context;
            (core.memory.free_space.largest_common(), home)
        };
        let device = self.calls.device_memory(home, self.device);
        let growth = self.growth(&self.core.lock().memory.physical, device);
        Stats {
            largest_free,
            ..stats.on_device(device).with_growth(growth)
        }
    }

    /// Bytes that the pool may create beyond what is reserved, with so much of the device's memory free and in total. None
    /// where the device does not say, and where the memory is external. Pinned memory has no bound but its limit.
    pub(in crate::pool) fn growth(&self, physical: &PhysicalMemory, (free, total): (u64, u64)) -> u64 {
        let free = match self.options.pinned {
            true if physical.limit > 0 => u64::MAX,
            true => 0,
            false if total == 0 => 0,
            false => free,
        };
        match physical.is_external {
            true => 0,
            false => growth(physical.reserved(), physical.limit, free, physical.headroom),
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
