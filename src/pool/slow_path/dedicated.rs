//! Requests for dedicated allocations, and where their memory comes from.

use std::time::Instant;

use crate::driver::{self, Capture, Failure};
use crate::pool::dedicated::Try;
use crate::pool::free_space::Owner;
use crate::pool::physical::dedicated_memory::{DedicatedMemory, Grown};
use crate::pool::reclaim::Freed;
use crate::pool::slow_path::capture_invalidated;
use crate::pool::{Core, Pool, StreamView, Want};
use crate::support::error::{Error, Result};
use crate::sync::MutexGuard;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Why a block is a dedicated allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DedicatedKind {
    /// It may be resized.
    Resizable,
    /// An unmapped page lies behind it.
    Guarded,
    /// Each request is one allocation from the driver.
    Passthrough {
        /// Whether it may be resized.
        resizable: bool,
    },
}

impl Pool {
    /// The kind of dedicated allocation that a request gets under the options in force; `resizable` is the request's
    /// own flag.
    pub fn dedicated_kind(&self, resizable: bool) -> Option<DedicatedKind> {
        let mapped = self.addresses.base().is_some();
        match () {
            () if self.options.passthrough => Some(DedicatedKind::Passthrough { resizable }),
            () if resizable && mapped => Some(DedicatedKind::Resizable),
            () if self.options.guard && mapped => Some(DedicatedKind::Guarded),
            () => None,
        }
    }

    /// Makes a dedicated allocation. On a capturing stream it belongs to the graph, like any other block.
    pub fn allocate_dedicated(&self, want: Want, kind: DedicatedKind, view: Option<&StreamView<'_>>) -> Result<u64> {
        self.alive()?;
        let mut core = self.core.lock();
        core.still_open()?;
        self.check_context(&mut core)?;
        self.reclaim_graphs(&mut core);
        self.note_current(&mut core).map_err(|error| self.failed(error))?;
        let _entered = self.enter(&core)?;
        let (mut capture, mut owner) = (0, None);
        match view {
            Some(view) if view.capture == Capture::None => owner = Some(self.join_stream(&mut core, view)?),
            Some(_) if matches!(kind, DedicatedKind::Passthrough { .. }) => {
                return Err(Error::Unsupported("passthrough would end the stream's capture".into()));
            }
            Some(view) if view.capture == Capture::Active => capture = self.join_capture(&mut core, view)?.1,
            Some(view) if view.capture == Capture::Invalidated => return Err(capture_invalidated()),
            _ => {}
        }
        if let (DedicatedKind::Resizable, Some(owner), Some(view)) = (kind, owner, view) {
            self.collect(&mut core, &want, owner, view);
        }
        let place = view.zip(owner);
        let mut block = self.with_room(&mut core, &want, place, capture == 0, |pool, core, create| match kind {
            DedicatedKind::Resizable => pool.build_resizable(core, want.size, owner, create),
            DedicatedKind::Guarded => {
                DedicatedMemory::guarded(&pool.calls, &mut core.physical, want.size, want.align, create)
            }
            DedicatedKind::Passthrough { .. } => {
                DedicatedMemory::malloc(&pool.calls, &mut core.physical, want.size, want.align, create)
            }
        })?;
        block.capture = capture;
        block.resizable |= kind == DedicatedKind::Passthrough { resizable: true };
        let address = block.address;
        if let Err(block) = self.dedicated.insert(Box::new(block), want.requested, want.align) {
            self.discard(&mut core, block);
            return Err(Error::OutOfMemory("too many blocks with a range of their own".into()));
        }
        drop(core);
        self.charge(want.size);
        self.counters.allocations.fetch_add(1, Ordering::Relaxed);
        Ok(address)
    }

    /// Frees a block that was never handed out.
    fn discard(&self, core: &mut Core, block: Box<DedicatedMemory>) {
        self.counters.pending.fetch_add(block.size, Ordering::Relaxed);
        core.grace.free(Freed::DedicatedMemory(block));
    }

    /// Records a completion event where a stream has freed resizable blocks and no cached one fits, and collects what
    /// has completed. So a loop of requests needs no more blocks than it has.
    fn collect(&self, core: &mut Core, want: &Want, owner: Owner, view: &StreamView<'_>) {
        if core.grace.has_ranges_behind(owner) && !core.physical.has_cached_range(want.size) {
            self.record_stream_event(core, &mut view.cache.inner.lock(), view.stream);
            let _ = self.poll(core);
        }
    }

    /// Returns a block that this stream freed, which is ready for that stream again; otherwise a cached one; otherwise
    /// a new one.
    fn build_resizable(
        &self,
        core: &mut Core,
        size: u64,
        owner: Option<Owner>,
        create: u64,
    ) -> driver::Result<Option<DedicatedMemory>> {
        let (page, physical) = (core.physical.page, &mut core.physical);
        // The stream's work may still use what it freed, so the new block must be at least as large as all that was
        // used.
        let own = |block: &DedicatedMemory| block.fits(size, page) && block.touched <= size;
        if let Some(mut block) = owner.and_then(|owner| core.grace.take_range_behind(owner, own)) {
            self.counters.pending.fetch_sub(block.size, Ordering::Relaxed);
            self.record_dedicated_gone(&block);
            block.renew(size, block.touched);
            return Ok(Some(*block));
        }
        if let Some(mut block) = physical.take_cached_range(size) {
            block.renew(size, 0);
            return Ok(Some(block));
        }
        if let Some(mut block) = physical.take_growing(size) {
            match block.grow(&self.calls, physical, size, create) {
                Ok(Grown::InPlace) => {
                    block.renew(size, 0);
                    return Ok(Some(block));
                }
                outcome => {
                    physical.cache_range(block);
                    outcome?;
                }
            }
        }
        DedicatedMemory::resizable(&self.calls, physical, size, create)
    }

    /// Calls `build` with ever more room made for it: the slow path of blocks that do not use the pool's free space.
    pub(in crate::pool) fn with_room<T>(
        &self,
        core: &mut MutexGuard<'_, Core>,
        want: &Want,
        place: Option<(&StreamView<'_>, Owner)>,
        may_wait: bool,
        mut build: impl FnMut(&Pool, &mut Core, u64) -> driver::Result<Option<T>>,
    ) -> Result<T> {
        let mut refusal = None;
        let (mut deadline, mut covered): (Option<Instant>, bool) = (None, false);
        loop {
            if let Some((view, owner)) = place {
                self.check_same_stream(view, owner)?;
            }
            for (give_back, within_budget) in [(false, true), (true, true), (true, false)] {
                if give_back {
                    // Small ranges that streams freed keep whole pages from going back, so they are coalesced first.
                    if let Some((view, _)) = place {
                        self.record_stream_event(core, &mut view.cache.inner.lock(), view.stream);
                    }
                    self.flush_all(core);
                    self.poll(core)?;
                    self.reclaim_ahead(core, want.size);
                    self.release_for(core, want.size);
                }
                let allowance = self.growth_allowance(core, want);
                let room = if within_budget {
                    allowance
                } else {
                    // Beyond the growth allowance only the memory that the request needs is created, none ahead.
                    let least = want.size.saturating_add(2 * core.physical.page);
                    self.room_below_limit(core).min(allowance.saturating_add(least))
                };
                let built = build(self, core, room);
                core.reserved_peak = core.reserved_peak.max(core.physical.reserved());
                match built {
                    Ok(Some(built)) => return Ok(built),
                    Ok(None) => {}
                    Err(error) if error.failure == Failure::OutOfMemory => {
                        // Memory or address space ran out, and cached blocks hold both.
                        while core.physical.destroy_cached_range() {}
                        refusal = Some(error);
                    }
                    Err(error) => return Err(self.failed(error)),
                }
            }
            if !may_wait || !self.wait(core, &mut deadline, &mut covered)? {
                return Err(self.out_of_memory(core, want, refusal));
            }
        }
    }

    /// Takes back memory that blocks hold ahead of their size and that was never used, until that many bytes are
    /// cached.
    pub(in crate::pool) fn reclaim_ahead(&self, core: &mut Core, bytes: u64) {
        for (id, cell) in self.dedicated.all() {
            if core.physical.cached_bytes() >= bytes {
                return;
            }
            if cell.spare.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let Try::Claimed(claimed) = self.dedicated.try_claim(id) else {
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
                block.cut(&mut core.physical, cut);
                self.record_cut(block, before);
                claimed.update_limits(block);
            }
        }
    }

    /// Returns free memory to the driver, cached blocks first, so that `bytes` more fit.
    fn release_for(&self, core: &mut Core, bytes: u64) {
        while core.physical.cached_bytes() < bytes && core.physical.destroy_cached_range() {}
        let reserved = core.physical.reserved();
        // With virtual memory, the released memory is at least as large as what is to be created.
        let keep = reserved.saturating_sub(bytes.saturating_add(bytes / 16).saturating_add(2 * core.physical.page));
        if !core.is_external {
            let Core {
                free_space, physical, ..
            } = core;
            physical.release(free_space, keep);
        }
    }
}
