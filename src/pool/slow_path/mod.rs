//! The slow path: the steps that look for a request's memory, in this order.
//!
//!  1. the stream's own cache, exact size (in `allocator/mod.rs`, under the stream's lock alone)
//!  2. the best fit of the stream's own free space, coalesced, and of common free space
//!  3. what has completed since, and step 2 again, also where only adjacent free ranges of both are large enough
//!     together
//!  4. cached handles
//!  5. new handles, while reserved memory stays within 1.04 × the peak in use with this request, and within the limit
//!  6. complete free handles, moved, or returned in exchange for new ones that fit
//!  7. other streams' free space, behind their completion event
//!  8. new handles, up to the limit; then a part of a large handle that smaller blocks leave whole
//!  9. cached handles are returned, and where the driver refused new ones complete free handles too; then step 8 again
//! 10. a bounded wait for pending memory; then step 3 and the following ones again
//! 11. out-of-memory handlers (in `allocator`, which also records the refusal)
//! 12. null, with the reason
//!
//! A capturing stream uses its capture's own free space and steps 3–6, 8 and 9 only. A stream without an id has no free
//! space of its own. What was freed on its handle takes that place, each piece behind its event (`reclaim/per_free_events.rs`).

pub mod dedicated;
pub mod growth_allowance;
mod wait;

use super::block::Blocks;
use super::{Core, Pool, StreamView, Want, is_there};
use crate::driver::{Capture, Context, DriverError};
use crate::pool::free_space::{COMMON, Cut, NodeId, Owner};
use crate::pool::physical::{Grown, Sources};
use crate::pool::reclaim::per_free_events::Reach;
use crate::support::error::{Error, Result};
use crate::sync::atomic::Ordering;
use crate::sync::{MutexGuard, broken};

/// The smallest growth allowance beyond the peak in use. At 1.04 × a few pages, moving handles would scatter the mapped
/// segments before the pool has grown (docs/measurements).
const MIN_ALLOWANCE: u64 = 10 << 20;

/// A stream whose cache misses records a completion event once it has freed this part of reserved memory.
const UNCOVERED_PART: u64 = 256;

/// A stream records a completion event once its foreign frees reach this part of reserved memory.
const FOREIGN_PART: u64 = 16;

/// For this many pressure epochs after a request had to wait, taking memory from another stream still counts as a
/// shortage.
const SHORT: u64 = 1024;

/// The requester, as the slow path sees it.
#[derive(Clone, Copy)]
enum Requester<'a> {
    /// A caller without a stream.
    NoStream,
    /// A stream, and its own free space.
    Stream(&'a StreamView<'a>, Owner),
    /// A stream without an id, which has no free space of its own.
    PerFreeEvents(&'a StreamView<'a>),
    /// A capturing stream: its capture's free space and number.
    Capture(Owner, u32),
}

impl Requester<'_> {
    /// The owner of the free space that the requester may use besides common space.
    fn owner(&self, pinned: bool) -> Owner {
        match self {
            Requester::NoStream | Requester::PerFreeEvents(_) => COMMON,
            // The host may write to the block before the stream gets there, so only memory whose work has completed is
            // safe.
            Requester::Stream(..) if pinned => COMMON,
            Requester::Stream(_, owner) | Requester::Capture(owner, _) => *owner,
        }
    }
}

impl Pool {
    /// Finds memory for a request that missed its stream's cache.
    pub fn allocate(&self, want: Want, view: Option<&StreamView<'_>>) -> Result<u64> {
        self.alive()?;
        let mut core = self.core.lock();
        core.still_open()?;
        self.check_context(&mut core)?;
        self.reclaim_graphs(&mut core);
        let Core {
            allowance, physical, ..
        } = &mut *core;
        allowance.request(physical.remaps, want.size);
        let requester = match view {
            None => {
                self.note_current(&mut core).map_err(|error| self.failed(error))?;
                Requester::NoStream
            }
            Some(view) if view.capture == Capture::Active => {
                let (owner, number) = self.join_capture(&mut core, view)?;
                Requester::Capture(owner, number)
            }
            Some(view) if view.capture == Capture::Invalidated => return Err(capture_invalidated()),
            // The host must not write yet to memory that a stream only waits for.
            Some(view) if view.id == 0 && self.options.pinned => Requester::NoStream,
            Some(view) if view.id == 0 => Requester::PerFreeEvents(view),
            Some(view) => Requester::Stream(view, self.join_stream(&mut core, view)?),
        };
        let id = self.find_memory(&mut core, &want, requester)?;
        if id > Blocks::MAX {
            core.free_space
                .give(id, requester.owner(self.options.pinned), u64::MAX >> 1);
            return Err(Error::OutOfMemory(format!("more than {} blocks at once", Blocks::MAX)));
        }
        let address = self.make_block(&core, id, &want, view)?;
        match requester {
            Requester::Capture(_, number) => {
                self.blocks.get(id).capture.store(number, Ordering::Relaxed);
                core.captures.allocated(number, id);
            }
            Requester::Stream(view, _) => {
                let before = view.cache.inner.lock().allocations;
                self.blocks.get(id).event_number.store(before, Ordering::Relaxed);
            }
            Requester::NoStream | Requester::PerFreeEvents(_) => {}
        }
        drop(core);
        self.charge(want.size);
        self.counters.allocations.fetch_add(1, Ordering::Relaxed);
        self.counters.requested.fetch_add(want.requested, Ordering::Relaxed);
        Ok(address)
    }

    fn find_memory(&self, core: &mut MutexGuard<'_, Core>, want: &Want, requester: Requester<'_>) -> Result<NodeId> {
        self.record_due_event(core, requester);
        if let Some(id) = self.take_behind_event(core, want, requester, Reach::Exact) {
            return Ok(id);
        }
        if let Some(id) = self.take_fit(core, want, requester, Cut::Fair) {
            return Ok(id);
        }
        if core.is_external && want.size > core.physical.reserved() {
            return Err(self.out_of_memory(core, want, None));
        }
        let _entered = self.enter(core)?;
        let mut deadline = None;
        let mut covered = false;
        let mut refusal = None;
        loop {
            if let Requester::Stream(view, owner) = requester {
                self.check_same_stream(view, owner)?;
            }
            self.record_event(core, requester);
            self.poll(core)?;
            if let Some(id) = self.take_fit_or_joined(core, want, requester, Cut::Fair) {
                return Ok(id);
            }
            if let Some(id) = self.take_behind_event(core, want, requester, Reach::Own) {
                return Ok(id);
            }
            let pressure_epoch = self.pressure_epoch.fetch_add(1, Ordering::Relaxed) + 1;
            if let Requester::Stream(view, _) = requester {
                let mut inner = view.cache.inner.lock();
                if inner.uncovered == 0 {
                    inner.pressure_epoch = pressure_epoch;
                }
            }
            let allowance = self.growth_allowance(core, want);
            // A capture moves handles, and returns no mapped ones to the driver.
            let exchange = !matches!(requester, Requester::Capture(..));
            for (remap, create) in [(false, 0), (false, allowance), (true, allowance)] {
                let sources = Sources {
                    remap,
                    create,
                    exchange,
                };
                if let Some(id) = self.grow(core, want, requester, sources, &mut refusal)? {
                    return Ok(id);
                }
            }
            if matches!(requester, Requester::NoStream) && !std::mem::replace(&mut covered, true) {
                // A request without a stream may do what cudaMalloc would: events cover everything, so that no free
                // memory stays out of reach.
                self.cover_all(core);
            }
            if !matches!(requester, Requester::Capture(..)) {
                self.flush_all(core);
                self.poll(core)?;
                if let Some(id) = self.take_fit_or_joined(core, want, requester, Cut::Fair) {
                    return Ok(id);
                }
                if let Some(id) = self.grow(
                    core,
                    want,
                    requester,
                    Sources {
                        remap: true,
                        create: allowance,
                        exchange,
                    },
                    &mut refusal,
                )? {
                    return Ok(id);
                }
            }
            if let Requester::Stream(view, owner) = requester
                && !self.options.pinned
                && let Some(id) = self.take_from_other_stream(core, want, view, owner)
            {
                if pressure_epoch < core.shortage_until {
                    self.note_shortage(core, pressure_epoch);
                }
                return Ok(id);
            }
            if let Some(id) = self.take_behind_event(core, want, requester, Reach::Any) {
                return Ok(id);
            }
            // Repeats while that lowers reserved memory: a driver may take back memory that a failed attempt created
            // anew.
            let mut least = core.physical.reserved();
            loop {
                let sources = Sources {
                    remap: true,
                    create: self.room_below_limit(core),
                    exchange,
                };
                if let Some(id) = self.grow(core, want, requester, sources, &mut refusal)? {
                    return Ok(id);
                }
                if let Some(id) = self.take_fit_or_joined(core, want, requester, Cut::Any) {
                    return Ok(id);
                }
                self.give_back(core, want, requester, refusal.is_some(), least);
                if core.physical.reserved() >= least {
                    break;
                }
                least = core.physical.reserved();
            }
            if let Requester::PerFreeEvents(view) = requester
                && let Some(id) = self.join_behind_frees(core, want, view)
            {
                return Ok(id);
            }
            self.note_shortage(core, pressure_epoch);
            if matches!(requester, Requester::Capture(..)) || !self.wait(core, &mut deadline, &mut covered)? {
                return Err(self.out_of_memory(core, want, refusal));
            }
        }
    }

    /// Memory is short: streams record completion events for some of what they free next.
    fn note_shortage(&self, core: &mut Core, pressure_epoch: u64) {
        core.shortage_until = pressure_epoch + SHORT;
        self.shortages.fetch_add(1, Ordering::Relaxed);
    }

    /// A requester that waited without the lock may find its stream gone, and its free space with another owner.
    pub(super) fn check_same_stream(&self, view: &StreamView<'_>, owner: Owner) -> Result<()> {
        let inner = view.cache.inner.lock();
        match &inner.served {
            Some(served) if served.owner == owner && served.id == view.id => Ok(()),
            _ => Err(Error::InvalidArgument(
                "the stream was destroyed during the call".into(),
            )),
        }
    }

    /// Records a completion event where a stream that misses has freed much since its last one, and collects what has
    /// completed. So freed memory and common free space coalesce before both are split further.
    fn record_due_event(&self, core: &mut Core, requester: Requester<'_>) {
        let Requester::Stream(view, _) = requester else { return };
        {
            let inner = view.cache.inner.lock();
            let wanted = inner.pressure_epoch != self.pressure_epoch.load(Ordering::Relaxed) && inner.uncovered > 0;
            // Pinned memory becomes reusable only behind a completion event.
            let wanted = wanted || self.options.pinned && inner.uncovered > 0;
            if !wanted && inner.uncovered < (core.physical.reserved() / UNCOVERED_PART).max(core.physical.page) {
                return;
            }
        }
        if let Ok(_entered) = self.enter(core) {
            self.record_event(core, requester);
            let _ = self.poll(core);
        }
    }

    /// Steps 2 and 3: the best fit of the requester's own free space, coalesced with what its cache held, and of common
    /// free space.
    fn take_fit(&self, core: &mut Core, want: &Want, requester: Requester<'_>, cut: Cut) -> Option<NodeId> {
        let owner = requester.owner(self.options.pinned);
        if let Requester::Stream(view, owner) = requester {
            let mut inner = view.cache.inner.lock();
            if inner.ready.bytes() > 0 && inner.served.as_ref().is_some_and(|served| served.owner == owner) {
                self.flush(core, &mut inner, owner);
            }
        }
        let (id, from) = core.free_space.take_either(owner, want.size, want.align, cut)?;
        if matches!(requester, Requester::Capture(..)) && from == owner {
            self.counters.pending.fetch_sub(want.size, Ordering::Relaxed);
        }
        Some(id)
    }

    /// As [`Pool::fit`], or else adjacent free ranges of the requester's own and of common space together.
    fn take_fit_or_joined(&self, core: &mut Core, want: &Want, requester: Requester<'_>, cut: Cut) -> Option<NodeId> {
        self.take_fit(core, want, requester, cut).or_else(|| match requester {
            Requester::Stream(_, owner) if !self.options.pinned => {
                core.free_space.take_joined(owner, want.size, want.align, cut)
            }
            _ => None,
        })
    }

    /// Steps 4, 5, 6 and 8. Where memory runs out, the driver's refusal is kept for the caller, and the slow path goes
    /// on.
    fn grow(
        &self,
        core: &mut Core,
        want: &Want,
        requester: Requester<'_>,
        sources: Sources,
        refusal: &mut Option<DriverError>,
    ) -> Result<Option<NodeId>> {
        if core.is_external {
            return Ok(None);
        }
        // What a capture has freed counts as pending, so new memory for it is common at first.
        let owner = if matches!(requester, Requester::Capture(..)) {
            COMMON
        } else {
            requester.owner(self.options.pinned)
        };
        let Core {
            free_space, physical, ..
        } = core;
        let grown = physical.grow(free_space, owner, want.size, want.align, sources);
        core.reserved_peak = core.reserved_peak.max(core.physical.reserved());
        self.foreign_bytes_due
            .store(core.physical.reserved() / FOREIGN_PART, Ordering::Relaxed);
        match grown {
            Ok(Grown::At(start, of)) => {
                let found = self.take_fit_or_joined(core, want, requester, Cut::Fair);
                // Takes the range at its start where neither end of the free space there allows a fair cut.
                Ok(found.or_else(|| core.free_space.take_at(of, start, want.size)))
            }
            Ok(Grown::Somewhere) => Ok(self.take_fit_or_joined(core, want, requester, Cut::Fair)),
            Ok(Grown::Short) => Ok(None),
            Err(error) if error.failure.is_dead() => Err(self.failed(error)),
            Err(error) => {
                tracing::debug!(device = self.device, %error, "growing failed");
                *refusal = Some(error);
                Ok(None)
            }
        }
    }

    /// Steps 1, 2 and 7 for a stream without an id.
    fn take_behind_event(
        &self,
        core: &mut Core,
        want: &Want,
        requester: Requester<'_>,
        reach: Reach,
    ) -> Option<NodeId> {
        match requester {
            Requester::PerFreeEvents(view) => self.take_behind_free(core, want, view, reach),
            _ => None,
        }
    }

    /// Step 7: takes a range of another stream of the same context, behind that stream's completion event. The contexts
    /// must be the same. Otherwise the taker's context can be destroyed, and its wait with it, while the awaited work
    /// goes on. The block may then be freed on a third stream, which has waited for nothing.
    fn take_from_other_stream(
        &self,
        core: &mut Core,
        want: &Want,
        view: &StreamView<'_>,
        owner: Owner,
    ) -> Option<NodeId> {
        let here = view.cache.inner.lock().served.as_ref().map(|of| of.context);
        for other in core.grace.owners() {
            let near = |(context, _): &(Context, _)| other != owner && Some(*context) == here;
            let Some((context, event)) = core.grace.last_event(other).filter(near) else {
                continue;
            };
            let through = match broken("another stream's memory is taken behind its event") {
                true => u64::MAX,
                false => core.grace.last_event_number(other),
            };
            let Some(id) = core.free_space.take_covered(other, want.size, want.align, through) else {
                continue;
            };
            if broken("another stream's memory is taken behind its event") {
                return Some(id);
            }
            match self.calls.submit(|driver| driver.stream_wait_event(view.stream, event)) {
                Ok(()) if is_there(&self.calls, &core.home, &core.contexts, context) == Some(true) => return Some(id),
                // The context is gone, so the event is not the pool's.
                Ok(()) => {}
                Err(error) => tracing::debug!(%error, "a stream could not be made to wait for another"),
            }
            core.free_space.give(id, other, through);
        }
        None
    }

    /// Step 9: returns cached handles to the driver. Where the driver has `refused` to create more, it then returns
    /// complete free handles, until reserved memory is below `least` by as many bytes as are wanted, if the device has
    /// enough memory then. Without virtual memory, it returns complete free segments.
    fn give_back(&self, core: &mut Core, want: &Want, requester: Requester<'_>, refused: bool, least: u64) {
        let Core {
            free_space, physical, ..
        } = core;
        if self.addresses.base().is_none() {
            physical.release(free_space, 0);
            return;
        }
        physical.release_cached(0);
        if !refused || physical.reserved() < least || matches!(requester, Requester::Capture(..)) {
            return;
        }
        // A request that is too large for the device must not cost the others their memory.
        let info = self.calls.query(|driver| driver.memory_info(self.device));
        let free = info.map_or(u64::MAX, |(free, _)| free);
        if free.saturating_add(free_space.free_bytes(COMMON)) >= want.size {
            physical.release(free_space, least.saturating_sub(want.size));
        }
    }

    /// Bytes that step 5 may create.
    pub(super) fn growth_allowance(&self, core: &Core, want: &Want) -> u64 {
        let peak = (self.in_use() + want.size).max(self.in_use.peak());
        (peak + (peak / core.allowance.part()).max(MIN_ALLOWANCE))
            .saturating_sub(core.physical.reserved())
            .min(self.room_below_limit(core))
    }

    /// Bytes that step 8 may create.
    pub(super) fn room_below_limit(&self, core: &Core) -> u64 {
        if core.limit == 0 {
            u64::MAX
        } else {
            core.limit.saturating_sub(core.physical.reserved())
        }
    }

    /// Records a completion event where the requester's stream has freed something that none covers.
    fn record_event(&self, core: &mut Core, requester: Requester<'_>) {
        if let Requester::Stream(view, _) = requester
            && view.capture == Capture::None
        {
            self.record_stream_event(core, &mut view.cache.inner.lock(), view.stream);
        }
    }

    /// Makes a taken node a block.
    fn make_block(&self, core: &Core, id: NodeId, want: &Want, view: Option<&StreamView<'_>>) -> Result<u64> {
        let (offset, _) = core.free_space.span(id);
        let address = self
            .addresses
            .address(offset)
            .ok_or_else(|| Error::Unsupported("an offset without memory".into()))?;
        let block = self.blocks.get(id);
        block.address.store(address, Ordering::Relaxed);
        block.size.store(want.size, Ordering::Relaxed);
        block.requested.store(want.requested, Ordering::Relaxed);
        block.capture.store(0, Ordering::Relaxed);
        block.shared.store(0, Ordering::Relaxed);
        block.resizable.store(0, Ordering::Relaxed);
        block.hand_out(view.map(|view| view.cache));
        self.addresses.index.set(offset, id);
        Ok(address)
    }

    pub(super) fn out_of_memory(&self, core: &Core, want: &Want, refusal: Option<DriverError>) -> Error {
        self.counters.out_of_memory.fetch_add(1, Ordering::Relaxed);
        let allocated = self.in_use();
        let pending = self.counters.pending.load(Ordering::Relaxed);
        let limit = if core.limit == 0 {
            "none".into()
        } else {
            format!("{} bytes", core.limit)
        };
        let mut text = format!(
            "{} bytes on device {}: {allocated} allocated, {pending} pending, {} reserved, limit {limit}",
            want.requested,
            self.device,
            core.physical.reserved()
        );
        if let Some(refusal) = refusal {
            text.push_str(&format!("; {refusal}"));
        }
        Error::OutOfMemory(text)
    }
}

#[cold]
pub(super) fn capture_invalidated() -> Error {
    Error::Unsupported("the stream's capture was invalidated and must be ended first".into())
}
