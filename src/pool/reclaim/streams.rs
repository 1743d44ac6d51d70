//! How a stream or a capture gets free space of its own, and how completion events are recorded for a stream's frees.

use crate::driver::{Capture, Failure, Stream};
use crate::pool::free_space::{FreeSpace, Owner};
use crate::pool::reclaim::Reclaimer;
use crate::pool::reclaim::pending::Asks;
use crate::pool::stream_cache::credits::Credits;
use crate::pool::stream_cache::{Inner, Key, ServedStream, Service};
use crate::pool::{Core, Pool, StreamView};
use crate::support::error::{Error, Result};
use crate::sync::atomic::Ordering;
use crate::sync::{broken, holds};

impl Pool {
    /// The stream is about to be destroyed, or its handle serves another device now. Records a completion event for
    /// what it freed if the call was given the stream, and orphans the rest.
    pub fn release_stream(&self, key: Key, stream: Option<Stream>) {
        let mut core = self.core.lock();
        let Core { memory, reclaimer, .. } = &mut *core;
        let Some((_, mut inner)) = self
            .caches
            .lock_known(key)
            .filter(|(_, inner)| inner.serves(self.device))
        else {
            // Another thread was faster, and the cache may serve another device by now.
            return;
        };
        if let (Some(stream), Ok(_entered)) = (stream, self.enter(&reclaimer.contexts)) {
            reclaimer.record_stream_event(self, &mut inner, stream);
        }
        reclaimer.retire(self, &mut memory.free_space, &mut inner, Service::Retired);
    }

    /// Records a completion event for what was freed on a stream, inside the free that was given the stream. A stream
    /// that was unknown becomes known.
    pub fn record_event_of_free(&self, key: Key, stream: Stream, trusted: bool) {
        if self.is_dead() {
            return;
        }
        let mut core = self.core.lock();
        let Core { memory, reclaimer, .. } = &mut *core;
        let has_foreign = {
            // There is one attempt for each pressure epoch, whatever its result.
            let (_, mut inner) = self.caches.lock(key);
            inner.pressure_epoch = self.pressure_epoch.load(Ordering::Relaxed);
            std::mem::take(&mut inner.foreign_frees) > 0
        };
        let Ok(_entered) = self.enter(&reclaimer.contexts) else {
            return;
        };
        let capture = self.calls.query(|driver| driver.look_for_capture(stream));
        if capture != Ok(Capture::None) {
            return;
        }
        let id = if trusted {
            Ok(1)
        } else {
            self.calls.query(|driver| driver.stream_id(stream))
        };
        let Ok(id) = id else { return };
        let view = StreamView {
            key,
            stream,
            id,
            capture: Capture::None,
            device: Some(self.device),
        };
        if reclaimer.join_stream(self, &mut memory.free_space, &view).is_ok() {
            {
                let (_, mut inner) = self.caches.lock(key);
                reclaimer.record_stream_event(self, &mut inner, stream);
                // The stream may never allocate, and blocks of other streams go home from its free space only.
                if has_foreign && let Some(owner) = inner.owner_on(self.device) {
                    self.flush(&mut memory.free_space, &mut inner, owner);
                }
            }
            let _ = reclaimer.poll_some(self, memory, &mut Asks::few());
            let _ = self.give_due_back(&mut core);
        }
    }
}

impl Reclaimer {
    /// The stream's own free space, made where the stream is new. Another id at a known handle orphans the old stream's
    /// space.
    pub(in crate::pool) fn join_stream(
        &mut self,
        pool: &Pool,
        free_space: &mut FreeSpace,
        view: &StreamView,
    ) -> Result<Owner> {
        let (_, mut inner) = pool.caches.lock(view.key);
        inner.capture = 0;
        if let Some(served) = inner.served() {
            let same = holds("a stream is recognized by its id", served.id == view.id);
            if same && served.device == pool.device {
                return Ok(served.owner);
            }
        }
        if inner.served().is_some_and(|old| old.device != pool.device) {
            return Err(Error::InvalidArgument(
                "the stream's handle serves another device at the same time".into(),
            ));
        }
        self.retire(pool, free_space, &mut inner, Service::Retired);
        let context = pool
            .calls
            .query(|driver| driver.stream_context(view.stream))
            .map_err(|error| pool.failed(error))?;
        self.note_context(&pool.calls, context)?;
        drop(inner);
        self.vacate_if_many(pool, free_space);
        let (_, mut inner) = pool.caches.lock(view.key);
        let owner = free_space.add_owner();
        self.pending.add(owner, context);
        inner.service = Service::Serving(ServedStream {
            id: view.id,
            device: pool.device,
            owner,
            context,
        });
        (inner.next_event, inner.uncovered) = (1, 0);
        Ok(owner)
    }

    /// Turns what a cache's stream has freed into an orphan's. The cache is `service` from now on.
    pub(in crate::pool::reclaim) fn retire(
        &mut self,
        pool: &Pool,
        free_space: &mut FreeSpace,
        inner: &mut Inner,
        service: Service,
    ) {
        let Some(owner) = inner.served().map(|served| served.owner) else {
            return;
        };
        pool.take_over_counts(inner);
        pool.flush(free_space, inner, owner);
        inner.service = service;
        inner.ready.shrink();
        inner.credits = Credits::default();
        self.pending.orphan(owner);
        free_space.lower_peak(owner);
        self.forget_orphan(free_space, owner);
        (inner.next_event, inner.uncovered, inner.awaited) = (1, 0, false);
    }

    /// The free space of a capturing stream, and its capture's number.
    pub(in crate::pool) fn join_capture(
        &mut self,
        pool: &Pool,
        free_space: &mut FreeSpace,
        view: &StreamView,
    ) -> Result<(Owner, u32)> {
        // A stream that captures cannot be asked for its id or its context. It owns nothing, but its context, which is
        // most likely the current one, uses the pool.
        let context = pool
            .calls
            .query(|driver| driver.context_of(view.stream))
            .map_err(|error| pool.failed(error))?;
        let _entered = pool.enter(&self.contexts)?;
        self.note_context(&pool.calls, context)?;
        // If the handle still has the stream of this id when that makes its next request, it is the stream that captures
        // now: ids are never used again.
        let id = pool.caches.lock(view.key).1.served().map_or(0, |served| served.id);
        let info = pool
            .calls
            .query(|driver| driver.stream_capture_info(view.stream))
            .map_err(|error| pool.failed(error))?
            .ok_or_else(|| Error::Unsupported("the stream's capture ended during the call".into()))?;
        let number = self.graphs.number(pool, context, info);
        let number = number.map_err(|error| pool.failed(error))?;
        let owner = self
            .graphs
            .owner((&mut self.pending.sets, free_space), number, view.key, id)
            .ok_or_else(|| Error::Unsupported("the capture is unknown".into()))?;
        let (_, mut inner) = pool.caches.lock(view.key);
        (inner.capture, inner.capture_device) = (number, pool.device);
        if matches!(inner.service, Service::Unused) {
            inner.service = Service::CapturedOnly;
        }
        drop(inner);
        self.graphs.note_stream(number, view.key);
        Ok((owner, number))
    }

    /// Records a completion event for everything freed on `stream` so far. The running call was given the stream, and
    /// the stream does not capture.
    pub(in crate::pool) fn record_stream_event(&mut self, pool: &Pool, inner: &mut Inner, stream: Stream) {
        let Some(owner) = inner.served().map(|served| served.owner) else {
            return;
        };
        let number = inner.next_event;
        let uncovered = std::mem::take(&mut inner.uncovered);
        if uncovered == 0 {
            return;
        }
        let wanted = (inner.pressure_epoch, inner.awaited);
        (inner.pressure_epoch, inner.awaited) = (pool.pressure_epoch.load(Ordering::Relaxed), false);
        // The number is raised first, so what is freed from now on belongs to the next completion event.
        inner.next_event = number + u64::from(!broken("what is freed after a completion event is not covered"));
        if let Err(error) = self.pending.record_event(&pool.calls, owner, number, stream) {
            tracing::debug!(%error, "a completion event could not be recorded");
            inner.uncovered = uncovered;
            (inner.pressure_epoch, inner.awaited) = wanted;
            if error.failure == Failure::ContextDead {
                pool.die(error.to_string());
            }
        }
    }
}
