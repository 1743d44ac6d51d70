//! The slow path: the steps that look for a request's memory, in this order.
//!
//!  1. the stream's own cache, exact size (in `allocator/mod.rs`, under the stream's lock alone)
//!  2. the stream's own arena, and common free space
//!  3. what has completed since: guests that go home, common free space; then step 2 again, also where only adjacent free
//!     ranges of both are large enough together
//!  4. cached handles; then what was freed without a stream, what waits for declared uses, and what streams that are gone or
//!     silent have left, if that is much: an event covers it
//!  5. new handles at the end of the arena, while reserved memory stays within 1.04 × the needs, and within the limit
//!  6. idle handles of the arena and of common free space, moved, or returned in exchange for new ones that fit
//!  7. for a request without a stream, or where memory is short: what other streams have freed, as far as it has completed.
//!     It becomes common free space; then steps 2 and 6 again. An event covers it before, if it is much and no capture is
//!     known
//!  8. new handles, up to the limit, with idle ones moved; then step 7 where it was left out
//!  9. guests, then other streams' free space behind their completion event
//! 10. as step 8, with handles exchanged; then a part of a large handle that smaller blocks leave whole; then both with
//!     what the stream itself has freed as common free space; then what resizable blocks have beyond their sizes; then
//!     cached handles are returned, and where the driver refused new ones idle handles too
//! 11. a bounded wait for pending memory; then step 3 and the following ones again. Where there is no more to wait for,
//!     idle handles are unmapped, and mapped where the request fits
//! 12. out-of-memory handlers (in `allocator`, which also records the refusal)
//! 13. null, with the reason
//!
//! [`SlowPath`] is one request on its way through these steps; `steps.rs` has each of them.
//!
//! No step before 9 makes a stream wait. Where memory is short ([`PhysicalMemory::is_short`]), streams record completion
//! events more often and share what has completed at once, so that steps 2 to 7 find it.
//!
//! A capturing stream uses its capture's own free space, common free space with what every stream has finished with, and
//! steps 4 to 6, 8 and 10 only. A stream without an id has no arena. What was freed on its handle takes that place, each
//! piece behind its event (`reclaim/per_free_events.rs`).
//!
//! [`PhysicalMemory::is_short`]: crate::pool::physical::PhysicalMemory::is_short
//!
//! Uses: free_space, physical, reclaim, stream_cache.

use crate::driver::{Capture, DriverError};
use crate::pool::free_space::{Cut, FreeSpace, NodeId};
use crate::pool::physical::Ahead;
use crate::pool::reclaim::pending::Asks;
use crate::pool::reclaim::per_free_events::Reach;
use crate::pool::reclaim::wait::Wait;
use crate::pool::stream_cache::block::Blocks;
use crate::pool::{Core, Pool, StreamView, Want};
use crate::support::error::{Error, Result};
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;

mod arena;
pub mod dedicated;
pub mod dedicated_fallback;
pub mod growth_allowance;
mod refusal;
mod requester;
pub mod rise;
mod steps;

use refusal::capture_invalidated;
use requester::Requester;
use steps::Moves;

/// For this many pressure epochs after a request had to wait, taking memory from another stream still counts as a
/// shortage.
const SHORTAGE_EPOCHS: u64 = 1024;

/// A stream is silent once others have asked for so many times the peak in use since its last request.
const SILENT: u64 = 2;

impl Pool {
    /// Finds memory for a request that missed its stream's cache.
    pub fn allocate(&self, want: Want, view: Option<&StreamView<'_>>) -> Result<u64> {
        self.allocate_with(want, view, Wait::default())
    }

    /// As [`Pool::allocate`], with this wait for pending memory.
    fn allocate_with(&self, want: Want, view: Option<&StreamView<'_>>, wait: Wait) -> Result<u64> {
        let mut core = self.admit()?;
        self.obtain_reserve(&mut core)?;
        let remaps = core.memory.physical.remaps;
        core.allowance.request(remaps, want.size);
        core.rise.request(want.size);
        if let Some(view) = view
            && let Some(found) = self.take_from_arena(&mut core, &want, view)?
        {
            drop(core);
            self.note_memory();
            if found.charge > 0 {
                self.charge(found.charge);
            }
            return Ok(found.address);
        }
        let requester = self.requester(&mut core, view)?;
        let id = SlowPath {
            pool: self,
            core: &mut core,
            want: &want,
            requester,
            wait,
            refusal: None,
            ahead: None,
            asks: Asks::few(),
        }
        .find()?;
        if id > Blocks::MAX {
            core.memory
                .free_space
                .put_back(id, requester.owner(self.options.pinned));
            if requester.is_capture() {
                // What is free for a capture counts as pending.
                core.memory.counts.add_pending(want.size);
            }
            self.count_refused();
            return Err(Error::OutOfMemory(format!("more than {} blocks at once", Blocks::MAX)));
        }
        let address = self.make_block(&core.memory.free_space, id, &want, view)?;
        core.memory.free_space.hold(id, requester.arena(self.options.pinned));
        let charge = match requester {
            // As a hit does.
            Requester::Stream(view, _) => view.cache.inner.lock().count(self.blocks.get(id), &want),
            Requester::Capture(..) | Requester::NoStream | Requester::PerFreeEvents(_) => {
                core.memory.counts.allocated(want.requested);
                want.size
            }
        };
        if let Requester::Capture(_, number) = requester {
            self.blocks.get(id).capture.store(number, Ordering::Relaxed);
            core.reclaimer.graphs.allocated(number, id);
        }
        drop(core);
        self.note_memory();
        if charge > 0 {
            self.charge(charge);
        }
        Ok(address)
    }

    /// Obtains the reserve, if this is the pool's first request.
    #[inline]
    fn obtain_reserve(&self, core: &mut Core) -> Result<()> {
        if core.memory.physical.reserve.is_due() {
            let _entered = self.enter(&core.reclaimer.contexts)?;
            core.memory.obtain_reserve();
        }
        Ok(())
    }

    #[inline]
    fn requester<'a>(&self, core: &mut Core, view: Option<&'a StreamView<'a>>) -> Result<Requester<'a>> {
        let Core { memory, reclaimer, .. } = core;
        let free_space = &mut memory.free_space;
        Ok(match view {
            None => {
                let noted = reclaimer.note_current(&self.calls);
                noted.map_err(|error| self.failed(error))?;
                Requester::NoStream
            }
            Some(view) if view.capture == Capture::Active => {
                let (owner, number) = reclaimer.join_capture(self, free_space, view)?;
                Requester::Capture(owner, number)
            }
            Some(view) if view.capture == Capture::Invalidated => return Err(capture_invalidated()),
            Some(view) if view.id == 0 => {
                view.cache.inner.lock().capture = 0;
                match self.options.pinned {
                    // The host must not write yet to memory that a stream only waits for.
                    true => Requester::NoStream,
                    false => Requester::PerFreeEvents(view),
                }
            }
            Some(view) => Requester::Stream(view, reclaimer.join_stream(self, free_space, view)?),
        })
    }

    /// Makes a taken node a block.
    fn make_block(
        &self,
        free_space: &FreeSpace,
        id: NodeId,
        want: &Want,
        view: Option<&StreamView<'_>>,
    ) -> Result<u64> {
        let (offset, _) = free_space.span(id);
        let address = self
            .addresses
            .address(offset)
            .ok_or_else(|| Error::Unsupported("an offset without memory".into()))?;
        let block = self.blocks.get(id);
        block.address.store(address, Ordering::Relaxed);
        block.size.store(want.size, Ordering::Relaxed);
        block.requested.store(want.requested, Ordering::Relaxed);
        block.capture.store(0, Ordering::Relaxed);
        block.stream_uses.store(0, Ordering::Relaxed);
        block.resizable.store(0, Ordering::Relaxed);
        block.hand_out(view.map(|view| view.cache));
        self.addresses.index.set(offset, id);
        Ok(address)
    }
}

/// One request in the slow path.
struct SlowPath<'a, 'c> {
    pool: &'a Pool,
    core: &'a mut MutexGuard<'c, Core>,
    want: &'a Want,
    requester: Requester<'a>,
    wait: Wait,
    /// The driver's last refusal to create memory.
    refusal: Option<DriverError>,
    /// How far step 5 goes ahead of the request.
    ahead: Option<Ahead>,
    /// Which events it may still ask whether they have completed.
    asks: Asks,
}

impl SlowPath<'_, '_> {
    /// Goes through the steps until there is memory, or no more to wait for.
    #[inline]
    fn find(&mut self) -> Result<NodeId> {
        self.record_due_event();
        self.cover_early();
        if let Some(id) = self.take_behind_event(Reach::Exact) {
            return Ok(id);
        }
        if let Some(id) = self.take_fit(Cut::Fair) {
            return Ok(id);
        }
        let physical = &self.core.memory.physical;
        if physical.is_external && self.want.size > physical.reserved() {
            return Err(self.out_of_memory());
        }
        let pool = self.pool;
        let _entered = pool.enter(&self.core.reclaimer.contexts)?;
        loop {
            if let Some(id) = self.attempt()? {
                return Ok(id);
            }
            // The memory that the request lacks may be on its way back to the driver.
            if pool.wait_for_leaving(self.core)? {
                continue;
            }
            if self.requester.is_capture() || !self.wait.wait(pool, self.core)? {
                return self.take_gathered()?.ok_or_else(|| self.out_of_memory());
            }
        }
    }

    /// Steps 3 to 10.
    fn attempt(&mut self) -> Result<Option<NodeId>> {
        self.asks = Asks::few();
        if let Requester::Stream(view, owner) = self.requester {
            view.check_owner(owner)?;
        }
        self.poll()?;
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
        if let Some(id) = self.take_fit_or_joined(Cut::Fair) {
            return Ok(Some(id));
        }
        // What was set apart because the stream did not need it for long, it needs now.
        if let Requester::Stream(_, owner) = self.requester
            && self.core.memory.free_space.take_back_apart(owner)
            && let Some(id) = self.take_fit_or_joined(Cut::Fair)
        {
            return Ok(Some(id));
        }
        if let Some(id) = self.take_behind_event(Reach::Own) {
            return Ok(Some(id));
        }
        if let Some(id) = self.grow(Moves::None, 0)? {
            return Ok(Some(id));
        }
        if let Some(id) = self.take_left_behind()? {
            return Ok(Some(id));
        }
        let allowance = self.growth_allowance();
        if let Some(id) = self.grow(Moves::None, allowance)? {
            return Ok(Some(id));
        }
        self.record_event();
        self.poll()?;
        if let Some(id) = self.grow(Moves::All, allowance)? {
            return Ok(Some(id));
        }
        let epoch = self.raise_pressure();
        let alone = matches!(self.requester, Requester::NoStream);
        if alone && self.core.reclaimer.is_cover_of_all_due(self.pool, &self.core.memory) {
            // Events end captures. So the pool grows first if little is free, or once a capture is known.
            self.wait.cover(self.pool, self.core);
        }
        // What a stream takes from another's arena, the other one has to request anew. So a stream grows first, unless
        // memory is short.
        let shares_first = self.core.memory.physical.is_short() || alone || self.pool.calls.others_wait();
        if shares_first && let Some(id) = self.take_shared(allowance)? {
            return Ok(Some(id));
        }
        let room = self.core.memory.physical.room_below_limit();
        if let Some(id) = self.grow(Moves::Only, room)? {
            return Ok(Some(id));
        }
        let covered = alone && self.wait.cover(self.pool, self.core);
        if (covered || !shares_first)
            && let Some(id) = self.take_shared(room)?
        {
            return Ok(Some(id));
        }
        // Before its stream waits for another one, or the request waits or is refused, it asks every event.
        if let Some(id) = self.take_as_completed()? {
            return Ok(Some(id));
        }
        if let Requester::Stream(_, owner) = self.requester {
            self.core.memory.free_space.adopt_guests(owner);
            if let Some(id) = self.take_fit_or_joined(Cut::Fair) {
                return Ok(Some(id));
            }
        }
        if let Some(id) = self.take_from_other_stream() {
            if epoch < self.core.shortage_until {
                self.note_shortage(epoch);
            }
            return Ok(Some(id));
        }
        if let Some(id) = self.take_behind_event(Reach::Any) {
            return Ok(Some(id));
        }
        if let Some(id) = self.grow_to_limit()? {
            return Ok(Some(id));
        }
        if let Some(id) = self.take_joined_behind_events() {
            return Ok(Some(id));
        }
        self.note_shortage(epoch);
        Ok(None)
    }

    /// Covers what was freed without a stream, if memory is short and that is much of it.
    #[inline]
    fn cover_early(&mut self) {
        let Core { memory, reclaimer, .. } = &mut **self.core;
        if !reclaimer.is_early_cover_due(self.pool, memory) || self.requester.is_capture() {
            return;
        }
        if let Ok(_entered) = self.pool.enter(&reclaimer.contexts) {
            reclaimer.cover(self.pool, memory);
        }
    }

    /// Takes what was freed without a stream, what is behind declared uses, and what streams that are gone or silent have left.
    /// An event covers it before, if that is due. The request does not wait for the rest: a later one collects it.
    fn take_left_behind(&mut self) -> Result<Option<NodeId>> {
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

    /// Step 7: takes what every stream has finished with, and creates at most so many bytes beside it.
    fn take_shared(&mut self, create: u64) -> Result<Option<NodeId>> {
        if self.requester.is_capture() {
            return Ok(None);
        }
        self.pool.flush_all(&mut self.core.memory.free_space);
        let found = match self.core.memory.physical.is_short() {
            true => self.take_as_completed()?,
            false => self.take_completed()?,
        };
        match found {
            None => self.grow(Moves::All, create),
            found => Ok(found),
        }
    }

    /// Asks every event once in an attempt, in slices, until the request fits.
    fn take_as_completed(&mut self) -> Result<Option<NodeId>> {
        self.asks.in_slices(&self.core.reclaimer.pending);
        loop {
            let found = self.take_completed()?;
            if found.is_some() || self.asks.is_over() {
                return Ok(found);
            }
        }
    }

    /// Takes what streams have finished with, as far as the pool knows and asks.
    fn take_completed(&mut self) -> Result<Option<NodeId>> {
        self.poll()?;
        self.share_completed();
        Ok(self.take_fit_or_joined(Cut::Fair))
    }

    /// Step 10. It is repeated while that lowers reserved memory: a driver may take back memory that a failed
    /// attempt created anew.
    fn grow_to_limit(&mut self) -> Result<Option<NodeId>> {
        let mut least = self.core.memory.physical.reserved();
        loop {
            let room = self.core.memory.physical.room_below_limit();
            if let Some(id) = self.grow(Moves::All, room)? {
                return Ok(Some(id));
            }
            if let Some(id) = self.take_fit_or_joined(Cut::Any) {
                return Ok(Some(id));
            }
            if self.share_own_completed() || self.pool.cut_all_ends(self.core, self.want.size) {
                continue;
            }
            self.release_for_growth(least);
            let reserved = self.core.memory.physical.reserved();
            if reserved >= least {
                return Ok(None);
            }
            least = reserved;
        }
    }

    /// Memory is short: streams record completion events for some of what they free next.
    fn note_shortage(&mut self, epoch: u64) {
        self.core.shortage_until = epoch + SHORTAGE_EPOCHS;
        self.pool.shortages.fetch_add(1, Ordering::Relaxed);
    }

    fn out_of_memory(&self) -> Error {
        let (pool, refusal) = (self.pool, self.refusal);
        pool.note_refusal(refusal.as_ref(), self.wait.deadline());
        pool.out_of_memory(self.core, self.want, refusal)
    }
}
