//! The steps of a request's [`phases`](super::phases) that grow the pool, or exchange what it holds.

use super::SlowPath;
use super::requester::Requester;
use crate::pool::Core;
use crate::pool::free_space::{COMMON, Cut, FreeSpace, NodeId};
use crate::pool::give_back::give_cached_back;
use crate::pool::memory;
use crate::pool::physical::{Ahead, Grown, Locked, PhysicalMemory, Quota, Sources};
use crate::pool::reclaim::free::FreedOn;
use crate::support::error::Result;
use crate::sync::atomic::Ordering;

/// A stream records a completion event once its foreign frees reach this part of reserved memory.
const FOREIGN_PART: u64 = 16;

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

impl SlowPath<'_, '_> {
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

    /// Whether the block most likely goes back to the driver as a whole: it is large and was requested without a stream.
    fn goes_back_whole(&self) -> bool {
        matches!(self.requester, Requester::NoStream) && self.pool.gives_back(self.want.size, FreedOn::NoStream)
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
