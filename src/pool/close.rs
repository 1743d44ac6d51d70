//! Statistics, trimming, limits, and the end of a pool.

use std::time::{Duration, Instant};

use super::{Core, Pool};
use crate::pool::dedicated::Try;
use crate::support::error::Result;
use crate::support::process;
use crate::support::stats::Stats;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::broken;

impl Pool {
    /// The pool's statistics now.
    pub fn stats(&self) -> Stats {
        let core = self.core.lock();
        let counters = &self.counters;
        let mut stats = Stats {
            allocated: self.in_use(),
            allocated_peak: self.in_use.peak(),
            requested: counters.requested.load(Relaxed),
            pending: counters.pending.load(Relaxed),
            reserved: core.physical.reserved(),
            reserved_peak: core.reserved_peak,
            limit: core.limit,
            allocations: counters.allocations.load(Relaxed),
            frees: counters.frees.load(Relaxed),
            reallocations: counters.reallocations.load(Relaxed),
            bytes_copied: counters.bytes_copied.load(Relaxed),
            out_of_memory: counters.out_of_memory.load(Relaxed),
            driver_calls: self.calls.submitted.load(Relaxed),
            driver_queries: self.calls.queries.load(Relaxed),
            remaps: core.physical.remaps,
            ..Stats::default()
        };
        for cache in self.caches.all() {
            let inner = cache.inner.lock();
            if inner.served.as_ref().is_some_and(|served| served.device == self.device) {
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

    /// Counts a request that was refused for lack of memory before it reached the pool.
    pub fn count_refused(&self) {
        self.counters.out_of_memory.fetch_add(1, Relaxed);
    }

    /// Restarts the peaks.
    pub fn reset_peaks(&self) {
        let mut core = self.core.lock();
        core.reserved_peak = core.physical.reserved();
        self.reset_peak_in_use();
        self.reset_tag_peaks();
    }

    /// Returns memory to the driver until at most `keep` bytes are reserved. It waits for pending memory, at most as
    /// long as a request may. Returns the bytes.
    pub fn trim(&self, keep: u64) -> Result<u64> {
        self.alive()?;
        let mut core = self.core.lock();
        core.still_open()?;
        self.reclaim_graphs(&mut core);
        let _entered = self.enter(&core)?;
        self.check_context(&mut core)?;
        core.allowance.reset();
        let (mut deadline, mut covered, mut released) = (None, false, 0);
        loop {
            self.flush_all(&mut core);
            self.poll(&mut core)?;
            if broken("what is in use is not unmapped") {
                for owner in core.grace.owners() {
                    core.free_space
                        .transfer(owner, crate::pool::free_space::COMMON, u64::MAX, 0);
                }
            }
            if !core.is_external {
                let Core {
                    free_space, physical, ..
                } = &mut *core;
                released += physical.release(free_space, keep);
            }
            if core.physical.reserved() <= keep
                || core.is_external
                || !self.wait(&mut core, &mut deadline, &mut covered)?
            {
                return Ok(released);
            }
        }
    }

    /// Limits reserved memory; 0 means no limit. Free memory beyond the limit goes back at once, the rest when it is
    /// freed.
    pub fn set_limit(&self, bytes: u64) -> Result<()> {
        let over = {
            let mut core = self.core.lock();
            core.limit = bytes;
            bytes != 0 && core.physical.reserved() > bytes
        };
        if over { self.trim(bytes).map(|_| ()) } else { Ok(()) }
    }

    /// Whether no block is in use, and every freed block is filed.
    pub fn is_idle(&self) -> bool {
        if broken("a close judges under the lock") {
            return self.in_use() == 0;
        }
        self.is_unused(&self.core.lock())
    }

    /// As [`Pool::is_idle`]. A free counts and files its block under the pool's lock, or under its cache's. So this
    /// misses neither a block between the two nor a free that came too late to see the end of the allocator. A
    /// dedicated allocation counts as in use only after the call that made it has released the lock, but is in the
    /// table before.
    fn is_unused(&self, _core: &Core) -> bool {
        let dedicated = || broken("a close checks dedicated allocations") || self.dedicated.all().next().is_none();
        self.in_use() == 0 && dedicated()
    }

    /// Returns everything to the driver once no block is in use. What has not completed within the longest wait of a
    /// request stays, and a later call goes on. Returns whether nothing is left.
    pub fn shut_down(&self) -> bool {
        if process::usable().is_err() || self.dead.get().is_some() {
            self.core.lock().physical.forget();
            return true;
        }
        if self.trim(0).is_err() || !self.is_idle() {
            return false;
        }
        let mut core = self.core.lock();
        let Ok(entered) = self.enter(&core) else { return false };
        let mut covered = false;
        let mut deadline = Some(Instant::now() + self.options.wait.max(Duration::from_millis(1)));
        while !core.grace.is_empty() && matches!(self.wait(&mut core, &mut deadline, &mut covered), Ok(true)) {
            if self.poll(&mut core).is_err() {
                return false;
            }
        }
        let polled = core.grace.is_empty() && core.physical.is_empty() && core.captures.is_empty();
        // This comes last, because a request that came before the end may have been satisfied while the lock was
        // released.
        if !polled || !self.is_unused(&core) {
            return false;
        }
        // The events of a context that is gone went with it. Their handles may be the application's by now.
        let _ = self.drop_dead_contexts(&mut core);
        self.destroy_events(&mut core);
        if let Some(base) = self.addresses.base().filter(|_| !core.closed)
            && let Err(error) = self.calls.submit(|driver| driver.unreserve(base, self.addresses.size))
        {
            tracing::warn!(%error, "the window could not be given back");
        }
        if !core.closed {
            self.addresses.gone();
        }
        drop(entered);
        if core.home.primary && !core.closed {
            let _ = self.calls.submit(|driver| driver.primary_release(self.device));
        }
        core.closed = true;
        drop(core);
        let _ = self.dead.set("the allocator was destroyed".into());
        true
    }

    /// Checks that every invariant holds, for tests. An error names the violation.
    pub fn validate(&self) -> std::result::Result<(), String> {
        let core = self.core.lock();
        core.free_space.validate()?;
        if self.addresses.base().is_none() {
            core.physical.validate_segments(&core.free_space)?;
        } else if core.free_space.backed() != core.physical.mapped() {
            return Err(format!(
                "{} bytes backed, {} mapped",
                core.free_space.backed(),
                core.physical.mapped()
            ));
        }
        let mut owners = std::collections::HashSet::new();
        for cache in self.caches.all() {
            let inner = cache.inner.lock();
            let mine = inner.served.as_ref().filter(|of| of.device == self.device);
            if let Some(owner) = mine.map(|of| of.owner)
                && (!owners.insert(owner) || !core.grace.is_streams(owner))
            {
                return Err(format!("{owner:?} is not one stream's own"));
            }
        }
        // Blocks that are being resized just now are skipped.
        let dedicated = self
            .dedicated
            .all()
            .filter_map(|(id, _)| match self.dedicated.try_claim(id) {
                Try::Claimed(claimed) => Some(claimed.block().as_ref()?.committed()),
                _ => None,
            });
        let dedicated = dedicated.sum::<u64>() + core.physical.cached_range_bytes();
        let (known, reserved) = (
            core.physical.mapped() + core.physical.cached_bytes() + dedicated,
            core.physical.reserved(),
        );
        if known > reserved {
            Err(format!("{known} bytes known, {reserved} reserved"))
        } else {
            Ok(())
        }
    }
}
