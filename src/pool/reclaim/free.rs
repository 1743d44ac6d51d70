//! How freed memory comes back: into a stream's free space, to deferred reclamation, or to a graph.

use crate::driver::{Capture, Context, DriverError, Stream};
use crate::history::{Action, Event};
use crate::pool::block::{Block, State};
use crate::pool::dedicated::Claimed;
use crate::pool::free_space::{NodeId, Owner};
use crate::pool::physical::dedicated_memory::Standalone;
use crate::pool::reclaim::Freed;
use crate::pool::stream_cache::{AWAITED, Inner, StreamCache};
use crate::pool::{Core, Pool, Turn};
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
        self.bury_graphs(&mut core);
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
                self.retract(&mut core, id);
                core.heap.give(id, owner, 0);
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
            (Some(cache), _) if self.free_on(&mut core, id, cache) => return,
            (None, Some(cache)) if self.free_shared(&mut core, id, cache) => return,
            _ => {
                core.uses.remove(&id);
            }
        }
        if !may_cover {
            self.note_freeing(&mut core, cache);
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
    pub(in crate::pool) fn tell_settled(&self, offset: u64, size: u64) {
        if self.recorder.is_on()
            && let Some(address) = self.space.address(offset)
        {
            self.recorder
                .happened(Event::new(Action::RangeCompleted, self.device, address, size));
        }
    }

    /// As [`Pool::record_freed`], for a dedicated allocation that is being freed.
    pub(in crate::pool) fn tell_freeing(&self, block: &Standalone, stream: Option<Stream>) {
        if self.recorder.is_on() {
            let event = Event::new(Action::FreeRequested, self.device, block.address, block.requested);
            self.recorder.happened(event.on(Stream::recorded(stream)));
            self.marks.forget(block.address);
        }
    }

    /// Records that a dedicated allocation has no user any more, and that its range is gone.
    pub(in crate::pool) fn tell_gone(&self, block: &Standalone) {
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
    pub(in crate::pool) fn tell_cut(&self, block: &Standalone, before: u64) {
        let (address, bytes, _) = block.extent();
        if self.recorder.is_on() && before > bytes {
            let event = Event::new(Action::SegmentUnmap, self.device, address + bytes, before - bytes);
            self.recorder.happened(event);
        }
    }

    /// Gives a block whose graph is gone to the stream that frees it, like any other; false where that stream is
    /// unknown.
    fn free_on(&self, core: &mut Core, id: NodeId, cache: &StreamCache) -> bool {
        let mut inner = cache.inner.lock();
        let stamp = inner.next_stamp;
        let generation = inner
            .generation
            .as_ref()
            .filter(|generation| generation.device == self.device);
        let Some(owner) = generation.map(|generation| generation.owner) else {
            return false;
        };
        let (_, size) = core.heap.span(id);
        inner.unstamped += size;
        self.counters.pending.fetch_sub(size, Ordering::Relaxed);
        self.record_freed(Action::FreeCompleted, id, Some(cache.key.stream));
        self.retract(core, id);
        core.heap.give(id, owner, stamp);
        true
    }

    /// Covers a free without a stream at once, and collects what has completed meanwhile.
    fn cover_free(&self, core: &mut Core) {
        self.note_current_of_free(core);
        if let Ok(_entered) = self.enter(core) {
            self.cover(core);
            let _ = self.settle(core);
        }
    }

    /// Takes back a dedicated allocation; false where none starts at `address`. With a cache, it is reusable behind
    /// that stream's next completion event.
    pub fn free_standalone(&self, address: u64, cache: Option<&StreamCache>, may_cover: bool) -> bool {
        match self.beside.claim(address) {
            Some(block) => self.free_claimed(block, cache, may_cover),
            None => return false,
        }
        true
    }

    /// As [`Pool::free_standalone`].
    pub(in crate::pool) fn free_claimed(&self, claimed: Claimed<'_>, cache: Option<&StreamCache>, may_cover: bool) {
        let shared = claimed.shared.load(Ordering::Relaxed) != 0;
        let resizes = claimed.resizes.load(Ordering::Relaxed);
        let Some(mut block) = self.beside.remove(claimed) else {
            return;
        };
        let (size, number) = (block.size, block.capture);
        self.counters.frees.fetch_add(1, Ordering::Relaxed);
        self.counters.reallocations.fetch_add(resizes, Ordering::Relaxed);
        self.tell_freeing(&block, cache.map(|cache| cache.key.stream));
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
        self.bury_graphs(&mut core);
        let Some(freed) = core.captures.freed_outside(number, Freed::Standalone(block)) else {
            return;
        };
        let behind = cache.filter(|_| !shared).and_then(|cache| {
            let mut inner = cache.inner.lock();
            let generation = inner.generation.as_ref()?;
            let mine = generation.device == self.device && inner.capture == 0;
            let place = (generation.owner, inner.next_stamp);
            inner.unstamped += if mine { size } else { 0 };
            mine.then_some(place)
        });
        match behind {
            Some(behind) => core.grace.free_behind(vec![behind], freed),
            None => {
                if !may_cover {
                    self.note_freeing(&mut core, cache);
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
    fn note_freeing(&self, core: &mut Core, cache: Option<&StreamCache>) {
        let known = cache.and_then(|cache| {
            let inner = cache.inner.lock();
            let known = inner.generation.as_ref().map(|of| of.context);
            // A stream that never allocated still exists, because the block was used on it.
            let tells = !inner.joined && !cache.key.stream.is_special();
            drop(inner);
            let ask = || self.calls.ask(|driver| driver.stream_context(cache.key.stream)).ok();
            known.or_else(|| tells.then(ask).flatten())
        });
        // Otherwise its context is most likely the current one.
        let current = || self.calls.ask(|driver| driver.current_context()).ok().flatten();
        if let Some(context) = known.or_else(current) {
            core.note_context_of_free(&self.calls, context);
        }
    }

    /// Notes that a free on the stream of `cache` is made in `context`. The handle may belong to another stream by now,
    /// of a context that the pool does not know, so that context uses the pool from now on. A context of another device
    /// does so only where it may access the pool's memory.
    #[cold]
    pub fn meet(&self, cache: &StreamCache, context: Context) {
        let mut core = self.core.lock();
        let forgotten = self.forgotten.load(Ordering::Acquire);
        // A context whose device is unknown counts.
        let device = self.calls.ask(|driver| driver.current_device());
        let elsewhere = matches!(device, Ok(Some(device)) if device != self.device);
        if !elsewhere || !self.options.peers.is_empty() {
            core.note_context_of_free(&self.calls, context);
        }
        cache.inner.lock().met = Some((self.device, context, forgotten));
    }

    /// Ends a block: its number has no meaning any more.
    pub(in crate::pool) fn retract(&self, core: &mut Core, id: NodeId) {
        let block = self.blocks.get(id);
        block.become_free(State::None);
        block.capture.store(0, Ordering::Relaxed);
        self.space.index.set(core.heap.span(id).0, 0);
    }

    /// Moves what a cache holds into its owner's coalesced free space.
    pub(in crate::pool) fn flush(&self, core: &mut Core, inner: &mut Inner, owner: Owner) {
        let Inner { ready, .. } = inner;
        ready.drain(&self.blocks, |id| {
            self.retract(core, id);
            let stamp = self.blocks.get(id).stamp.load(Ordering::Relaxed);
            let owner = match broken("what a stream freed stays its own") {
                true => crate::pool::free_space::COMMON,
                false => owner,
            };
            core.heap.give(id, owner, stamp);
        });
    }

    /// Flushes every cache of this device.
    pub(in crate::pool) fn flush_all(&self, core: &mut Core) {
        for cache in self.caches.all() {
            let mut inner = cache.inner.lock();
            let owner = inner
                .generation
                .as_ref()
                .filter(|generation| generation.device == self.device)
                .map(|g| g.owner);
            if let Some(owner) = owner {
                self.flush(core, &mut inner, owner);
            }
        }
    }

    /// Turns a cache's generation into an orphan.
    pub(in crate::pool) fn retire(&self, core: &mut Core, inner: &mut Inner) {
        let Some(generation) = inner.generation.take() else {
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
        self.flush(core, inner, generation.owner);
        core.grace.orphan(generation.owner);
        (inner.next_stamp, inner.unstamped) = (1, 0);
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
            self.stamp_cache(&mut core, &mut inner, stream);
        }
        self.retire(&mut core, &mut inner);
    }

    /// Records a completion event for what was freed on a stream, inside the free that was given the stream. A stream
    /// that was unknown becomes known.
    pub fn stamp_freeing(&self, cache: &StreamCache, stream: Stream, trusted: bool) {
        if self.dead.get().is_some() {
            return;
        }
        let mut core = self.core.lock();
        {
            // There is one attempt for each pressure epoch, whatever its result.
            let mut inner = cache.inner.lock();
            inner.strangers = 0;
            if inner.hunger != AWAITED {
                inner.hunger = self.hunger.load(Ordering::Relaxed);
            }
        }
        let Ok(_entered) = self.enter(&core) else { return };
        let capture = self.calls.ask(|driver| driver.stream_capture(stream));
        if capture != Ok(Capture::None) {
            return;
        }
        let id = if trusted {
            Ok(1)
        } else {
            self.calls.ask(|driver| driver.stream_id(stream))
        };
        let Ok(id) = id else { return };
        if self
            .join_stream(
                &mut core,
                &Turn {
                    cache,
                    stream,
                    id,
                    capture: Capture::None,
                },
            )
            .is_ok()
        {
            self.stamp_cache(&mut core, &mut cache.inner.lock(), stream);
            let _ = self.settle(&mut core);
        }
    }

    /// A stream of `context` could not be queried.
    pub fn stream_failed(&self, context: Context, error: DriverError) {
        let _ = self.context_failed(&mut self.core.lock(), context, error);
    }
}
