//! The four phases of a request: *reuse*, *grow within the allowance*, *share*, *last resort*. Each goes through its steps in
//! the order that its function lists, until one of them finds memory.
//!
//! A stream waits for another one in the last resort only. Where memory is short ([`PhysicalMemory::is_short`]), streams
//! record completion events more often, and share what has completed, so that earlier phases find it.
//!
//! A capture uses its own free space and common free space with what every stream has finished with. It moves idle
//! handles and creates new ones, but covers nothing, and returns no mapped handle to the driver. A stream without an id
//! has no arena. What was freed on its handle takes that place, each piece behind its event
//! (`reclaim/per_free_events`).
//!
//! [`PhysicalMemory::is_short`]: crate::pool::physical::PhysicalMemory::is_short

use std::ops::ControlFlow;

use super::SlowPath;
use super::growing::Moves;
use super::requester::Requester;
use crate::pool::Core;
use crate::pool::decide::{Covers, Trigger};
use crate::pool::free_space::{Cut, NodeId};
use crate::pool::reclaim::pending::Asks;
use crate::pool::reclaim::per_free_events::Scope;
use crate::support::error::Result;

/// What a step comes to: memory or an error ends the request's way, and otherwise it goes on.
pub(super) type Step<T = ()> = ControlFlow<Result<NodeId>, T>;

/// What ends a request's way where it is memory or an error.
trait Found {
    fn step(self) -> Step;
}

impl Found for Option<NodeId> {
    fn step(self) -> Step {
        self.map_or(Step::Continue(()), |id| Step::Break(Ok(id)))
    }
}

impl Found for Result<Option<NodeId>> {
    fn step(self) -> Step {
        self.map_or_else(|error| Step::Break(Err(error)), Found::step)
    }
}

impl Found for Result<()> {
    fn step(self) -> Step {
        self.map(|()| None).step()
    }
}

impl SlowPath<'_, '_> {
    /// All phases, once.
    pub(super) fn attempt(&mut self) -> Step {
        self.asks = Asks::few();
        self.poll().step()?;
        self.pool.give_due_back(self.core).map(|_| ()).step()?;
        // Other threads had the lock meanwhile.
        self.check_requester().step()?;
        self.reuse()?;
        let allowance = self.grow_within_allowance()?;
        let epoch = self.share(allowance)?;
        self.last_resort(epoch)
    }

    /// Takes what is free for the requester now, and creates nothing:
    ///
    /// 1. what its arena and common free space have together, with what has completed since, and guests that went home
    /// 2. what was set apart because the stream did not need it for long
    /// 3. for a stream without an id: what it has freed itself
    /// 4. cached handles, those of the reserve among them
    /// 5. what was left behind, once an event has covered it: what was freed without a stream, what waits for declared uses, and
    ///    what streams that are gone or silent have freed
    fn reuse(&mut self) -> Step {
        if self.requester.is_capture() {
            // A capture records no event. What its stream and others have freed serves it as far as it has completed,
            // and they record events for the rest at their next request.
            self.raise_pressure();
            self.share_completed();
        }
        // What other streams' caches hold counts as in use until it is flushed, and may be guests that go home.
        let Core { memory, reclaimer, .. } = &mut **self.core;
        self.pool.flush_all(&mut memory.free_space);
        reclaimer.send_guests_home(memory);
        self.take_fit_or_joined(Cut::Fair).step()?;
        if let Requester::Stream(_, owner) = self.requester
            && self.core.memory.free_space.take_back_apart(owner)
        {
            self.take_fit_or_joined(Cut::Fair).step()?;
        }
        self.take_behind_event(Scope::Own).step()?;
        self.grow(Moves::None, 0).step()?;
        self.take_left_behind().step()
    }

    /// Creates handles while reserved memory stays within the growth allowance, and returns that:
    ///
    /// 1. new handles at the end of the arena, because a little more memory saves time
    /// 2. the same together with idle handles of the arena and of common free space, once the requester's stream has recorded a
    ///    completion event. Those that fit are moved to where they are needed, others are returned in exchange for new ones
    fn grow_within_allowance(&mut self) -> Step<u64> {
        let allowance = self.growth_allowance();
        self.grow(Moves::None, allowance).step()?;
        self.record_event();
        self.poll().step()?;
        self.grow(Moves::All, allowance).step()?;
        Step::Continue(allowance)
    }

    /// Takes what other streams have finished with, or grows up to the limit, and returns the pressure epoch:
    ///
    /// 1. for a request without a stream, and where memory is short: what has completed becomes common free space. Otherwise
    ///    the other streams would have to request it anew
    /// 2. new handles up to the limit, with idle ones moved
    /// 3. the first step, where that was left out
    ///
    /// A request without a stream covers all that was freed before 1, if that is much, or else before 3.
    fn share(&mut self, allowance: u64) -> Step<u64> {
        let epoch = self.raise_pressure();
        let alone = matches!(self.requester, Requester::NoStream);
        if alone {
            let Core { memory, reclaimer, .. } = &mut **self.core;
            let of_streams = reclaimer.bytes_of_streams(memory);
            // Events end captures. So the pool grows first if little is free, or once a capture is known.
            if reclaimer.decide(Trigger::Share { of_streams }, self.pool, memory) == Covers::All {
                self.wait.cover(self.pool, self.core);
            }
        }
        let shares_first = self.core.memory.physical.is_short() || alone || self.pool.calls.others_wait();
        if shares_first {
            self.take_shared(allowance)?;
        }
        let room = self.core.memory.physical.room_below_limit();
        self.grow(Moves::Only, room).step()?;
        let covered = alone && self.wait.cover(self.pool, self.core);
        if covered || !shares_first {
            self.take_shared(room)?;
        }
        Step::Continue(epoch)
    }

    /// What costs others most, before the request waits or is refused:
    ///
    /// 1. whatever has completed: every event is asked
    /// 2. guests of the requester's arena stay in it
    /// 3. what other streams of the same context have freed: the requester's stream waits for their completion events
    /// 4. new handles up to the limit, in exchange for idle ones ([`SlowPath::grow_to_limit`])
    /// 5. for a stream without an id: several ranges behind their events
    fn last_resort(&mut self, epoch: u64) -> Step {
        self.take_as_completed()?;
        if let Requester::Stream(_, owner) = self.requester {
            self.core.memory.free_space.adopt_guests(owner);
            self.take_fit_or_joined(Cut::Fair).step()?;
        }
        if let Some(id) = self.take_from_other_stream() {
            if epoch < self.core.shortage_until {
                self.note_shortage(epoch);
            }
            return Step::Break(Ok(id));
        }
        self.take_behind_event(Scope::Any).step()?;
        self.grow_to_limit().step()?;
        self.take_joined_behind_events().step()?;
        self.note_shortage(epoch);
        Step::Continue(())
    }

    /// Takes what every stream has finished with, and creates at most so many bytes beside it.
    fn take_shared(&mut self, create: u64) -> Step {
        if self.requester.is_capture() {
            return Step::Continue(());
        }
        self.pool.flush_all(&mut self.core.memory.free_space);
        match self.core.memory.physical.is_short() {
            true => self.take_as_completed()?,
            false => self.take_completed()?,
        }
        self.grow(Moves::All, create).step()
    }

    /// Asks every event once in an attempt, in slices, until the request fits.
    fn take_as_completed(&mut self) -> Step {
        self.asks.in_slices(&self.core.reclaimer.pending);
        loop {
            self.take_completed()?;
            if self.asks.is_over() {
                return Step::Continue(());
            }
        }
    }

    /// Takes what streams have finished with, as far as the pool knows and asks.
    fn take_completed(&mut self) -> Step {
        self.poll().step()?;
        self.share_completed();
        self.take_fit_or_joined(Cut::Fair).step()
    }
}
