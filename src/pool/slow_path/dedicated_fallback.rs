//! Where the memory of dedicated allocations comes from: they do not use the pool's free space, so their steps are fewer
//! than those of [`SlowPath`](super::SlowPath). One list for both would be harder to read: no step of one is a step of
//! the other, except waiting.

use crate::driver::{self, Failure};
use crate::pool::dedicated::{DedicatedTable, Try};
use crate::pool::free_space::{COMMON, Owner};
use crate::pool::physical::PhysicalMemory;
use crate::pool::reclaim::wait::Wait;
use crate::pool::{Core, Memory, Pool, StreamView, Want};
use crate::support::error::Result;
use crate::sync::MutexGuard;
use crate::sync::atomic::{AtomicU64, Ordering};

/// One request for memory of a dedicated allocation.
pub(in crate::pool) struct DedicatedFallback<'a, 'c> {
    pub(in crate::pool) pool: &'a Pool,
    pub(in crate::pool) core: &'a mut MutexGuard<'c, Core>,
    pub(in crate::pool) want: &'a Want,
    /// The requesting stream, and its free space.
    pub(in crate::pool) stream: Option<(&'a StreamView<'a>, Owner)>,
    pub(in crate::pool) may_wait: bool,
}

impl DedicatedFallback<'_, '_> {
    /// Calls `build` with ever more room made for it: with what exists and the growth allowance, then with what free
    /// memory the driver took back, then up to the limit, and then after a wait.
    pub(in crate::pool) fn run<T>(
        self,
        mut build: impl FnMut(&mut Core, u64) -> driver::Result<Option<T>>,
    ) -> Result<T> {
        let DedicatedFallback { pool, core, want, .. } = self;
        let mut refusal = None;
        let mut wait = Wait::default();
        loop {
            if let Some((view, owner)) = self.stream {
                view.check_owner(owner)?;
            }
            for (give_back, within_allowance) in [(false, true), (true, true), (true, false)] {
                if give_back {
                    make_room(pool, core, want.size, self.stream)?;
                }
                let allowance = pool.growth_allowance(core, COMMON, want);
                let physical = &core.memory.physical;
                let create = if within_allowance {
                    allowance
                } else {
                    // Beyond the growth allowance only the memory that the request needs is created, none ahead.
                    let least = want.size.saturating_add(2 * physical.page);
                    physical.room_below_limit().min(allowance.saturating_add(least))
                };
                let built = build(core, create);
                let physical = &mut core.memory.physical;
                physical.note_peak();
                match built {
                    Ok(Some(built)) => return Ok(built),
                    Ok(None) => {}
                    Err(error) if error.failure == Failure::OutOfMemory => {
                        // Memory or address space ran out, and cached ranges hold both.
                        while physical.destroy_cached_range() {}
                        refusal = Some(error);
                    }
                    Err(error) => return Err(pool.failed(error)),
                }
            }
            if !self.may_wait || !wait.wait(pool, core)? {
                return Err(pool.out_of_memory(core, want, refusal));
            }
        }
    }
}

/// Returns free memory to the driver, so that `bytes` more fit.
fn make_room(pool: &Pool, core: &mut Core, bytes: u64, stream: Option<(&StreamView<'_>, Owner)>) -> Result<()> {
    let Core { memory, reclaimer, .. } = core;
    // Small ranges that streams freed keep whole pages from going back, so they are coalesced first.
    if let Some((view, _)) = stream {
        reclaimer.record_stream_event(pool, &mut view.cache.inner.lock(), view.stream);
    }
    pool.flush_all(&mut memory.free_space);
    reclaimer.poll(pool, memory)?;
    reclaimer.share_completed(memory, None);
    reclaim_ahead(pool, &pool.dedicated, &mut memory.physical, bytes);
    release_for(memory, bytes);
    Ok(())
}

/// Takes back memory that blocks hold ahead of their size and that was never used, until `bytes` bytes are cached.
fn reclaim_ahead(pool: &Pool, table: &DedicatedTable, physical: &mut PhysicalMemory, bytes: u64) {
    for (id, cell) in table.all() {
        if physical.cached_bytes() >= bytes {
            return;
        }
        if cell.spare.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let Try::Claimed(claimed) = table.try_claim(id) else {
            continue;
        };
        let used = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let used = used(&claimed.size).max(used(&claimed.touched));
        let mut block = claimed.block();
        if let Some(block) = block.as_mut()
            && block.pending_tail.is_none()
            && let Some(cut) = block.cut_at(used)
        {
            let before = block.committed();
            block.cut(physical, cut);
            pool.record_cut(block, before);
            claimed.update_limits(block);
        }
    }
}

/// Returns free memory to the driver, cached ranges first, so that `bytes` more fit.
fn release_for(memory: &mut Memory, bytes: u64) {
    let physical = &mut memory.physical;
    while physical.cached_bytes() < bytes && physical.destroy_cached_range() {}
    // With virtual memory, the released memory is at least as large as what is to be created.
    let release = bytes.saturating_add(bytes / 16).saturating_add(2 * physical.page);
    let keep = physical.reserved().saturating_sub(release);
    memory.release(keep);
}
