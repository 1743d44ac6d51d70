//! How freed memory comes back: into a stream's free space, to deferred reclamation, or to a graph.

use crate::driver::{Capture, Context, DriverError, Stream};
use crate::history::{Action, Event};
use crate::pool::block::{Block, State};
use crate::pool::dedicated::Claimed;
use crate::pool::free_space::{NodeId, Owner};
use crate::pool::physical::dedicated_memory::DedicatedMemory;
use crate::pool::reclaim::Freed;
use crate::pool::stream_cache::{AWAITED, Inner, StreamCache};
use crate::pool::{Core, Pool, StreamView};
use crate::support::config::ReleaseThreshold;
use crate::sync::atomic::Ordering;
use crate::sync::broken;

/// With `release_threshold=auto`, memory of this size or more that is freed without a stream goes back to the driver.
const LARGE: u64 = 32 << 20;

impl Pool {
    /// Takes back a claimed block that its stream's cache could not take: it was freed without a stream or on a stream
    /// that is unknown or of another device, or it was used on other streams too, or it belongs to a graph.
    pub fn free(&self, id: NodeId, block: &Block, cache: Option<&StreamCache>, may_cover: bool) {
        let size = block.size();
        self.counters.frees.fetch_add(1, Ordering::Relaxed);
        self.counters
            .requested
            .fetch_sub(block.requested.load(Ordering::Relaxed), Ordering::Relaxed);
        self.record_freed(Action::FreeRequested, id, cache.map(|cache| cache.key.stream));
        if self.dead.get().is_some() {
            return self.now_pending(size);
        }
        let mut core = self.core.lock();
        self.now_pending(size);
        self.reclaim_graphs(&mut core);
        let number = block.capture.load(Ordering::Relaxed);
        // No single stream may reuse a block that was used on other streams too.
        let own = cache.filter(|_| block.shared.load(Ordering::Relaxed) == 0);
        if number != 0 {
            // What a graph reads from host memory was written before its launch, so none of it is used twice.
            let own = own.filter(|_| !self.options.pinned);
            let inside = own.filter(|cache| cache.inner.lock().capture == number);
            let owner = inside.and_then(|cache| core.captures.freed_inside(number, id, cache.key));
            if let Some(owner) = owner {
                // Memory of a capture stays pending for every other stream.
                self.end_block(&mut core, id);
                core.free_space.give(id, owner, 0);
                return;
            }
            let freed = Freed::Block { id, give_back: false };
            if core.captures.freed_outside(number, freed).is_none() {
                core.uses.remove(&id);
                return;
            }
        }
        if may_cover && !self.driver().knows_work() {
            let freed = Freed::Block { id, give_back: false };
            return self.return_freed(&mut core, freed);
        }
        match (own, cache) {
            (Some(cache), _) if self.free_to_stream(&mut core, id, cache) => return,
            (None, Some(cache)) if self.free_with_uses(&mut core, id, cache) => return,
            _ => {
                core.uses.remove(&id);
            }
        }
        if !may_cover {
            self.note_foreign_free(&mut core, cache);
        }
        let large = size >= LARGE && self.options.release_threshold == ReleaseThreshold::Auto;
        core.grace.free(Freed::Block {
            id,
            give_back: may_cover && large,
        });
        if may_cover {
            self.cover_free(&mut core);
        }
    }

    /// Counts freed bytes as pending and no longer as in use. The caller holds the pool's lock until the block is
    /// filed, because a close that finds nothing in use returns all memory to the driver. A dead pool returns nothing.
    fn now_pending(&self, bytes: u64) {
        self.counters.pending.fetch_add(bytes, Ordering::Relaxed);
        self.taken_back(bytes);
    }

    /// Records that a block is being freed, or that its free has completed. No other request may have the block yet.
    #[inline]
    pub fn record_freed(&self, action: Action, id: NodeId, stream: Option<Stream>) {
        if self.recorder.is_on() {
            let block = self.blocks.get(id);
            let (address, requested) = (&block.address, &block.requested);
            let (address, requested) = (address.load(Ordering::Relaxed), requested.load(Ordering::Relaxed));
            self.marks.clear(id);
            let event = Event::new(action, self.device, address, requested);
            self.recorder.happened(event.on(Stream::recorded(stream)));
        }
    }

    /// Records that free space of a graph is common now. What was freed there has coalesced, so one event covers it.
    pub(in crate::pool) fn record_range_completed(&self, offset: u64, size: u64) {
        if self.recorder.is_on()
            && let Some(address) = self.addresses.address(offset)
        {
            self.recorder
                .happened(Event::new(Action::RangeCompleted, self.device, address, size));
        }
    }

    /// As [`Pool::record_freed`], for a dedicated allocation that is being freed.
    pub(in crate::pool) fn record_dedicated_free(&self, block: &DedicatedMemory, stream: Option<Stream>) {
        if self.recorder.is_on() {
            let event = Event::new(Action::FreeRequested, self.device, block.address, block.requested);
            self.recorder.happened(event.on(Stream::recorded(stream)));
            self.marks.forget(block.address);
        }
    }

    /// Records that a dedicated allocation has no user any more, and that its range is gone.
    pub(in crate::pool) fn record_dedicated_gone(&self, block: &DedicatedMemory) {
        // A block that was never handed out has no requested size.
        if !self.recorder.is_on() || block.requested == 0 {
            return;
        }
        let (address, bytes, mapped) = block.extent();
        let gone = if mapped {
            Action::SegmentUnmap
        } else {
            Action::SegmentFree
        };
        for (action, address, bytes) in [
            (Action::FreeCompleted, block.address, block.requested),
            (gone, address, bytes),
        ] {
            self.recorder.happened(Event::new(action, self.device, address, bytes));
        }
    }

    /// Records that memory of such a block was unmapped from `cut` on.
    pub(in crate::pool) fn record_cut(&self, block: &DedicatedMemory, before: u64) {
        let (address, bytes, _) = block.extent();
        if self.recorder.is_on() && before > bytes {
            let event = Event::new(Action::SegmentUnmap, self.device, address + bytes, before - bytes);
            self.recorder.happened(event);
        }
    }

    /// Gives a block whose graph is gone to the stream that frees it, like any other; false where that stream is
    /// unknown.
    fn free_to_stream(&self, core: &mut Core, id: NodeId, cache: &StreamCache) -> bool {
        let mut inner = cache.inner.lock();
        let event_number = inner.next_event;
        let served = inner.served.as_ref().filter(|served| served.device == self.device);
        let Some(owner) = served.map(|served| served.owner) else {
            return false;
        };
        let (_, size) = core.free_space.span(id);
        inner.uncovered += size;
        self.counters.pending.fetch_sub(size, Ordering::Relaxed);
        self.record_freed(Action::FreeCompleted, id, Some(cache.key.stream));
        self.end_block(core, id);
        core.free_space.give(id, owner, event_number);
        true
    }

    /// Covers a free without a stream at once, and collects what has completed meanwhile.
    fn cover_free(&self, core: &mut Core) {
        self.note_current_of_free(core);
        if let Ok(_entered) = self.enter(core) {
            self.cover(core);
            let _ = self.poll(core);
        }
    }

    /// Takes back a dedicated allocation; false where none starts at `address`. With a cache, it is reusable behind
    /// that stream's next completion event.
    pub fn free_dedicated(&self, address: u64, cache: Option<&StreamCache>, may_cover: bool) -> bool {
        match self.dedicated.claim(address) {
            Some(block) => self.free_claimed(block, cache, may_cover),
            None => return false,
        }
        true
    }

    /// As [`Pool::free_dedicated`].
    pub(in crate::pool) fn free_claimed(&self, claimed: Claimed<'_>, cache: Option<&StreamCache>, may_cover: bool) {
        let shared = claimed.shared.load(Ordering::Relaxed) != 0;
        let resizes = claimed.resizes.load(Ordering::Relaxed);
        let Some(mut block) = self.dedicated.remove(claimed) else {
            return;
        };
        let (size, number) = (block.size, block.capture);
        self.counters.frees.fetch_add(1, Ordering::Relaxed);
        self.counters.reallocations.fetch_add(resizes, Ordering::Relaxed);
        self.record_dedicated_free(&block, cache.map(|cache| cache.key.stream));
        if self.dead.get().is_some() {
            return self.now_pending(size);
        }
        block.give_back = may_cover && size >= LARGE && self.options.release_threshold == ReleaseThreshold::Auto;
        let mut core = self.core.lock();
        self.now_pending(size);
        if broken("a free counts its block under the lock that files it") {
            drop(core);
            core = self.core.lock();
        }
        self.reclaim_graphs(&mut core);
        let Some(freed) = core.captures.freed_outside(number, Freed::DedicatedMemory(block)) else {
            return;
        };
        let behind = cache.filter(|_| !shared).and_then(|cache| {
            let mut inner = cache.inner.lock();
            let served = inner.served.as_ref()?;
            let mine = served.device == self.device && inner.capture == 0;
            let place = (served.owner, inner.next_event);
            inner.uncovered += if mine { size } else { 0 };
            mine.then_some(place)
        });
        match behind {
            Some(behind) => core.grace.free_behind(vec![behind], freed),
            None => {
                if !may_cover {
                    self.note_foreign_free(&mut core, cache);
                }
                core.grace.free(freed);
            }
        }
        if may_cover {
            self.cover_free(&mut core);
        }
    }

    /// Notes the context of a free on a stream whose cache cannot take the block: reclamation waits for that context's
    /// work too, even if it is another device's.
    fn note_foreign_free(&self, core: &mut Core, cache: Option<&StreamCache>) {
        let known = cache.and_then(|cache| {
            let inner = cache.inner.lock();
            let known = inner.served.as_ref().map(|of| of.context);
            // A stream that never allocated still exists, because the block was used on it.
            let answers = !inner.joined && !cache.key.stream.is_default();
            drop(inner);
            let ask = || self.calls.query(|driver| driver.stream_context(cache.key.stream)).ok();
            known.or_else(|| answers.then(ask).flatten())
        });
        // Otherwise its context is most likely the current one.
        let current = || self.calls.query(|driver| driver.current_context()).ok().flatten();
        if let Some(context) = known.or_else(current) {
            core.note_context_of_free(&self.calls, context);
        }
    }

    /// Notes that a free on the stream of `cache` is made in `context`. The handle may belong to another stream by now,
    /// of a context that the pool does not know, so that context uses the pool from now on. A context of another device
    /// does so only where it may access the pool's memory.
    #[cold]
    pub fn note_free_context(&self, cache: &StreamCache, context: Context) {
        let mut core = self.core.lock();
        let forgotten = self.forgotten.load(Ordering::Acquire);
        // A context whose device is unknown counts.
        let device = self.calls.query(|driver| driver.current_device());
        let elsewhere = matches!(device, Ok(Some(device)) if device != self.device);
        if !elsewhere || !self.options.peers.is_empty() {
            core.note_context_of_free(&self.calls, context);
        }
        cache.inner.lock().known_context = Some((self.device, context, forgotten));
    }

    /// Ends a block: its number has no meaning any more.
    pub(in crate::pool) fn end_block(&self, core: &mut Core, id: NodeId) {
        let block = self.blocks.get(id);
        block.become_free(State::None);
        block.capture.store(0, Ordering::Relaxed);
        self.addresses.index.set(core.free_space.span(id).0, 0);
    }

    /// Moves what a cache holds into its owner's coalesced free space.
    pub(in crate::pool) fn flush(&self, core: &mut Core, inner: &mut Inner, owner: Owner) {
        let Inner { ready, .. } = inner;
        ready.drain(&self.blocks, |id| {
            self.end_block(core, id);
            let event_number = self.blocks.get(id).event_number.load(Ordering::Relaxed);
            let owner = match broken("what a stream freed stays its own") {
                true => crate::pool::free_space::COMMON,
                false => owner,
            };
            core.free_space.give(id, owner, event_number);
        });
    }

    /// Flushes every cache of this device.
    pub(in crate::pool) fn flush_all(&self, core: &mut Core) {
        for cache in self.caches.all() {
            let mut inner = cache.inner.lock();
            let owner = inner
                .served
                .as_ref()
                .filter(|served| served.device == self.device)
                .map(|g| g.owner);
            if let Some(owner) = owner {
                self.flush(core, &mut inner, owner);
            }
        }
    }

    /// Turns a cache's generation into an orphan.
    pub(in crate::pool) fn retire(&self, core: &mut Core, inner: &mut Inner) {
        let Some(served) = inner.served.take() else {
            return;
        };
        self.counters
            .allocations
            .fetch_add(std::mem::take(&mut inner.allocations), Ordering::Relaxed);
        self.counters
            .frees
            .fetch_add(std::mem::take(&mut inner.frees), Ordering::Relaxed);
        self.counters
            .requested
            .fetch_add(std::mem::take(&mut inner.requested) as u64, Ordering::Relaxed);
        self.take_over_charge(inner);
        self.flush(core, inner, served.owner);
        core.grace.orphan(served.owner);
        (inner.next_event, inner.uncovered) = (1, 0);
    }

    /// The stream is about to be destroyed, or its handle serves another device now. Records a completion event for
    /// what it freed if the call was given the stream, and orphans the rest.
    pub fn release_stream(&self, cache: &StreamCache, stream: Option<Stream>) {
        let mut core = self.core.lock();
        let mut inner = cache.inner.lock();
        if !inner.serves(self.device) {
            // Another thread was faster, and the cache may serve another device by now.
            return;
        }
        if let (Some(stream), Ok(_entered)) = (stream, self.enter(&core)) {
            self.record_stream_event(&mut core, &mut inner, stream);
        }
        self.retire(&mut core, &mut inner);
    }

    /// Records a completion event for what was freed on a stream, inside the free that was given the stream. A stream
    /// that was unknown becomes known.
    pub fn record_event_of_free(&self, cache: &StreamCache, stream: Stream, trusted: bool) {
        if self.dead.get().is_some() {
            return;
        }
        let mut core = self.core.lock();
        {
            // There is one attempt for each pressure epoch, whatever its result.
            let mut inner = cache.inner.lock();
            inner.foreign_frees = 0;
            if inner.pressure_epoch != AWAITED {
                inner.pressure_epoch = self.pressure_epoch.load(Ordering::Relaxed);
            }
        }
        let Ok(_entered) = self.enter(&core) else { return };
        let capture = self.calls.query(|driver| driver.stream_capture(stream));
        if capture != Ok(Capture::None) {
            return;
        }
        let id = if trusted {
            Ok(1)
        } else {
            self.calls.query(|driver| driver.stream_id(stream))
        };
        let Ok(id) = id else { return };
        if self
            .join_stream(
                &mut core,
                &StreamView {
                    cache,
                    stream,
                    id,
                    capture: Capture::None,
                },
            )
            .is_ok()
        {
            self.record_stream_event(&mut core, &mut cache.inner.lock(), stream);
            let _ = self.poll(&mut core);
        }
    }

    /// A stream of `context` could not be queried.
    pub fn stream_failed(&self, context: Context, error: DriverError) {
        let _ = self.context_failed(&mut self.core.lock(), context, error);
    }
}
