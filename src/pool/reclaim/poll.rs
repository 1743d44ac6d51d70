//! Polls completion events and returns finished frees to the common free space. Makes batches, forgets contexts that
//! are gone, and reclaims the memory of graphs that are gone.

use crate::driver::{Capture, Context, DriverError, Failure, Stream};
use crate::history::Action;
use crate::pool::block::State;
use crate::pool::free_space::{COMMON, Owner};
use crate::pool::reclaim::Freed;
use crate::pool::{Core, Pool, driver_calls, is_there};
use crate::support::config::ReleaseThreshold;
use crate::support::error::{Error, Result};
use crate::sync::atomic::Ordering;
use crate::sync::broken;

impl Pool {
    /// Covers everything freed without a stream by context events, unless that would end a capture that the pool can
    /// see. If the pressure epoch has changed since the last time, it also covers what was freed on streams: these may
    /// be idle now and make no more calls.
    pub(in crate::pool) fn cover(&self, core: &mut Core) {
        if core.covered_epoch != self.pressure_epoch.load(Ordering::Relaxed) {
            self.cover_all(core);
        } else if core.grace.has_open() {
            self.cover_owners(core, Vec::new());
        }
    }

    /// Covers everything freed in any way. Returns whether anything was covered.
    pub(in crate::pool) fn cover_all(&self, core: &mut Core) -> bool {
        core.covered_epoch = self.pressure_epoch.load(Ordering::Relaxed);
        let (mut owners, mut uncovered) = (Vec::new(), Vec::new());
        for cache in self.caches.all() {
            let mut inner = cache.inner.lock();
            let owner = inner
                .served
                .as_ref()
                .filter(|served| served.device == self.device)
                .map(|g| g.owner);
            if let Some(owner) = owner {
                self.flush(core, &mut inner, owner);
                owners.push((owner, inner.next_event));
                inner.next_event += u64::from(!broken("what is freed after a context event is not covered"));
                uncovered.push((cache, std::mem::take(&mut inner.uncovered)));
            }
        }
        owners.extend(core.grace.orphans().into_iter().map(|owner| (owner, u64::MAX)));
        owners.retain(|(owner, _)| core.free_space.free_bytes(*owner) > 0 || core.grace.has_uncovered(*owner));
        let something = core.grace.has_open() || !owners.is_empty();
        let covered = something && self.cover_owners(core, owners);
        if !covered {
            for (cache, bytes) in uncovered {
                cache.inner.lock().uncovered += bytes;
            }
        }
        covered
    }

    fn cover_owners(&self, core: &mut Core, owners: Vec<(Owner, u64)>) -> bool {
        let Ok(_entered) = self.enter(core) else { return false };
        // Another context at the handle of one that is gone has other events. Without ids it cannot be distinguished.
        let checked = match self.driver().features().stream_ids {
            true => self.drop_dead_contexts(core),
            false => self.check_context(core),
        };
        if checked.is_err() {
            return false;
        }
        if core
            .context_handles()
            .into_iter()
            .any(|context| self.is_capturing(context))
        {
            tracing::debug!(device = self.device, "a capture runs: what was freed is covered later");
            return false;
        }
        loop {
            let contexts = core.context_handles();
            match core.grace.cover(&self.calls, &contexts, owners.clone()) {
                Ok(()) => return true,
                Err(error) => {
                    let before = core.contexts.clone();
                    let dropped = self.drop_dead_contexts(core);
                    if dropped.is_err() || core.contexts == before || self.dead.get().is_some() {
                        tracing::debug!(%error, "what was freed could not be covered");
                        return false;
                    }
                }
            }
        }
    }

    /// Whether a blocking stream of `context` captures. A query of the legacy stream shows it without harm to the
    /// capture. Captures on non-blocking streams cannot be seen.
    pub(in crate::pool) fn is_capturing(&self, context: Context) -> bool {
        let Ok(_entered) = self.calls.enter(context) else {
            return false;
        };
        let capture = self.calls.query(|driver| driver.stream_capture(Stream::LEGACY));
        matches!(capture, Ok(Capture::Active | Capture::Invalidated | Capture::Implicit))
    }

    /// Forgets contexts that the application has destroyed, and identifies the others. It fails where the pool's home
    /// is destroyed and no other one exists, and where the driver does not return the id of each context, because its
    /// events may belong to another owner then.
    pub(in crate::pool) fn drop_dead_contexts(&self, core: &mut Core) -> Result<()> {
        self.check_context(core)?;
        let ids = self.driver().features().stream_ids;
        let mut unanswered = false;
        for (context, id) in core.contexts.clone() {
            let there = match id {
                driver_calls::UNIDENTIFIED if ids => match core.note_context(&self.calls, context) {
                    Ok(()) => Some(true),
                    Err(error) => driver_calls::is_of_no_context(&error).then_some(false),
                },
                id => self.calls.is_there(context, id),
            };
            if there == Some(false) {
                self.drop_context(core, context);
            }
            unanswered |= there.is_none();
        }
        // Another context may have come to the handle of one that was forgotten just now.
        unanswered |= ids && core.contexts.iter().any(|(_, id)| *id == driver_calls::UNIDENTIFIED);
        match unanswered {
            true => Err(Error::Driver(driver_calls::refused(
                if ids { "cuCtxGetId" } else { "cuCtxPushCurrent" },
                Failure::Other,
            ))),
            false => Ok(()),
        }
    }

    /// Forgets a context that is gone. Another context at its handle may have streams that could not be distinguished
    /// from the old one's.
    pub(in crate::pool) fn drop_context(&self, core: &mut Core, context: Context) {
        core.forget_context(context);
        if self.driver().features().stream_ids {
            core.note_context_of_free(&self.calls, context);
        }
    }

    /// A driver call in `context` failed. If the context is gone, its work is gone too, and this is no error; another
    /// request that waited may have found that out before. If it is the pool's own, or exists and carries a sticky
    /// error, the pool is dead.
    pub(in crate::pool) fn context_failed(&self, core: &mut Core, context: Context, error: DriverError) -> Result<()> {
        let before = core.contexts.clone();
        let _ = self.drop_dead_contexts(core);
        self.alive()?;
        let known = core.contexts.iter().find(|(known, _)| *known == context).copied();
        let Some((_, id)) = known.filter(|_| core.contexts == before) else {
            return Ok(());
        };
        let ids = self.driver().features().stream_ids;
        match self.calls.is_there(context, id) {
            // The first query failed, and the context is gone all the same.
            Some(false) => {
                self.drop_context(core, context);
                Ok(())
            }
            // Without ids, another context can have its handle.
            Some(true) if !ids && error.failure == Failure::ContextDestroyed => Ok(()),
            Some(true) => Err(self.failed(error)),
            // The context may be gone, or another one may have its handle; the pool need not die for that.
            None => Err(Error::Driver(error)),
        }
    }

    /// Collects what has completed.
    pub(in crate::pool) fn poll(&self, core: &mut Core) -> Result<()> {
        let Core {
            grace, contexts, home, ..
        } = &mut *core;
        let polled = grace.poll(&self.calls, |context| is_there(&self.calls, home, contexts, context));
        for (owner, complete) in polled.owners {
            if core.free_space.transfer(owner, COMMON, complete, 0) > 0 || core.free_space.free_bytes(owner) == 0 {
                self.forget_orphan(core, owner);
            }
        }
        for freed in polled.freed {
            self.return_freed(core, freed);
        }
        if core.physical.has_deferred()
            && let Ok(_entered) = self.enter(core)
        {
            let Core {
                free_space, physical, ..
            } = core;
            physical.retry(free_space);
        }
        self.poll_per_free_events(core)?;
        self.keep_to_threshold(core);
        if !polled.gone.is_empty() {
            self.check_context(core)?;
        }
        for context in polled.gone {
            if context != core.home.context {
                self.drop_context(core, context);
            }
        }
        match polled.failed {
            Some((context, error)) => self.context_failed(core, context, error),
            None => Ok(()),
        }
    }

    fn forget_orphan(&self, core: &mut Core, owner: Owner) {
        if core.free_space.free_bytes(owner) == 0 && core.grace.remove(owner) {
            core.free_space.remove_owner(owner);
        }
    }

    /// Moves freed memory that is reusable now to where every stream may take it.
    pub(in crate::pool) fn return_freed(&self, core: &mut Core, freed: Freed) {
        match freed {
            Freed::Block { id, give_back } => {
                let (offset, size) = core.free_space.span(id);
                self.counters.pending.fetch_sub(size, Ordering::Relaxed);
                match self.blocks.get(id).state() {
                    State::Pending => self.record_freed(Action::FreeCompleted, id, None),
                    // It was free space already, of a graph or behind an event.
                    _ => self.record_range_completed(offset, size),
                }
                self.end_block(core, id);
                core.free_space.give(id, COMMON, 0);
                if give_back
                    && !core.is_external
                    && let Ok(_entered) = self.enter(core)
                {
                    // Returns as many bytes as were freed, though not the same pages. All pages are alike, and
                    // scattered ones go first.
                    let Core {
                        free_space, physical, ..
                    } = core;
                    let keep = physical.reserved().saturating_sub(size / physical.page * physical.page);
                    physical.release(free_space, keep);
                }
            }
            Freed::Tail { block, number } => self.return_tail(core, block, number),
            Freed::DedicatedMemory(block) => {
                let Ok(_entered) = self.enter(core) else {
                    // No driver call is possible now, so this is tried again later.
                    return core.grace.free(Freed::DedicatedMemory(block));
                };
                self.counters.pending.fetch_sub(block.size, Ordering::Relaxed);
                self.record_dedicated_gone(&block);
                let (give_back, bytes) = (block.give_back, block.committed());
                if block.resizable && !give_back && !block.is_malloc() {
                    core.physical.cache_range(*block);
                } else {
                    block.destroy(&mut core.physical);
                }
                if give_back {
                    let keep = core.physical.reserved().saturating_sub(bytes);
                    core.physical.release_cached(keep);
                }
                // A dedicated allocation is a request like any other: memory beyond the limit does not stay.
                if core.limit != 0 && core.physical.reserved() > core.limit {
                    core.physical.release_cached(core.limit);
                }
            }
        }
    }

    fn keep_to_threshold(&self, core: &mut Core) {
        let threshold = match self.options.release_threshold {
            ReleaseThreshold::Bytes(bytes) => bytes,
            _ if core.limit != 0 => core.limit,
            _ => return,
        };
        if core.physical.reserved() > threshold
            && !core.is_external
            && let Ok(_entered) = self.enter(core)
        {
            let Core {
                free_space, physical, ..
            } = core;
            physical.release(free_space, threshold);
        }
    }

    /// Reclaims what graphs that are gone leave. Memory freed on a stream of the capture counts as freed on that stream
    /// just now, because the free may have come after the capture, behind work that still runs. The rest stays pending
    /// like anything freed without a stream.
    pub(in crate::pool) fn reclaim_graphs(&self, core: &mut Core) {
        for remains in core.captures.gone() {
            for (key, owner, id) in remains.owners {
                let mut inner = self.caches.get(key).inner.lock();
                let event_number = inner.next_event;
                match &inner.served {
                    Some(served) if served.id == id && served.device == self.device => {
                        if self.recorder.is_on() {
                            let of_it = core.free_space.tiles().filter(|tile| tile.free == Some(owner));
                            of_it.for_each(|tile| self.record_range_completed(tile.offset, tile.size));
                        }
                        let bytes = core.free_space.transfer(owner, served.owner, u64::MAX, event_number);
                        inner.uncovered += bytes;
                        self.counters.pending.fetch_sub(bytes, Ordering::Relaxed);
                    }
                    _ => {
                        for id in core.free_space.take_all(owner) {
                            core.grace.free(Freed::Block { id, give_back: false });
                        }
                    }
                }
                core.free_space.remove_owner(owner);
            }
            for id in remains.live {
                self.blocks.get(id).capture.store(0, Ordering::Relaxed);
            }
            for freed in remains.freed {
                core.grace.free(freed);
            }
        }
    }

    /// As [`Pool::note_current`], for a free, which is never refused.
    pub(in crate::pool) fn note_current_of_free(&self, core: &mut Core) {
        if let Ok(Some(context)) = self.calls.query(|driver| driver.current_context()) {
            core.note_context_of_free(&self.calls, context);
        }
    }

    /// Notes that the context of a caller without a stream uses the pool from now on, even if it is another device's
    /// context.
    pub(in crate::pool) fn note_current(&self, core: &mut Core) -> crate::driver::Result<()> {
        match self.calls.query(|driver| driver.current_context())? {
            Some(context) => core.note_context(&self.calls, context),
            None => Ok(()),
        }
    }
}
