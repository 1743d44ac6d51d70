//! The steps of a request's [`phases`](super::phases).

use super::SlowPath;
use super::requester::Requester;
use crate::driver::Capture;
use crate::pool::decide::{StreamTrigger, Trigger, of_stream};
use crate::pool::free_space::{COMMON, Cut, End, FreeSpace, NodeId};
use crate::pool::give_back::give_cached_back;
use crate::pool::physical::{Ahead, Grown, Locked, PhysicalMemory, Quota, Sources};
use crate::pool::reclaim::free::FreedOn;
use crate::pool::stream_cache::Inner;
use crate::pool::{Core, Memory, Pool, memory};
use crate::support::error::{Error, Result};
use crate::sync::atomic::Ordering;

/// A stream records a completion event once its foreign frees reach this part of reserved memory.
const FOREIGN_PART: u64 = 16;

/// For this many pressure epochs after a request had to wait, taking memory from another stream still counts as a
/// shortage.
const SHORTAGE_EPOCHS: u64 = 1024;

/// A stream is silent once others have asked for so many times the peak in use since its last request.
const SILENT: u64 = 2;

/// Which handles a growth may move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moves {
    /// None.
    None,
    /// Idle handles that fit.
    Only,
    /// Idle handles that fit, and those that do not fit in exchange for new ones.
    All,
}

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

    /// Grows the pool, or moves its handles, until the request fits. Where memory runs out, the driver's refusal is
    /// kept for the caller, and the slow path goes on.
    pub(super) fn grow(&mut self, moves: Moves, create: u64) -> Result<Option<NodeId>> {
        let (pool, want) = (self.pool, self.want);
        let sources = Sources {
            remap: moves != Moves::None,
            complete: self.complete(),
            create,
            // A capture moves handles, and returns no mapped ones to the driver.
            exchange: moves == Moves::All && !self.requester.is_capture(),
            ahead: self.ahead.filter(|_| moves == Moves::None || self.goes_back_whole()),
        };
        if self.core.memory.physical.is_external {
            return Ok(None);
        }
        // What a capture has freed counts as pending, so new memory for it is common at first.
        let owner = match self.requester.is_capture() {
            true => COMMON,
            false => self.requester.owner(pool.options.pinned),
        };
        let requester = self.requester;
        let goes_on = || requester.check_owner(pool).is_ok();
        let grown = memory::grow(self.core, owner, (want.size, want.align), sources, goes_on);
        self.check_requester()?;
        let due = self.core.memory.physical.reserved() / FOREIGN_PART;
        pool.foreign_bytes_due.store(due, Ordering::Relaxed);
        match grown {
            Ok(Grown::At(start, of)) => {
                // At its start, so that memory ahead of it stays at the end.
                if sources.ahead.is_some()
                    && let Some(id) = self.core.memory.free_space.take_at(of, start, want.size)
                {
                    return Ok(Some(id));
                }
                let found = self.take_fit_or_joined(Cut::Fair);
                // Takes the range at its start where neither end of the free space there allows a fair cut.
                Ok(found.or_else(|| self.core.memory.free_space.take_at(of, start, want.size)))
            }
            Ok(Grown::Somewhere) => Ok(self.take_fit_or_joined(Cut::Fair)),
            Ok(Grown::Short) => Ok(None),
            Err(error) if error.failure.is_dead() => Err(pool.failed(error)),
            Err(error) => {
                tracing::debug!(device = pool.device, %error, "growing failed");
                self.refusal = Some(error);
                Ok(None)
            }
        }
    }

    /// Creates handles up to the limit, in exchange for idle ones. Else takes common free space of which the request can use
    /// only a part of a large handle. Else, what the stream itself has freed becomes common free space as far as it has
    /// completed, or resizable blocks give up what they have beyond their sizes, or handles are released
    /// ([`SlowPath::release_for_growth`]). All of that is repeated while it lowers reserved memory: a driver may take back
    /// memory that a failed attempt created anew.
    pub(super) fn grow_to_limit(&mut self) -> Result<Option<NodeId>> {
        let mut least = self.core.memory.physical.reserved();
        loop {
            let room = self.core.memory.physical.room_below_limit();
            if let Some(id) = self.grow(Moves::All, room)? {
                return Ok(Some(id));
            }
            if let Some(id) = self.take_fit_or_joined(Cut::Any) {
                return Ok(Some(id));
            }
            if self.share_own_completed() {
                continue;
            }
            let cut = self.pool.cut_all_ends(self.core, self.want.size);
            self.check_requester()?;
            if cut {
                continue;
            }
            self.release_for_growth(least);
            self.check_requester()?;
            let reserved = self.core.memory.physical.reserved();
            if reserved >= least {
                return Ok(None);
            }
            least = reserved;
        }
    }

    /// Memory is short: streams record completion events for some of what they free next.
    pub(super) fn note_shortage(&mut self, epoch: u64) {
        self.core.shortage_until = epoch + SHORTAGE_EPOCHS;
        self.pool.shortages.fetch_add(1, Ordering::Relaxed);
    }

    /// The number up to which what the requester's stream has freed is idle.
    fn complete(&self) -> Option<u64> {
        match self.requester {
            Requester::Stream(_, owner) => Some(self.core.reclaimer.pending.complete(owner)),
            _ => None,
        }
    }

    /// Whether the block most likely goes back to the driver as a whole: it is large and was requested without a stream.
    fn goes_back_whole(&self) -> bool {
        matches!(self.requester, Requester::NoStream) && self.pool.gives_back(self.want.size, FreedOn::NoStream)
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
    fn may_fit(&self) -> bool {
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

    /// Bytes that the request may create beyond what is reserved, and how far ahead of it a pool that rises grows. What
    /// other streams' caches hold was flushed before, since it counts as in use.
    pub(super) fn growth_allowance(&mut self) -> u64 {
        let owner = self.requester.arena(self.pool.options.pinned);
        self.core.memory.free_space.raise_peak(owner, self.want.size);
        let used = self.pool.in_use() + self.want.size;
        let goes_back_whole = self.goes_back_whole();
        let Core { memory, rise, .. } = &mut **self.core;
        rise.growth(used, memory.physical.reserved());
        // Small blocks are taken from the end of a range, where memory ahead of them would be.
        let others_wait = self.pool.calls.others_wait();
        self.ahead = match self.requester.is_capture() || FreeSpace::is_small(self.want.size) || others_wait {
            true => None,
            // It goes back to the driver as a whole, so few handles are best, and none is left in a part.
            false if goes_back_whole => Some(Ahead {
                reserved: 0,
                handle: self.want.size,
            }),
            false => rise.ahead(&memory.physical, used, self.want.size),
        };
        self.pool.growth_allowance(self.core, owner, self.want)
    }

    /// Returns cached handles to the driver. Where the driver has refused to create more, it then returns
    /// complete free handles, until reserved memory is below `least` by as many bytes as are wanted, if the device has
    /// enough memory then. Without virtual memory, it returns complete free segments.
    pub(super) fn release_for_growth(&mut self, least: u64) {
        let (pool, size) = (self.pool, self.want.size);
        let memory = &mut self.core.memory;
        let mallocs = pool.addresses.base().is_none();
        if (mallocs || memory.physical.floor() > 0) && !memory.can_hold(size) {
            // Segments and the reserve are exchanged only for a request that can be met then.
            give_cached_back(self.core, |physical, _| {
                Quota::AtLeast(physical.held().saturating_sub(physical.floor()))
            });
            return;
        }
        if mallocs {
            return self.exchange_for_new(0);
        }
        give_cached_back(self.core, |physical, _| Quota::Exchange(physical.held()));
        let memory = &self.core.memory;
        if self.refusal.is_none() || memory.physical.reserved() < least || self.requester.is_capture() {
            return;
        }
        // A request that is too large for the device must not cost the others their memory.
        let info = pool.calls.query(|driver| driver.memory_info(pool.device));
        let free = info.map_or(u64::MAX, |(free, _)| free);
        if free.saturating_add(memory.free_space.free_bytes(COMMON)) >= size {
            self.exchange_for_new(least.saturating_sub(size));
        }
    }

    /// Returns cached handles and then scattered memory that is complete for every caller to the driver, until at most
    /// `keep` bytes are held, for memory that is created in exchange: the reserve is no floor.
    fn exchange_for_new(&mut self, keep: u64) {
        let beyond = |physical: &PhysicalMemory| physical.held().saturating_sub(keep);
        give_cached_back(self.core, |physical, _| Quota::Exchange(beyond(physical)));
        let memory = &mut self.core.memory;
        let beyond = beyond(&memory.physical);
        let leaving = memory.physical.begin_exchanging(&mut memory.free_space, beyond);
        self.core.let_go(leaving);
    }

    /// Where there is no more to wait for: unmaps idle handles of the request's size, or all there are, and maps them
    /// where it fits. Before, [`SlowPath::grow_to_limit`] chose the place that lacks the least memory, where whole idle
    /// handles lie next to it. Another place may lie next to more free memory of handles that live blocks use in part,
    /// and these cannot be moved.
    pub(super) fn take_gathered(&mut self) -> Result<Option<NodeId>> {
        if self.requester.is_capture() || self.pool.addresses.base().is_none() || !self.may_fit() {
            return Ok(None);
        }
        let size = self.want.size;
        let memory = &mut self.core.memory;
        let leaving = memory.physical.begin_caching(&mut memory.free_space, size);
        self.core.let_go(leaving);
        self.check_requester()?;
        let room = self.core.memory.physical.room_below_limit();
        self.grow(Moves::All, room)
    }
}
