//! The statistics of a pool.

use crate::pool::physical::PhysicalMemory;
use crate::pool::{Core, Pool};
use crate::support::stats::{Stats, growth};
use crate::sync::atomic::Ordering::Relaxed;

impl Pool {
    /// The pool's statistics now.
    pub fn stats(&self) -> Stats {
        self.stats_of(&self.core.lock())
    }

    fn stats_of(&self, core: &Core) -> Stats {
        let (counters, physical, counts) = (&self.counters, &core.memory.physical, &core.memory.counts);
        let mut stats = Stats {
            allocated: self.in_use(),
            allocated_peak: self.in_use.peak(),
            requested: counts.requested.wrapping_add(counters.requested.load(Relaxed)),
            pending: self.pending_bytes(core),
            reserved: physical.reserved(),
            reserved_peak: physical.reserved_peak,
            limit: physical.limit,
            allocations: counts.allocations.wrapping_add(counters.allocations.load(Relaxed)),
            frees: counts.frees.wrapping_add(counters.frees.load(Relaxed)),
            reallocations: counters.reallocations.load(Relaxed),
            bytes_copied: counters.bytes_copied.load(Relaxed),
            out_of_memory: counters.out_of_memory.load(Relaxed),
            driver_calls: self.calls.submitted.load(Relaxed),
            driver_queries: self.calls.queries.load(Relaxed) + core.reclaimer.contexts.queries,
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
                stats.allocations = stats.allocations.wrapping_add(inner.allocations);
                stats.frees = stats.frees.wrapping_add(inner.frees);
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

    /// As [`Pool::stats`], with what the driver says of the device, and what takes a look at every free range and every
    /// cached block: the largest free range, and what waits for work.
    pub fn stats_with_device(&self) -> Stats {
        let (stats, own) = {
            let core = self.core.lock();
            let stats = self.stats_of(&core);
            // Streams go on meanwhile: what one frees after `allocated` was read is found in its cache only.
            let free = stats.cached + stats.pending;
            let stats = Stats {
                largest_free: core.memory.free_space.largest_common(),
                awaiting_work: self.awaiting_work(&core).min(free),
                ..stats
            };
            (stats, core.reclaimer.contexts.own.context)
        };
        let device = self.calls.device_memory(own, self.device);
        let growth = self.growth(&self.core.lock().memory.physical, device);
        stats.on_device(device).with_growth(growth)
    }

    /// Bytes that are free for one stream or for none, because the work that used them is not known to have completed. It
    /// queries no event: that could end a capture.
    fn awaiting_work(&self, core: &Core) -> u64 {
        let pending = &core.reclaimer.pending;
        let free: u64 = pending
            .owners()
            .map(|owner| core.memory.free_space.bytes_beyond(owner, pending.complete(owner)))
            .sum();
        let cached = self.caches.all().map(|cache| {
            let inner = cache.inner.lock();
            inner.owner_on(self.device).map_or(0, |owner| {
                inner.ready.bytes_beyond(&self.blocks, pending.complete(owner))
            })
        });
        self.pending_bytes(core) + free + cached.sum::<u64>()
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
        // A budget that cannot be locked gives nothing.
        let free = match self.shared_budget() {
            Some(budget) => free.min(budget.free().unwrap_or(0)),
            None => free,
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
