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
use super::{Core, Pool, Turn, Want, is_there};
use crate::driver::{Capture, Context, DriverError};
use crate::pool::free_space::{COMMON, Cut, NodeId, Owner};
use crate::pool::physical::{Grown, Sources};
use crate::pool::reclaim::per_free_events::Reach;
use crate::support::error::{Error, Result};
use crate::sync::atomic::Ordering;
use crate::sync::{MutexGuard, broken};

/// The smallest growth allowance beyond the peak in use. At 1.04 × a few pages, moving handles would scatter the mapped
/// segments before the pool has grown (docs/measurements).
const SLACK: u64 = 10 << 20;

/// A stream whose cache misses records a completion event once it has freed this part of reserved memory.
const UNSTAMPED: u64 = 256;

/// A stream records a completion event once its foreign frees reach this part of reserved memory.
const STRANGE: u64 = 16;

/// For this many pressure epochs after a request had to wait, taking memory from another stream still counts as a
/// shortage.
const SHORT: u64 = 1024;

/// The requester, as the slow path sees it.
#[derive(Clone, Copy)]
enum Who<'a> {
    /// A caller without a stream.
    NoStream,
    /// A stream, and its own free space.
    Stream(&'a Turn<'a>, Owner),
    /// A stream without an id, which has no free space of its own.
    Nameless(&'a Turn<'a>),
    /// A capturing stream: its capture's free space and number.
    Capture(Owner, u32),
}

impl Who<'_> {
    /// The owner of the free space that the requester may use besides common space.
    fn owner(&self, pinned: bool) -> Owner {
        match self {
            Who::NoStream | Who::Nameless(_) => COMMON,
            // The host may write to the block before the stream gets there, so only memory whose work has completed is
            // safe.
            Who::Stream(..) if pinned => COMMON,
            Who::Stream(_, owner) | Who::Capture(owner, _) => *owner,
        }
    }
}

impl Pool {
    /// Finds memory for a request that missed its stream's cache.
    pub fn allocate(&self, want: Want, turn: Option<&Turn<'_>>) -> Result<u64> {
        self.alive()?;
        let mut core = self.core.lock();
        core.still_open()?;
        self.check_context(&mut core)?;
        self.bury_graphs(&mut core);
        let Core { churn, mapping, .. } = &mut *core;
        churn.request(mapping.remaps, want.size);
        let who = match turn {
            None => {
                self.note_current(&mut core).map_err(|error| self.failed(error))?;
                Who::NoStream
            }
            Some(turn) if turn.capture == Capture::Active => {
                let (owner, number) = self.join_capture(&mut core, turn)?;
                Who::Capture(owner, number)
            }
            Some(turn) if turn.capture == Capture::Invalidated => return Err(capture_invalidated()),
            // The host must not write yet to memory that a stream only waits for.
            Some(turn) if turn.id == 0 && self.options.pinned => Who::NoStream,
            Some(turn) if turn.id == 0 => Who::Nameless(turn),
            Some(turn) => Who::Stream(turn, self.join_stream(&mut core, turn)?),
        };
        let id = self.climb(&mut core, &want, who)?;
        if id > Blocks::MOST {
            core.heap.give(id, who.owner(self.options.pinned), u64::MAX >> 1);
            return Err(Error::OutOfMemory(format!("more than {} blocks at once", Blocks::MOST)));
        }
        let address = self.publish(&core, id, &want, turn)?;
        match who {
            Who::Capture(_, number) => {
                self.blocks.get(id).capture.store(number, Ordering::Relaxed);
                core.captures.allocated(number, id);
            }
            Who::Stream(turn, _) => {
                let before = turn.cache.inner.lock().allocations;
                self.blocks.get(id).stamp.store(before, Ordering::Relaxed);
            }
            Who::NoStream | Who::Nameless(_) => {}
        }
        drop(core);
        self.charge(want.size);
        self.counters.allocations.fetch_add(1, Ordering::Relaxed);
        self.counters.requested.fetch_add(want.requested, Ordering::Relaxed);
        Ok(address)
    }

    fn climb(&self, core: &mut MutexGuard<'_, Core>, want: &Want, who: Who<'_>) -> Result<NodeId> {
        self.refresh(core, who);
        if let Some(id) = self.behind_event(core, want, who, Reach::Exact) {
            return Ok(id);
        }
        if let Some(id) = self.fit(core, want, who, Cut::Fair) {
            return Ok(id);
        }
        if core.fixed && want.size > core.mapping.reserved() {
            return Err(self.out_of_memory(core, want, None));
        }
        let _entered = self.enter(core)?;
        let mut deadline = None;
        let mut covered = false;
        let mut refusal = None;
        loop {
            if let Who::Stream(turn, owner) = who {
                self.still_there(turn, owner)?;
            }
            self.stamp(core, who);
            self.settle(core)?;
            if let Some(id) = self.found(core, want, who, Cut::Fair) {
                return Ok(id);
            }
            if let Some(id) = self.behind_event(core, want, who, Reach::Own) {
                return Ok(id);
            }
            let hunger = self.hunger.fetch_add(1, Ordering::Relaxed) + 1;
            if let Who::Stream(turn, _) = who {
                let mut inner = turn.cache.inner.lock();
                if inner.unstamped == 0 {
                    inner.hunger = hunger;
                }
            }
            let budget = self.budget(core, want);
            // A capture moves handles, and returns no mapped ones to the driver.
            let exchange = !matches!(who, Who::Capture(..));
            for (remap, create) in [(false, 0), (false, budget), (true, budget)] {
                let sources = Sources {
                    remap,
                    create,
                    exchange,
                };
                if let Some(id) = self.grow(core, want, who, sources, &mut refusal)? {
                    return Ok(id);
                }
            }
            if matches!(who, Who::NoStream) && !std::mem::replace(&mut covered, true) {
                // A request without a stream may do what cudaMalloc would: events cover everything, so that no free
                // memory stays out of reach.
                self.cover_all(core);
            }
            if !matches!(who, Who::Capture(..)) {
                self.flush_all(core);
                self.settle(core)?;
                if let Some(id) = self.found(core, want, who, Cut::Fair) {
                    return Ok(id);
                }
                if let Some(id) = self.grow(
                    core,
                    want,
                    who,
                    Sources {
                        remap: true,
                        create: budget,
                        exchange,
                    },
                    &mut refusal,
                )? {
                    return Ok(id);
                }
            }
            if let Who::Stream(turn, owner) = who
                && !self.options.pinned
                && let Some(id) = self.steal(core, want, turn, owner)
            {
                if hunger < core.short {
                    self.starve(core, hunger);
                }
                return Ok(id);
            }
            if let Some(id) = self.behind_event(core, want, who, Reach::Any) {
                return Ok(id);
            }
            // Repeats while that lowers reserved memory: a driver may take back memory that a failed attempt created
            // anew.
            let mut least = core.mapping.reserved();
            loop {
                let sources = Sources {
                    remap: true,
                    create: self.room(core),
                    exchange,
                };
                if let Some(id) = self.grow(core, want, who, sources, &mut refusal)? {
                    return Ok(id);
                }
                if let Some(id) = self.found(core, want, who, Cut::Any) {
                    return Ok(id);
                }
                self.give_back(core, want, who, refusal.is_some(), least);
                if core.mapping.reserved() >= least {
                    break;
                }
                least = core.mapping.reserved();
            }
            if let Who::Nameless(turn) = who
                && let Some(id) = self.gather_nameless(core, want, turn)
            {
                return Ok(id);
            }
            self.starve(core, hunger);
            if matches!(who, Who::Capture(..)) || !self.wait(core, &mut deadline, &mut covered)? {
                return Err(self.out_of_memory(core, want, refusal));
            }
        }
    }

    /// Memory is short: streams record completion events for some of what they free next.
    fn starve(&self, core: &mut Core, hunger: u64) {
        core.short = hunger + SHORT;
        self.starvation.fetch_add(1, Ordering::Relaxed);
    }

    /// A requester that waited without the lock may find its stream gone, and its free space with another owner.
    pub(super) fn still_there(&self, turn: &Turn<'_>, owner: Owner) -> Result<()> {
        let inner = turn.cache.inner.lock();
        match &inner.generation {
            Some(generation) if generation.owner == owner && generation.id == turn.id => Ok(()),
            _ => Err(Error::InvalidArgument(
                "the stream was destroyed during the call".into(),
            )),
        }
    }

    /// Records a completion event where a stream that misses has freed much since its last one, and collects what has
    /// completed. So freed memory and common free space coalesce before both are split further.
    fn refresh(&self, core: &mut Core, who: Who<'_>) {
        let Who::Stream(turn, _) = who else { return };
        {
            let inner = turn.cache.inner.lock();
            let wanted = inner.hunger != self.hunger.load(Ordering::Relaxed) && inner.unstamped > 0;
            // Pinned memory becomes reusable only behind a completion event.
            let wanted = wanted || self.options.pinned && inner.unstamped > 0;
            if !wanted && inner.unstamped < (core.mapping.reserved() / UNSTAMPED).max(core.mapping.page) {
                return;
            }
        }
        if let Ok(_entered) = self.enter(core) {
            self.stamp(core, who);
            let _ = self.settle(core);
        }
    }

    /// Steps 2 and 3: the best fit of the requester's own free space, coalesced with what its cache held, and of common
    /// free space.
    fn fit(&self, core: &mut Core, want: &Want, who: Who<'_>, cut: Cut) -> Option<NodeId> {
        let owner = who.owner(self.options.pinned);
        if let Who::Stream(turn, owner) = who {
            let mut inner = turn.cache.inner.lock();
            if inner.ready.bytes() > 0
                && inner
                    .generation
                    .as_ref()
                    .is_some_and(|generation| generation.owner == owner)
            {
                self.flush(core, &mut inner, owner);
            }
        }
        let (id, from) = core.heap.take_either(owner, want.size, want.align, cut)?;
        if matches!(who, Who::Capture(..)) && from == owner {
            self.counters.pending.fetch_sub(want.size, Ordering::Relaxed);
        }
        Some(id)
    }

    /// As [`Pool::fit`], or else adjacent free ranges of the requester's own and of common space together.
    fn found(&self, core: &mut Core, want: &Want, who: Who<'_>, cut: Cut) -> Option<NodeId> {
        self.fit(core, want, who, cut).or_else(|| match who {
            Who::Stream(_, owner) if !self.options.pinned => core.heap.take_joined(owner, want.size, want.align, cut),
            _ => None,
        })
    }

    /// Steps 4, 5, 6 and 8. Where memory runs out, the driver's refusal is kept for the caller, and the slow path goes
    /// on.
    fn grow(
        &self,
        core: &mut Core,
        want: &Want,
        who: Who<'_>,
        sources: Sources,
        refusal: &mut Option<DriverError>,
    ) -> Result<Option<NodeId>> {
        if core.fixed {
            return Ok(None);
        }
        // What a capture has freed counts as pending, so new memory for it is common at first.
        let owner = if matches!(who, Who::Capture(..)) {
            COMMON
        } else {
            who.owner(self.options.pinned)
        };
        let Core { heap, mapping, .. } = core;
        let grown = mapping.grow(heap, owner, want.size, want.align, sources);
        core.reserved_peak = core.reserved_peak.max(core.mapping.reserved());
        self.worth.store(core.mapping.reserved() / STRANGE, Ordering::Relaxed);
        match grown {
            Ok(Grown::At(start, of)) => {
                let found = self.found(core, want, who, Cut::Fair);
                // Takes the range at its start where neither end of the free space there allows a fair cut.
                Ok(found.or_else(|| core.heap.take_at(of, start, want.size)))
            }
            Ok(Grown::Somewhere) => Ok(self.found(core, want, who, Cut::Fair)),
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
    fn behind_event(&self, core: &mut Core, want: &Want, who: Who<'_>, reach: Reach) -> Option<NodeId> {
        match who {
            Who::Nameless(turn) => self.take_nameless(core, want, turn, reach),
            _ => None,
        }
    }

    /// Step 7: takes a range of another stream of the same context, behind that stream's completion event. The contexts
    /// must be the same. Otherwise the taker's context can be destroyed, and its wait with it, while the awaited work
    /// goes on. The block may then be freed on a third stream, which has waited for nothing.
    fn steal(&self, core: &mut Core, want: &Want, turn: &Turn<'_>, owner: Owner) -> Option<NodeId> {
        let here = turn.cache.inner.lock().generation.as_ref().map(|of| of.context);
        for other in core.grace.owners() {
            let near = |(context, _): &(Context, _)| other != owner && Some(*context) == here;
            let Some((context, event)) = core.grace.last_event(other).filter(near) else {
                continue;
            };
            let through = match broken("another stream's memory is taken behind its stamp") {
                true => u64::MAX,
                false => core.grace.last_stamp(other),
            };
            let Some(id) = core.heap.take_stamped(other, want.size, want.align, through) else {
                continue;
            };
            if broken("another stream's memory is taken behind its stamp") {
                return Some(id);
            }
            match self.calls.submit(|driver| driver.stream_wait_event(turn.stream, event)) {
                Ok(()) if is_there(&self.calls, &core.home, &core.contexts, context) == Some(true) => return Some(id),
                // The context is gone, so the event is not the pool's.
                Ok(()) => {}
                Err(error) => tracing::debug!(%error, "a stream could not be made to wait for another"),
            }
            core.heap.give(id, other, through);
        }
        None
    }

    /// Step 9: returns cached handles to the driver. Where the driver has `refused` to create more, it then returns
    /// complete free handles, until reserved memory is below `least` by as many bytes as are wanted, if the device has
    /// enough memory then. Without virtual memory, it returns complete free segments.
    fn give_back(&self, core: &mut Core, want: &Want, who: Who<'_>, refused: bool, least: u64) {
        let Core { heap, mapping, .. } = core;
        if self.space.base().is_none() {
            mapping.release(heap, 0);
            return;
        }
        mapping.release_kept(0);
        if !refused || mapping.reserved() < least || matches!(who, Who::Capture(..)) {
            return;
        }
        // A request that is too large for the device must not cost the others their memory.
        let info = self.calls.ask(|driver| driver.memory_info(self.device));
        let free = info.map_or(u64::MAX, |(free, _)| free);
        if free.saturating_add(heap.free_bytes(COMMON)) >= want.size {
            mapping.release(heap, least.saturating_sub(want.size));
        }
    }

    /// Bytes that step 5 may create.
    pub(super) fn budget(&self, core: &Core, want: &Want) -> u64 {
        let peak = (self.in_use() + want.size).max(self.in_use.peak());
        (peak + (peak / core.churn.part()).max(SLACK))
            .saturating_sub(core.mapping.reserved())
            .min(self.room(core))
    }

    /// Bytes that step 8 may create.
    pub(super) fn room(&self, core: &Core) -> u64 {
        if core.limit == 0 {
            u64::MAX
        } else {
            core.limit.saturating_sub(core.mapping.reserved())
        }
    }

    /// Records a completion event where the requester's stream has freed something that none covers.
    fn stamp(&self, core: &mut Core, who: Who<'_>) {
        if let Who::Stream(turn, _) = who
            && turn.capture == Capture::None
        {
            self.stamp_cache(core, &mut turn.cache.inner.lock(), turn.stream);
        }
    }

    /// Makes a taken node a block.
    fn publish(&self, core: &Core, id: NodeId, want: &Want, turn: Option<&Turn<'_>>) -> Result<u64> {
        let (offset, _) = core.heap.span(id);
        let address = self
            .space
            .address(offset)
            .ok_or_else(|| Error::Unsupported("an offset without memory".into()))?;
        let block = self.blocks.get(id);
        block.address.store(address, Ordering::Relaxed);
        block.size.store(want.size, Ordering::Relaxed);
        block.requested.store(want.requested, Ordering::Relaxed);
        block.capture.store(0, Ordering::Relaxed);
        block.shared.store(0, Ordering::Relaxed);
        block.resizable.store(0, Ordering::Relaxed);
        block.hand_out(turn.map(|turn| turn.cache));
        self.space.index.set(offset, id);
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
            core.mapping.reserved()
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
