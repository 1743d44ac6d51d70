//! Requests for dedicated allocations.

use std::time::Instant;

use crate::driver::{self, Capture};
use crate::pool::free_space::Owner;
use crate::pool::physical::dedicated_memory::{Budget, Built, DedicatedMemory, Remainder};
use crate::pool::physical::{Locked, PhysicalMemory};
use crate::pool::reclaim::Reclaimer;
use crate::pool::reclaim::pending::Asks;
use crate::pool::reclaim::sets::Freed;
use crate::pool::reclaim::wait::Wait;
use crate::pool::slow_path::capture_invalidated;
use crate::pool::slow_path::dedicated_fallback::DedicatedFallback;
use crate::pool::stream_cache::block::resizable;
use crate::pool::{Core, Pool, StreamView, Want};
use crate::support::error::{Error, Result};
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;

/// A resizable block of at most this size does not wait for pages of its own: it lives in ordinary free space.
const SMALL: u64 = 2 << 20;

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

    /// Makes a dedicated allocation. A resizable block that cannot have pages of its own lives in ordinary free space.
    pub fn allocate_dedicated(&self, want: Want, kind: DedicatedKind, view: Option<&StreamView>) -> Result<u64> {
        if kind != DedicatedKind::Resizable {
            return self.try_dedicated(want, kind, view, Wait::default());
        }
        // A block that would use little of its pages takes what comes first, and does not wait for pages.
        if want.size <= SMALL {
            match self.try_dedicated(want, kind, view, Wait::until(Instant::now())) {
                Err(Error::OutOfMemory(_)) => self.uncount_refused(),
                outcome => return outcome,
            }
            return self.allocate_resizable(want, view, Wait::default());
        }
        let refused = match self.try_dedicated(want, kind, view, Wait::default()) {
            Err(refused @ Error::OutOfMemory(_)) => refused,
            outcome => return outcome,
        };
        // The request has waited. It is refused once, for the first reason.
        let outcome = self.allocate_resizable(want, view, Wait::until(Instant::now()));
        self.uncount_refused();
        match outcome {
            Err(Error::OutOfMemory(_)) => Err(refused),
            outcome => outcome,
        }
    }

    /// A resizable block in ordinary free space.
    fn allocate_resizable(&self, want: Want, view: Option<&StreamView>, wait: Wait) -> Result<u64> {
        let address = self.allocate_with(want, view, wait)?;
        self.mark_resizable(address, want.align);
        Ok(address)
    }

    /// Marks a block of the pool's range that a copy may resize. Its stream's cache does not take it: there, another
    /// request could get it.
    pub fn mark_resizable(&self, address: u64, align: u64) {
        if let Some((_, block)) = self.find(address) {
            block.resizable.store(resizable(align), Ordering::Relaxed);
        }
    }

    /// Makes a dedicated allocation. On a capturing stream it belongs to the graph, like any other block.
    pub(in crate::pool) fn try_dedicated(
        &self,
        want: Want,
        kind: DedicatedKind,
        view: Option<&StreamView>,
        wait: Wait,
    ) -> Result<u64> {
        let mut core = self.admit()?;
        let noted = core.reclaimer.note_current(&self.calls);
        noted.map_err(|error| self.failed(error))?;
        let _entered = self.enter(&core.reclaimer.contexts)?;
        core.memory.obtain_reserve();
        let (capture, owner) = self.dedicated_owner(&mut core, kind, view)?;
        // The request may wait without the lock. Its stream's cache keeps its key meanwhile.
        let origin = view.filter(|_| capture != 0 || owner.is_some()).map(|view| view.key);
        origin.inspect(|origin| _ = self.caches.begin_use(*origin));
        if let (DedicatedKind::Resizable, Some(owner), Some(view)) = (kind, owner, view) {
            self.collect(&mut core, &want, owner, view);
        }
        let fallback = DedicatedFallback {
            pool: self,
            core: &mut core,
            want: &want,
            stream: view.zip(owner),
            wait: (capture == 0).then_some(wait),
        };
        let calls = &self.calls;
        let made = fallback.run(|core, budget| match kind {
            DedicatedKind::Resizable => {
                let sizes = (want.size, self.usable(want.requested));
                self.build_resizable(core, sizes, owner, budget)
            }
            DedicatedKind::Guarded => DedicatedMemory::guarded(calls, core, want.size, want.align, budget),
            DedicatedKind::Passthrough { .. } => DedicatedMemory::malloc(calls, core, want.size, want.align, budget),
        });
        let mut block = made.inspect_err(|_| {
            origin.inspect(|origin| self.caches.end_use(*origin));
        })?;
        (block.capture, block.owner, block.origin) = (capture, owner, origin);
        block.resizable |= kind == DedicatedKind::Passthrough { resizable: true };
        let address = block.address;
        // Other threads had the lock where memory was exchanged for the block.
        let stream = view.zip(owner);
        let here = stream.map_or(Ok(()), |(view, owner)| view.check_owner(self, owner));
        let there = capture == 0 || core.reclaimer.graphs.has(capture);
        if let Err(error) = here.and_then(|()| there.then_some(()).ok_or_else(capture_invalidated)) {
            (block.capture, block.owner) = (0, None);
            self.file_unused(&mut core, Box::new(block));
            return Err(error);
        }
        if let Err(block) = self.dedicated.insert(Box::new(block), want.requested, want.align) {
            self.file_unused(&mut core, block);
            self.count_refused();
            return Err(Error::OutOfMemory("too many blocks with a range of their own".into()));
        }
        if let Some(owner) = owner {
            core.reclaimer.pending.count_dedicated(owner, 1);
        }
        core.memory.counts.allocated(0);
        let _ = self.give_due_back(&mut core);
        drop(core);
        self.note_memory();
        self.charge(want.size);
        Ok(address)
    }

    /// A block that was never handed out is freed like any other.
    fn file_unused(&self, core: &mut Core, mut block: Box<DedicatedMemory>) {
        block.origin.take().inspect(|origin| self.caches.end_use(*origin));
        core.file(Freed::Dedicated(block));
    }

    /// The capture to which the block will belong (0 for none), and the owner of the free space of its stream.
    fn dedicated_owner(
        &self,
        core: &mut Core,
        kind: DedicatedKind,
        view: Option<&StreamView>,
    ) -> Result<(u32, Option<Owner>)> {
        let Core { memory, reclaimer, .. } = core;
        let free_space = &mut memory.free_space;
        match view {
            Some(view) if view.capture == Capture::None => {
                Ok((0, Some(reclaimer.join_stream(self, free_space, view)?)))
            }
            Some(_) if matches!(kind, DedicatedKind::Passthrough { .. }) => {
                Err(Error::Unsupported("passthrough would end the stream's capture".into()))
            }
            Some(view) if view.capture == Capture::Active => {
                Ok((reclaimer.join_capture(self, free_space, view)?.1, None))
            }
            Some(view) if view.capture == Capture::Invalidated => Err(capture_invalidated()),
            _ => Ok((0, None)),
        }
    }

    /// Records a completion event where a stream has freed resizable blocks and no cached one fits, and collects what
    /// has completed. So a loop of requests needs no more blocks than it has.
    fn collect(&self, core: &mut Core, want: &Want, owner: Owner, view: &StreamView) {
        let Core { memory, reclaimer, .. } = core;
        if reclaimer.pending.has_ranges_behind(owner) && !memory.physical.has_cached_range(want.size) {
            reclaimer.record_stream_event(self, &mut self.caches.lock(view.key).1, view.stream);
            let _ = reclaimer.poll_some(self, memory, &mut Asks::few());
        }
    }

    /// Returns a larger block that had grown, for a block of `owner`'s stream that may grow likewise, if it is the only
    /// one of that stream: several share what one of them has freed. Where memory is short, others need what a short block
    /// has beyond its size. Behind the stream's completion event, the block may use its own bytes at once: see [`Remainder`].
    fn take_grown_range(
        &self,
        reclaimer: &mut Reclaimer,
        physical: &mut PhysicalMemory,
        owner: Owner,
        (size, used): (u64, u64),
    ) -> Option<DedicatedMemory> {
        if physical.is_short() || reclaimer.pending.dedicated_blocks(owner) > 0 {
            return None;
        }
        if let Some(mut block) = physical.take_grown_range(size) {
            block.renew_for_growth(size);
            return Some(block);
        }
        if !self.may_wait_for_remainders(reclaimer) {
            return None;
        }
        let grown = |block: &DedicatedMemory, covered: bool| covered && block.may_serve_growth(size);
        let (mut block, remainder) = self.take_behind(reclaimer, owner, used, grown)?;
        block.renew_for_growth(size);
        block.remainder = Some(remainder);
        Some(*block)
    }

    /// Whether blocks may begin in ranges in which their growth waits for work. Once a capture is known, no request is
    /// refused as long as memory may grow.
    fn may_wait_for_remainders(&self, reclaimer: &Reclaimer) -> bool {
        !(self.options.wait.is_zero() || reclaimer.growth_waited_in_vain || self.is_capture_known())
    }

    /// Takes a block back that `owner`'s stream freed, for one of which the owner may use `used` bytes. Returns what that
    /// one may not use yet, too.
    fn take_behind(
        &self,
        reclaimer: &mut Reclaimer,
        owner: Owner,
        used: u64,
        fits: impl Fn(&DedicatedMemory, bool) -> bool,
    ) -> Option<(Box<DedicatedMemory>, Remainder)> {
        let (block, rest) = reclaimer.pending.take_range_behind(owner, fits)?;
        self.record_dedicated_gone(&block);
        if let Some(before) = block.remainder {
            reclaimer.pending.drop_remainder(owner, before.number);
        }
        let remainder = Remainder {
            start: used,
            touched: block.peak,
            number: rest.number(),
        };
        Some((block, remainder))
    }

    /// Returns a block that this stream freed, which is ready for that stream again; otherwise a cached one; otherwise
    /// a new one.
    fn build_resizable(
        &self,
        core: &mut MutexGuard<'_, Core>,
        (size, used): (u64, u64),
        owner: Option<Owner>,
        budget: Budget,
    ) -> driver::Result<Built<DedicatedMemory>> {
        let Core { memory, reclaimer, .. } = &mut **core;
        let physical = &mut memory.physical;
        let page = physical.page;
        // The stream's work may still use what it freed, so the new block must be at least as large as all that was
        // used. If the block shrinks and grows again, it waits for that work, so a completion event has to cover it.
        let at_most = match self.may_wait_for_remainders(reclaimer) {
            true => size,
            false => used,
        };
        let own = |block: &DedicatedMemory, covered: bool| covered && block.fits(size, page) && block.peak <= at_most;
        if let Some((mut block, remainder)) = owner.and_then(|owner| self.take_behind(reclaimer, owner, used, own)) {
            block.renew(size, block.peak);
            block.remainder = Some(remainder);
            return Ok(Built::Done(*block));
        }
        if let Some(mut block) = physical.take_cached_range(size) {
            block.renew(size, 0);
            return Ok(Built::Done(block));
        }
        if let Some(owner) = owner
            && let Some(block) = self.take_grown_range(reclaimer, physical, owner, (size, used))
        {
            return Ok(Built::Done(block));
        }
        // Another block may need what a larger one has beyond, once nothing more may be created.
        if budget.keeping < size
            && let Some((mut block, beyond)) = physical.take_larger(size)
        {
            core.release(beyond);
            block.renew(size, 0);
            return Ok(Built::Done(block));
        }
        if let Some(mut block) = physical.take_growing(size) {
            match block.grow(&self.calls, core, size, budget) {
                Ok(Built::Done(_)) => {
                    block.renew(size, 0);
                    return Ok(Built::Done(block));
                }
                outcome => {
                    core.memory.physical.cache_range(block);
                    outcome?;
                }
            }
        }
        DedicatedMemory::resizable(&self.calls, core, size, budget)
    }
}
