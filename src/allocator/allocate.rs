//! Serves a request: a pop from the stream's cache, or else the pool.

use super::*;

impl Allocator {
    /// Allocates a block of at least `request.size` bytes.
    #[inline]
    pub fn allocate(&self, request: Request) -> Result<u64> {
        self.serve(&request)
    }

    /// [`Allocator::allocate`] of a block that counts for `tag`, whatever the thread's tag is.
    #[inline]
    pub fn allocate_for(&self, request: &Request, tag: Tag) -> Result<u64> {
        if tag == 0 {
            return self.serve(request);
        }
        if process::is_observed() {
            return self.allocate_instrumented(request, tag);
        }
        self.allocate_tagged(request, tag)
    }

    /// As [`Allocator::allocate`]. Copying a request takes as long as a lock.
    #[inline]
    pub(crate) fn serve(&self, request: &Request) -> Result<u64> {
        if process::is_instrumented() {
            return self.allocate_instrumented(request, tags::current());
        }
        self.allocate_directly(request)
    }

    #[inline]
    pub(super) fn allocate_directly(&self, request: &Request) -> Result<u64> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(destroyed());
        }
        let want = match self.want(request.size, request.alignment) {
            Ok(want) => want,
            Err(error) => return self.refuse(request, error),
        };
        note_unknown_flags(request);
        match request.stream {
            Some(stream) if self.streams => self.allocate_on_stream(want, request, (stream, self.key(stream)?)),
            _ => self.allocate_without_cache(want, request),
        }
    }

    /// Serves a request without a stream, or where streams have no caches.
    #[inline(never)]
    fn allocate_without_cache(&self, want: Want, request: &Request) -> Result<u64> {
        self.with_handler(request, || match request.stream {
            Some(stream) => self.allocate_with_per_free_events(want, request, stream),
            None => self.allocate_for_any_stream(want, request),
        })
    }

    /// Runs `attempt`, and calls the out-of-memory handler if memory ran out.
    #[inline]
    pub(super) fn with_handler(&self, request: &Request, attempt: impl FnOnce() -> Result<u64>) -> Result<u64> {
        match attempt() {
            // Moving the whole result takes as long as a lock.
            Ok(address) => Ok(address),
            Err(error) => self.after_error(request, error),
        }
    }

    #[cold]
    fn after_error(&self, request: &Request, error: Error) -> Result<u64> {
        let mut outcome = Err(error);
        if matches!(outcome, Err(Error::OutOfMemory(_))) {
            self.retry_after_handler(&mut outcome, request, || self.allocate_directly(request));
        }
        outcome
    }

    /// The path of a hit: one lock, at most two queries, a pop.
    #[inline]
    fn allocate_on_stream(&self, want: Want, request: &Request, of: (Stream, Option<Key>)) -> Result<u64> {
        self.on_stream(
            request,
            of,
            |pool, cache, inner| pool.take_ready::<false>(cache, inner, want, 0),
            |view| match view {
                Some(view) => self.miss(want, request, &view),
                None => self.allocate_in_primary(want, request),
            },
        )
    }

    /// Queries the stream, and calls `hit` if its cache may serve the request; otherwise, or if that found nothing,
    /// `miss`. A default stream without a current context has no view.
    #[inline(always)]
    pub(super) fn on_stream(
        &self,
        request: &Request,
        (stream, key): (Stream, Option<Key>),
        hit: impl FnOnce(&Pool, &StreamCache, Guard<'_, Inner>) -> Option<u64>,
        miss: impl FnOnce(Option<StreamView>) -> Result<u64>,
    ) -> Result<u64> {
        let Some(key) = key else {
            return miss(None);
        };
        let (id, capture) = match self.query_stream(stream) {
            Ok(answer) => answer,
            Err(error) => return Err(self.query_failed(key, error)),
        };
        let mut device = None;
        if self.plain && request.flags & RESIZABLE == 0 && capture == Capture::None {
            let (cache, mut inner) = self.caches.lock_for_hit(key);
            inner.queries += if self.config.streams_trusted { 0 } else { 2 };
            let same = |known| holds("a hit compares the stream's id", known == id);
            if let Some(served) = inner.served().filter(|served| same(served.id))
                && request.device.is_none_or(|device| device == served.device)
            {
                let Some(pool) = self.existing_pool(served.device) else {
                    return self.no_device(served.device);
                };
                pool.alive()?;
                device = Some(served.device);
                if let Some(address) = hit(pool, cache, inner) {
                    return Ok(address);
                }
            }
        }
        miss(Some(StreamView {
            key,
            stream,
            id,
            capture,
            device,
        }))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn miss(&self, want: Want, request: &Request, view: &StreamView) -> Result<u64> {
        // Not where the stream is queried, which each hit does.
        if view.capture != Capture::None {
            self.driver.note_capture();
        }
        self.with_handler(request, || self.allocate_missed(want, request, view))
    }

    /// Handles a failed query of a stream. If its context carries a sticky error, the pool becomes unusable.
    #[cold]
    fn query_failed(&self, key: Key, error: Error) -> Error {
        let known = self.served_by(key, |of| (of.device, of.context));
        if let (Error::Driver(cause), Some((device, context))) = (&error, known)
            && let Some(pool) = self.existing_pool(device)
        {
            pool.stream_failed(context, *cause);
        }
        error
    }

    /// The device of a request's stream. A cache that serves another device leaves it.
    fn served_device(&self, view: &StreamView) -> Result<i32> {
        match self.served_by(view.key, |served| (served.id, served.device)) {
            Some((id, device)) if id == view.id => Ok(device),
            _ => {
                let device = self.stream_device(view.stream)?;
                self.leave_other_device(view.key, device);
                Ok(device)
            }
        }
    }

    fn allocate_missed(&self, want: Want, request: &Request, view: &StreamView) -> Result<u64> {
        let device = match view.device {
            Some(device) => device,
            None => self.served_device(view)?,
        };
        let wanted = self.device_for(request.device, device);
        if view.capture == Capture::Implicit {
            // The legacy stream is unusable while a blocking stream captures.
            let device = Some(wanted);
            return self.allocate_for_any_stream(want, &Request { device, ..*request });
        }
        let pool = self.pool(wanted)?;
        if wanted != device {
            // Work of the stream's context may use the block, whichever context is current when it is freed.
            pool.note_stream_context(view.stream)?;
        }
        if let Some(kind) = pool.dedicated_kind(request.flags & RESIZABLE != 0) {
            let address = pool.allocate_dedicated(want, kind, Some(view).filter(|_| wanted == device))?;
            return self.filled(
                pool,
                address,
                want,
                request,
                Some(view.stream).filter(|_| wanted == device),
            );
        }
        // A stream of another device has no cache in this pool: the block must be safe for every stream.
        let address = pool.allocate(want, Some(view).filter(|_| wanted == device))?;
        self.note_resizable(pool, address, want, request);
        self.filled(
            pool,
            address,
            want,
            request,
            Some(view.stream).filter(|_| wanted == device),
        )
    }

    /// Serves a request without a stream, or one whose stream has no id.
    pub(super) fn allocate_for_any_stream(&self, want: Want, request: &Request) -> Result<u64> {
        // `pool` checks the number of a device that has none yet.
        let pool = self.pool(self.unchecked_device(request.device)?)?;
        let address = match pool.dedicated_kind(request.flags & RESIZABLE != 0) {
            Some(kind) => pool.allocate_dedicated(want, kind, None)?,
            None => pool.allocate(want, None)?,
        };
        self.note_resizable(pool, address, want, request);
        self.filled(pool, address, want, request, None)
    }

    /// Serves a request on a default stream without a context, which means that of the device's primary context. If
    /// that context does not exist yet, memory that is safe for every stream is safe there too.
    #[cold]
    pub(super) fn allocate_in_primary(&self, want: Want, request: &Request) -> Result<u64> {
        // `pool` checks the number of a device that has none yet.
        let device = self.unchecked_device(request.device)?;
        let attempt = || match request.stream.map(|stream| (stream, self.key(stream))) {
            Some((_, Err(error))) => Err(error),
            Some((stream, Ok(key))) if key.is_some() && self.streams => {
                self.allocate_on_stream(want, request, (stream, key))
            }
            Some((stream, Ok(Some(_)))) => self.allocate_with_per_free_events(want, request, stream),
            Some((_, Ok(None))) | None => self.allocate_for_any_stream(want, request),
        };
        match self.pool(device)?.in_primary(false, attempt)? {
            Some(outcome) => outcome,
            None => self.allocate_for_any_stream(want, request),
        }
    }
}
