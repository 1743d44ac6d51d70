//! Requests for dedicated allocations, and where their memory comes from.

use std::time::Instant;

use crate::driver::{self, Capture, Failure};
use crate::pool::dedicated::Try;
use crate::pool::free_space::Owner;
use crate::pool::physical::dedicated_memory::{Grown, Standalone};
use crate::pool::reclaim::Freed;
use crate::pool::slow_path::capture_invalidated;
use crate::pool::{Core, Pool, Turn, Want};
use crate::support::error::{Error, Result};
use crate::sync::MutexGuard;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Why a block is a dedicated allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
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
    pub fn special(&self, resizable: bool) -> Option<Special> {
        let mapped = self.space.base().is_some();
        match () {
            () if self.options.passthrough => Some(Special::Passthrough { resizable }),
            () if resizable && mapped => Some(Special::Resizable),
            () if self.options.guard && mapped => Some(Special::Guarded),
            () => None,
        }
    }

    /// Makes a dedicated allocation. On a capturing stream it belongs to the graph, like any other block.
    pub fn allocate_special(&self, want: Want, special: Special, turn: Option<&Turn<'_>>) -> Result<u64> {
        self.alive()?;
        let mut core = self.core.lock();
        core.still_open()?;
        self.check_context(&mut core)?;
        self.bury_graphs(&mut core);
        self.note_current(&mut core).map_err(|error| self.failed(error))?;
        let _entered = self.enter(&core)?;
        let (mut capture, mut owner) = (0, None);
        match turn {
            Some(turn) if turn.capture == Capture::None => owner = Some(self.join_stream(&mut core, turn)?),
            Some(_) if matches!(special, Special::Passthrough { .. }) => {
                return Err(Error::Unsupported("passthrough would end the stream's capture".into()));
            }
            Some(turn) if turn.capture == Capture::Active => capture = self.join_capture(&mut core, turn)?.1,
            Some(turn) if turn.capture == Capture::Invalidated => return Err(capture_invalidated()),
            _ => {}
        }
        if let (Special::Resizable, Some(owner), Some(turn)) = (special, owner, turn) {
            self.collect(&mut core, &want, owner, turn);
        }
        let place = turn.zip(owner);
        let mut block = self.with_room(
            &mut core,
            &want,
            place,
            capture == 0,
            |pool, core, create| match special {
                Special::Resizable => pool.build_resizable(core, want.size, owner, create),
                Special::Guarded => Standalone::guarded(&pool.calls, &mut core.mapping, want.size, want.align, create),
                Special::Passthrough { .. } => {
                    Standalone::malloc(&pool.calls, &mut core.mapping, want.size, want.align, create)
                }
            },
        )?;
        block.capture = capture;
        block.resizable |= special == Special::Passthrough { resizable: true };
        let address = block.address;
        if let Err(block) = self.beside.insert(Box::new(block), want.requested, want.align) {
            self.discard(&mut core, block);
            return Err(Error::OutOfMemory("too many blocks with a range of their own".into()));
        }
        drop(core);
        self.charge(want.size);
        self.counters.allocations.fetch_add(1, Ordering::Relaxed);
        Ok(address)
    }

    /// Frees a block that was never handed out.
    fn discard(&self, core: &mut Core, block: Box<Standalone>) {
        self.counters.pending.fetch_add(block.size, Ordering::Relaxed);
        core.grace.free(Freed::Standalone(block));
    }

    /// Records a completion event where a stream has freed resizable blocks and no cached one fits, and collects what
    /// has completed. So a loop of requests needs no more blocks than it has.
    fn collect(&self, core: &mut Core, want: &Want, owner: Owner, turn: &Turn<'_>) {
        if core.grace.has_blocks_behind(owner) && !core.mapping.has_parked(want.size) {
            self.stamp_cache(core, &mut turn.cache.inner.lock(), turn.stream);
            let _ = self.settle(core);
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
    ) -> driver::Result<Option<Standalone>> {
        let (page, mapping) = (core.mapping.page, &mut core.mapping);
        // The stream's work may still use what it freed, so the new block must be at least as large as all that was
        // used.
        let own = |block: &Standalone| block.fits(size, page) && block.touched <= size;
        if let Some(mut block) = owner.and_then(|owner| core.grace.take_block_behind(owner, own)) {
            self.counters.pending.fetch_sub(block.size, Ordering::Relaxed);
            self.tell_gone(&block);
            block.renew(size, block.touched);
            return Ok(Some(*block));
        }
        if let Some(mut block) = mapping.take_parked(size) {
            block.renew(size, 0);
            return Ok(Some(block));
        }
        if let Some(mut block) = mapping.take_growing(size) {
            match block.grow(&self.calls, mapping, size, create) {
                Ok(Grown::InPlace) => {
                    block.renew(size, 0);
                    return Ok(Some(block));
                }
                outcome => {
                    mapping.park(block);
                    outcome?;
                }
            }
        }
        Standalone::resizable(&self.calls, mapping, size, create)
    }

    /// Calls `build` with ever more room made for it: the slow path of blocks that do not use the pool's free space.
    pub(in crate::pool) fn with_room<T>(
        &self,
        core: &mut MutexGuard<'_, Core>,
        want: &Want,
        place: Option<(&Turn<'_>, Owner)>,
        may_wait: bool,
        mut build: impl FnMut(&Pool, &mut Core, u64) -> driver::Result<Option<T>>,
    ) -> Result<T> {
        let mut refusal = None;
        let (mut deadline, mut covered): (Option<Instant>, bool) = (None, false);
        loop {
            if let Some((turn, owner)) = place {
                self.still_there(turn, owner)?;
            }
            for (give_back, within_budget) in [(false, true), (true, true), (true, false)] {
                if give_back {
                    // Small ranges that streams freed keep whole pages from going back, so they are coalesced first.
                    if let Some((turn, _)) = place {
                        self.stamp_cache(core, &mut turn.cache.inner.lock(), turn.stream);
                    }
                    self.flush_all(core);
                    self.settle(core)?;
                    self.reclaim_ahead(core, want.size);
                    self.release_for(core, want.size);
                }
                let budget = self.budget(core, want);
                let room = if within_budget {
                    budget
                } else {
                    // Beyond the growth allowance only the memory that the request needs is created, none ahead.
                    let least = want.size.saturating_add(2 * core.mapping.page);
                    self.room(core).min(budget.saturating_add(least))
                };
                let built = build(self, core, room);
                core.reserved_peak = core.reserved_peak.max(core.mapping.reserved());
                match built {
                    Ok(Some(built)) => return Ok(built),
                    Ok(None) => {}
                    Err(error) if error.failure == Failure::OutOfMemory => {
                        // Memory or address space ran out, and cached blocks hold both.
                        while core.mapping.unpark() {}
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
        for (id, cell) in self.beside.all() {
            if core.mapping.kept() >= bytes {
                return;
            }
            if cell.spare.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let Try::Claimed(claimed) = self.beside.try_claim(id) else {
                continue;
            };
            let used = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
            let used = used(&claimed.size).max(used(&claimed.touched));
            let mut block = claimed.block();
            if let Some(block) = block.as_mut()
                && block.parting.is_none()
                && let Some(cut) = block.cut_at(used)
            {
                let before = block.committed();
                block.cut(&mut core.mapping, cut);
                self.tell_cut(block, before);
                claimed.know(block);
            }
        }
    }

    /// Returns free memory to the driver, cached blocks first, so that `bytes` more fit.
    fn release_for(&self, core: &mut Core, bytes: u64) {
        while core.mapping.kept() < bytes && core.mapping.unpark() {}
        let reserved = core.mapping.reserved();
        // With virtual memory, the released memory is at least as large as what is to be created.
        let keep = reserved.saturating_sub(bytes.saturating_add(bytes / 16).saturating_add(2 * core.mapping.page));
        if !core.fixed {
            let Core { heap, mapping, .. } = core;
            mapping.release(heap, keep);
        }
    }
}
