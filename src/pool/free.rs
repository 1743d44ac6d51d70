//! The ways back: into a stream's free space, behind a grace, or to a graph.

use std::sync::atomic::Ordering;

use super::block::{Block, NONE};
use super::grace::Freed;
use super::heap::{COMMON, NodeId, Owner};
use super::stream_cache::{Inner, StreamCache};
use super::{Core, Pool, Turn};
use crate::config::ReleaseThreshold;
use crate::driver::{Capture, Context, DriverError, Event, Stream};
use crate::error::Result;

/// With `release_threshold=auto`, a stream-less free of this size or more is given back.
const LARGE: u64 = 32 << 20;

impl Pool {
    /// Takes back a claimed block that its stream's cache could not take: freed without a stream, on one that is unknown
    /// or of another device, used on other streams too, or a graph's.
    pub fn free(&self, id: NodeId, block: &Block, cache: Option<&StreamCache>, may_cover: bool) {
        let size = block.size();
        self.taken_back(size);
        self.counters.frees.fetch_add(1, Ordering::Relaxed);
        self.counters
            .requested
            .fetch_sub(block.requested.load(Ordering::Relaxed), Ordering::Relaxed);
        self.counters.pending.fetch_add(size, Ordering::Relaxed);
        if self.dead.get().is_some() {
            return;
        }
        let mut core = self.core.lock();
        self.bury_graphs(&mut core);
        let number = block.capture.load(Ordering::Relaxed);
        // What is used on other streams too is no stream's to reuse.
        let own = cache.filter(|_| block.shared.load(Ordering::Relaxed) == 0);
        if number != 0 {
            let inside = own.filter(|cache| cache.inner.lock().capture == number);
            let owner = inside.and_then(|cache| core.captures.freed_inside(number, id, cache.key));
            if let Some(owner) = owner {
                // Memory of a capture stays pending for everybody else.
                self.retract(&mut core, id);
                core.heap.give(id, owner, 0);
                return;
            }
            let freed = Freed::Block { id, give_back: false };
            if core.captures.freed_outside(number, freed).is_none() {
                return;
            }
        }
        if let Some(cache) = own
            && self.free_on(&mut core, id, cache)
        {
            return;
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
            let _ = self.note_current(&mut core);
            self.cover(&mut core);
            let _ = self.settle(&mut core);
        }
    }

    /// Gives a block whose graph is gone to the stream it is freed on, like any other; false where that stream is unknown.
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
        self.retract(core, id);
        core.heap.give(id, owner, stamp);
        true
    }

    /// Takes back a block with a range of its own; false where `address` is none. With a cache, it is safe behind that
    /// stream's next stamp.
    pub fn free_standalone(&self, address: u64, cache: Option<&StreamCache>, may_cover: bool) -> bool {
        let Some(block) = self.standalones.write().remove(&address) else {
            return false;
        };
        self.taken_back(block.size);
        self.counters.frees.fetch_add(1, Ordering::Relaxed);
        self.counters.requested.fetch_sub(block.requested, Ordering::Relaxed);
        self.counters.pending.fetch_add(block.size, Ordering::Relaxed);
        if self.dead.get().is_some() {
            return true;
        }
        let mut core = self.core.lock();
        self.bury_graphs(&mut core);
        let (shared, size, number) = (block.shared, block.size, block.capture);
        let Some(freed) = core.captures.freed_outside(number, Freed::Standalone(block)) else {
            return true;
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
            Some((owner, stamp)) => core.grace.free_behind(owner, stamp, freed),
            None => {
                if !may_cover {
                    self.note_freeing(&mut core, cache);
                }
                core.grace.free(freed);
            }
        }
        if may_cover {
            let _ = self.note_current(&mut core);
            self.cover(&mut core);
            let _ = self.settle(&mut core);
        }
        true
    }

    /// What is freed on a stream, and is not its cache's, waits for the work of that stream's context too, even where that is
    /// another device's.
    fn note_freeing(&self, core: &mut Core, cache: Option<&StreamCache>) {
        let known = cache.and_then(|cache| cache.inner.lock().generation.as_ref().map(|of| of.context));
        // A stream that is not known: its context is most likely the current one.
        let current = || self.calls.ask(|driver| driver.current_context()).ok().flatten();
        if let Some(context) = known.or_else(current) {
            core.note_context(&self.calls, context);
        }
    }

    /// A block stops being one: its number means nothing any more.
    fn retract(&self, core: &mut Core, id: NodeId) {
        let block = self.blocks.get(id);
        block.state.store(NONE, Ordering::Release);
        block.capture.store(0, Ordering::Relaxed);
        self.space.index.set(core.heap.span(id).0, 0);
    }

    /// Moves what a cache holds into its owner's coalesced free space.
    pub(super) fn flush(&self, core: &mut Core, inner: &mut Inner, owner: Owner) {
        let Inner { ready, .. } = inner;
        ready.drain(&self.blocks, |id| {
            self.retract(core, id);
            let stamp = self.blocks.get(id).stamp.load(Ordering::Relaxed);
            #[cfg(test)]
            let owner = if super::sabotage::on(&self.sabotage.coalesce_across) {
                COMMON
            } else {
                owner
            };
            core.heap.give(id, owner, stamp);
        });
    }

    /// Flushes every cache of this device.
    pub(super) fn flush_all(&self, core: &mut Core) {
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

    /// Leaves a cache's generation behind as an orphan.
    pub(super) fn retire(&self, core: &mut Core, inner: &mut Inner) {
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

    /// The stream is about to be destroyed, or its handle serves another device now: stamps what it freed where the call
    /// was given it, and leaves the rest behind.
    pub fn release_stream(&self, cache: &StreamCache, stream: Option<Stream>) {
        let mut core = self.core.lock();
        let mut inner = cache.inner.lock();
        if let (Some(stream), Ok(_entered)) = (stream, self.enter(&core)) {
            self.stamp_cache(&mut core, &mut inner, stream);
        }
        self.retire(&mut core, &mut inner);
    }

    /// A stream frees and never allocates: stamps what it freed, as `deallocate` was given it. A stream that was unknown
    /// becomes known.
    pub fn stamp_freeing(&self, cache: &StreamCache, stream: Stream, trusted: bool) {
        if self.dead.get().is_some() {
            return;
        }
        let mut core = self.core.lock();
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

    /// Everything freed without a stream is covered by context events, unless that would end a capture that can be seen.
    pub(super) fn cover(&self, core: &mut Core) {
        if core.grace.has_open() {
            self.cover_owners(core, Vec::new());
        }
    }

    /// Everything freed in any way is covered. Whether anything was.
    pub(super) fn cover_all(&self, core: &mut Core) -> bool {
        let mut owners = Vec::new();
        for cache in self.caches.all() {
            let mut inner = cache.inner.lock();
            let owner = inner
                .generation
                .as_ref()
                .filter(|generation| generation.device == self.device)
                .map(|g| g.owner);
            if let Some(owner) = owner {
                self.flush(core, &mut inner, owner);
                owners.push((owner, inner.next_stamp));
                inner.next_stamp += 1;
                inner.unstamped = 0;
            }
        }
        owners.extend(core.grace.orphans().into_iter().map(|owner| (owner, u64::MAX)));
        owners.retain(|(owner, _)| core.heap.free_bytes(*owner) > 0 || core.grace.has_unstamped(*owner));
        let something = core.grace.has_open() || !owners.is_empty();
        something && self.cover_owners(core, owners)
    }

    fn cover_owners(&self, core: &mut Core, owners: Vec<(Owner, u64)>) -> bool {
        let Ok(_entered) = self.enter(core) else { return false };
        if self.check_context(core).is_err() {
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
                    let before = core.contexts.len();
                    self.drop_dead_contexts(core);
                    if core.contexts.len() == before || self.dead.get().is_some() {
                        tracing::debug!(%error, "what was freed could not be covered");
                        return false;
                    }
                }
            }
        }
    }

    /// Whether a blocking stream of `context` captures: the legacy stream tells, without harm to the capture. Captures on
    /// non-blocking streams cannot be seen.
    fn is_capturing(&self, context: Context) -> bool {
        let Ok(_entered) = self.calls.enter(context) else {
            return false;
        };
        let capture = self.calls.ask(|driver| driver.stream_capture(Stream::LEGACY));
        matches!(capture, Ok(Capture::Active | Capture::Invalidated | Capture::Implicit))
    }

    /// Forgets contexts that the application has destroyed.
    fn drop_dead_contexts(&self, core: &mut Core) {
        if self.check_context(core).is_err() {
            return;
        }
        for (context, id) in core.contexts.clone() {
            if self.calls.is_gone(context, id) {
                core.contexts.retain(|(known, _)| *known != context);
                core.grace.context_gone(context);
            }
        }
    }

    /// A driver call in `context` failed: if the context is gone, so is what was waited for; if it is the pool's own, or
    /// carries an error that will not go away, the pool is dead.
    pub(super) fn context_failed(&self, core: &mut Core, context: Context, error: DriverError) -> Result<()> {
        let before = core.contexts.len();
        self.drop_dead_contexts(core);
        self.alive()?;
        if core.contexts.len() == before {
            let _ = context;
            return Err(self.failed(error));
        }
        Ok(())
    }

    /// A stream of `context` could not be asked. If the context is gone, so is only what was waited for there; if it is
    /// there and lost to an error, the pool is dead.
    pub fn stream_failed(&self, context: Context, error: DriverError) {
        let mut core = self.core.lock();
        self.drop_dead_contexts(&mut core);
        if core.contexts.iter().any(|(known, _)| *known == context) {
            self.failed(error);
        }
    }

    /// Collects what has completed.
    pub(super) fn settle(&self, core: &mut Core) -> Result<()> {
        let settled = core.grace.settle(&self.calls);
        for (owner, complete) in settled.owners {
            if core.heap.transfer(owner, COMMON, complete, 0) > 0 || core.heap.free_bytes(owner) == 0 {
                self.forget_orphan(core, owner);
            }
        }
        for freed in settled.freed {
            self.return_freed(core, freed);
        }
        if core.mapping.has_lost()
            && let Ok(_entered) = self.enter(core)
        {
            let Core { heap, mapping, .. } = core;
            mapping.retry(heap);
        }
        self.keep_to_threshold(core);
        match settled.failed {
            Some((context, error)) => self.context_failed(core, context, error),
            None => Ok(()),
        }
    }

    fn forget_orphan(&self, core: &mut Core, owner: Owner) {
        if core.heap.free_bytes(owner) == 0 && core.grace.remove(owner) {
            core.heap.remove_owner(owner);
        }
    }

    /// Something whose grace is over goes where everybody may have it.
    pub(super) fn return_freed(&self, core: &mut Core, freed: Freed) {
        match freed {
            Freed::Block { id, give_back } => {
                let (_, size) = core.heap.span(id);
                self.counters.pending.fetch_sub(size, Ordering::Relaxed);
                self.retract(core, id);
                core.heap.give(id, COMMON, 0);
                if give_back
                    && !core.fixed
                    && let Ok(_entered) = self.enter(core)
                {
                    // As much goes back as was freed, though not the same: pages are alike, and what is scattered goes first.
                    let Core { heap, mapping, .. } = core;
                    let keep = mapping.reserved().saturating_sub(size / mapping.page * mapping.page);
                    mapping.release(heap, keep);
                }
            }
            Freed::Standalone(block) => {
                let Ok(_entered) = self.enter(core) else {
                    // Later, then.
                    return core.grace.free(Freed::Standalone(block));
                };
                self.counters.pending.fetch_sub(block.size, Ordering::Relaxed);
                block.destroy(&mut core.mapping);
                // A block of its own is a request like any other: what is over the limit does not stay.
                if core.limit != 0 && core.mapping.reserved() > core.limit {
                    core.mapping.release_kept(core.limit);
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
        if core.mapping.reserved() > threshold
            && !core.fixed
            && let Ok(_entered) = self.enter(core)
        {
            let Core { heap, mapping, .. } = core;
            mapping.release(heap, threshold);
        }
    }

    /// What graphs that are gone leave: what was freed on a stream of the capture is that stream's, as if freed on it just
    /// now, since the free may have come after the capture, behind work that still runs; the rest waits for a grace like
    /// anything freed without a stream.
    pub(super) fn bury_graphs(&self, core: &mut Core) {
        for remains in core.captures.gone() {
            for (key, owner, id) in remains.owners {
                let mut inner = self.caches.get(key).inner.lock();
                let stamp = inner.next_stamp;
                match &inner.generation {
                    Some(generation) if generation.id == id && generation.device == self.device => {
                        let bytes = core.heap.transfer(owner, generation.owner, u64::MAX, stamp);
                        inner.unstamped += bytes;
                        self.counters.pending.fetch_sub(bytes, Ordering::Relaxed);
                    }
                    _ => {
                        for id in core.heap.take_all(owner) {
                            core.grace.free(Freed::Block { id, give_back: false });
                        }
                    }
                }
                core.heap.remove_owner(owner);
            }
            for id in remains.live {
                self.blocks.get(id).capture.store(0, Ordering::Relaxed);
            }
            for freed in remains.freed {
                core.grace.free(freed);
            }
        }
    }

    /// The context of a caller without a stream uses the pool from now on.
    pub(super) fn note_current(&self, core: &mut Core) -> crate::driver::Result<()> {
        let here = self.calls.ask(|driver| driver.current_device())? == Some(self.device);
        if let Some(context) = self.calls.ask(|driver| driver.current_context())?.filter(|_| here) {
            core.note_context(&self.calls, context);
        }
        Ok(())
    }

    /// The block at `address` is used on a stream of `context` (of the pool's own, where none is named) too; false where
    /// there is no such block.
    pub fn share(&self, address: u64, context: Option<Context>) -> bool {
        let found = match self.find(address) {
            Some((_, block)) => {
                block.shared.store(1, Ordering::Relaxed);
                true
            }
            None => self
                .standalones
                .write()
                .get_mut(&address)
                .map(|block| block.shared = true)
                .is_some(),
        };
        if let Some(context) = context.filter(|_| found) {
            self.core.lock().note_context(&self.calls, context);
        }
        found
    }

    /// The context the pool makes its calls in where none of the device is current.
    pub fn home(&self) -> Context {
        self.core.lock().home.context
    }

    /// Runs `work` with the pool's home current.
    pub fn at_home<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let home = self.core.lock().home.context;
        let _entered = self.calls.enter(home).map_err(|error| self.failed(error))?;
        Ok(work())
    }

    /// Fills memory with `byte`, in the order of `stream`; without one, before the call returns. An error where the memory
    /// may still be written to.
    pub fn fill(&self, address: u64, byte: u8, bytes: u64, stream: Option<Stream>) -> Result<()> {
        let core = self.core.lock();
        let Ok(_entered) = self.enter(&core) else { return Ok(()) };
        let order = stream.unwrap_or(Stream::LEGACY);
        if self.calls.ask(|driver| driver.stream_capture(order)) != Ok(Capture::None) {
            return Ok(());
        }
        let event = match stream {
            Some(_) => None,
            None => match self.calls.submit(|driver| driver.event_create()) {
                Ok(event) => Some(event),
                Err(error) => {
                    tracing::warn!(%error, "memory could not be filled");
                    return Ok(());
                }
            },
        };
        let filled = self
            .calls
            .submit(|driver| driver.fill_async(address, byte, bytes, order));
        if let Err(error) = &filled {
            tracing::warn!(%error, "memory could not be filled");
        }
        let Some(event) = event else { return Ok(()) };
        let waited = if filled.is_ok() { self.wait_now(event) } else { Ok(()) };
        let _ = self.calls.submit(|driver| driver.event_destroy(event));
        waited.map_err(|error| self.failed(error))
    }

    /// Waits for what is queued on the legacy stream, by an event: synchronising would end captures.
    fn wait_now(&self, event: Event) -> crate::driver::Result<()> {
        let record = || self.calls.submit(|driver| driver.event_record(event, Stream::LEGACY));
        let wait = || {
            const LIMIT: std::time::Duration = std::time::Duration::from_secs(1);
            while !self.calls.submit(|driver| driver.event_wait(event, LIMIT))? {}
            Ok(())
        };
        record()
            .or_else(|_| record())
            .and_then(|()| wait().or_else(|_: DriverError| wait()))
            .or_else(|_| self.calls.submit(|driver| driver.context_synchronize()))
    }
}
