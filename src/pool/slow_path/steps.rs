//! The steps of a request's [`phases`](super::phases).

use super::SlowPath;
use super::requester::Requester;
use crate::driver::Capture;
use crate::pool::decide::{StreamTrigger, Trigger, of_stream};
use crate::pool::free_space::{COMMON, Cut, End, NodeId};
use crate::pool::physical::PhysicalMemory;
use crate::pool::stream_cache::Inner;
use crate::pool::{Core, Memory, Pool};
use crate::support::error::{Error, Result};
use crate::sync::atomic::Ordering;

/// For this many pressure epochs after a request had to wait, taking memory from another stream still counts as a
/// shortage.
const SHORTAGE_EPOCHS: u64 = 1024;

/// A stream is silent once others have asked for so many times the peak in use since its last request.
const SILENT: u64 = 2;

/// Whether a stream whose cache misses records a completion event.
#[inline]
pub(super) fn is_event_due(inner: &Inner, pool: &Pool, physical: &PhysicalMemory) -> bool {
    let miss = StreamTrigger::Miss {
        pinned: pool.options.pinned,
        reserved: physical.reserved(),
        page: physical.page,
        is_short: &|| physical.is_short(),
    };
    of_stream(miss, inner.since_event(pool))
}

impl SlowPath<'_, '_> {
    /// Records a completion event where others need what the requester's stream has freed, or where memory is short and
    /// it has freed much, and collects what has completed.
    #[inline]
    pub(super) fn record_due_event(&mut self) {
        let Requester::Stream(view, _) = self.requester else {
            return;
        };
        let (pool, physical) = (self.pool, &self.core.memory.physical);
        {
            if !is_event_due(&pool.caches.lock(view.key).1, pool, physical) {
                return;
            }
        }
        if let Ok(_entered) = pool.enter(&self.core.reclaimer.contexts) {
            self.record_event();
            let _ = self.poll();
        }
    }

    /// Covers what was freed without a stream, if memory is short and that is much of it.
    #[inline]
    pub(super) fn cover_early(&mut self) {
        let Core { memory, reclaimer, .. } = &mut **self.core;
        if !reclaimer.is_early_cover_due(self.pool, memory) || self.requester.is_capture() {
            return;
        }
        if let Ok(_entered) = self.pool.enter(&reclaimer.contexts) {
            reclaimer.cover(Trigger::Miss, self.pool, memory);
        }
    }

    /// Takes what was freed without a stream, what is behind declared uses, and what streams that are gone or silent
    /// have left. An event covers it before, if that is due. The request does not wait for the rest: a later one
    /// collects it.
    pub(super) fn take_left_behind(&mut self) -> Result<Option<NodeId>> {
        let (pool, size) = (self.pool, self.want.size);
        let owner = self.requester.arena(pool.options.pinned);
        if self.requester.is_capture() {
            return Ok(None);
        }
        let Core { memory, reclaimer, .. } = &mut **self.core;
        let listens = reclaimer.may_cover(pool);
        if listens {
            let peak = pool.in_use.peak().max(pool.in_use() + size);
            memory.free_space.ask_for_more(owner, size, SILENT * peak);
        }
        let covered = reclaimer.cover_before_growth(pool, memory);
        if covered {
            reclaimer.poll_some(pool, memory, &mut self.asks)?;
        }
        match listens && reclaimer.share_silent(memory, owner, size) || covered {
            true => Ok(self.take_fit_or_joined(Cut::Fair)),
            false => Ok(None),
        }
    }

    /// Records a completion event where the requester's stream has freed something that none covers.
    #[inline]
    pub(super) fn record_event(&mut self) {
        if let Requester::Stream(view, _) = self.requester
            && view.capture == Capture::None
        {
            let (_, mut inner) = self.pool.caches.lock(view.key);
            let reclaimer = &mut self.core.reclaimer;
            reclaimer.record_stream_event(self.pool, &mut inner, view.stream);
        }
    }

    /// Collects what has completed.
    pub(super) fn poll(&mut self) -> Result<()> {
        let Core { memory, reclaimer, .. } = &mut **self.core;
        reclaimer.poll_some(self.pool, memory, &mut self.asks)?;
        match reclaimer.has_due_tails() {
            true => self.take_tails(),
            false => Ok(()),
        }
    }

    /// What shrinks have left over becomes cached handles.
    #[cold]
    fn take_tails(&mut self) -> Result<()> {
        self.pool.return_due_tails(self.core);
        self.core.still_open()?;
        self.check_requester()
    }

    /// An error where the requester's stream or capture ended while other threads had the lock.
    pub(super) fn check_requester(&self) -> Result<()> {
        match self.requester {
            Requester::Capture(_, number) if !self.core.reclaimer.graphs.has(number) => {
                Err(Error::InvalidArgument("the capture ended during the call".into()))
            }
            requester => requester.check_owner(self.pool),
        }
    }

    /// Begins a pressure epoch, and returns its number.
    pub(super) fn raise_pressure(&mut self) -> u64 {
        let epoch = self.pool.pressure_epoch.fetch_add(1, Ordering::Relaxed) + 1;
        if let Requester::Stream(view, _) = self.requester {
            let (_, mut inner) = self.pool.caches.lock(view.key);
            if inner.uncovered == 0 {
                inner.pressure_epoch = epoch;
            }
        }
        epoch
    }

    /// Takes memory of the requester's own free space, coalesced with what its cache held, or of common
    /// free space.
    #[inline]
    pub(super) fn take_fit(&mut self, cut: Cut) -> Option<NodeId> {
        let (pool, want) = (self.pool, self.want);
        let Memory {
            free_space, physical, ..
        } = &mut self.core.memory;
        let mut end = End::Low;
        if let Requester::Stream(view, owner) = self.requester {
            let (_, mut inner) = pool.caches.lock(view.key);
            end = inner.arena_end(want.size, free_space, owner, || physical.is_short());
            if inner.ready.bytes() > 0 && inner.served().is_some_and(|served| served.owner == owner) {
                pool.flush(free_space, &mut inner, owner);
            }
        }
        let owner = self.requester.owner(pool.options.pinned);
        let (id, _) = free_space.take_either(owner, want.size, want.align, cut, end)?;
        Some(id)
    }

    /// As [`SlowPath::take_fit`], or else adjacent free ranges of the requester's own and of common space together.
    pub(super) fn take_fit_or_joined(&mut self, cut: Cut) -> Option<NodeId> {
        self.take_fit(cut).or_else(|| match self.requester {
            Requester::Stream(_, owner) if !self.pool.options.pinned => {
                let free_space = &mut self.core.memory.free_space;
                free_space.take_joined(owner, self.want.size, self.want.align, cut)
            }
            _ => None,
        })
    }

    /// Memory is short: streams record completion events for some of what they free next.
    pub(super) fn note_shortage(&mut self, epoch: u64) {
        self.core.shortage_until = epoch + SHORTAGE_EPOCHS;
        self.pool.shortages.fetch_add(1, Ordering::Relaxed);
    }

    /// The number up to which what the requester's stream has freed is idle.
    pub(super) fn complete(&self) -> Option<u64> {
        match self.requester {
            Requester::Stream(_, owner) => Some(self.core.reclaimer.pending.complete(owner)),
            _ => None,
        }
    }

    /// Makes what other streams have freed common free space, as far as it has completed.
    pub(super) fn share_completed(&mut self) {
        let Core { memory, reclaimer, .. } = &mut **self.core;
        let own = match self.requester {
            Requester::Stream(_, owner) => Some(owner),
            _ => None,
        };
        reclaimer.share_completed(memory, own);
    }

    /// Whether the request fits once everything that is free for it is in one piece.
    pub(super) fn may_fit(&self) -> bool {
        let memory = &self.core.memory;
        let own = match self.requester.owner(self.pool.options.pinned) {
            COMMON => 0,
            owner => memory.free_space.free_bytes(owner),
        };
        memory.can_hold(self.want.size.saturating_sub(own))
    }

    /// Makes what the requester's stream has freed common free space, too, as far as it has completed. A handle or
    /// a segment that is free in part for the stream and in part for every caller is then free throughout. Returns whether
    /// that was anything.
    pub(super) fn share_own_completed(&mut self) -> bool {
        if !self.may_fit() {
            return false;
        }
        let Core { memory, reclaimer, .. } = &mut **self.core;
        let before = memory.free_space.free_bytes(COMMON);
        reclaimer.share_completed(memory, None);
        memory.free_space.free_bytes(COMMON) > before
    }
}
