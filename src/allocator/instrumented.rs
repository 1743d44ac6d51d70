//! Calls with tags, and the instrumented path: the ordinary call, with the notifications to tools.

use super::*;
use crate::support::stats::TagStats;

impl Allocator {
    /// [`Allocator::allocate_for`] on the instrumented path: the process is exiting, was forked, has a tool, records, or
    /// its threads have tags.
    #[cold]
    pub(super) fn allocate_instrumented(&self, request: &Request, tag: Tag) -> Result<u64> {
        if process::is_ordinary() {
            return self.allocate_in_recording_process(request, tag);
        }
        process::usable()?;
        let address = self.allocate_in_recording_process(request, tag)?;
        if let Some(pool) = self.pool_at(address) {
            pool.notify_allocated(address);
        }
        Ok(address)
    }

    /// Allocates for a tag: a hit if the tag has a credit with the stream.
    #[inline]
    pub(super) fn allocate_tagged(&self, request: &Request, tag: Tag) -> Result<u64> {
        let direct = || self.allocate_directly(request);
        let Some(stream) = request.stream else {
            return self.count_for(request, tag, direct);
        };
        if !self.streams || self.closed.load(Ordering::Relaxed) {
            return self.count_for(request, tag, direct);
        }
        let want = match self.want(request.size, request.alignment) {
            Ok(want) => want,
            Err(_) => return self.count_for(request, tag, direct),
        };
        note_unknown_flags(request);
        self.on_stream(
            request,
            (stream, self.key(stream)?),
            |pool, cache, inner| pool.take_ready::<true>(cache, inner, want, tag),
            |view| match view {
                Some(view) => self.count_for(request, tag, || self.miss(want, request, &view)),
                None => self.count_for(request, tag, direct),
            },
        )
    }

    /// Allocates by `attempt`, and counts the block for the tag.
    #[cold]
    #[inline(never)]
    pub(super) fn count_for(&self, request: &Request, tag: Tag, attempt: impl FnOnce() -> Result<u64>) -> Result<u64> {
        // A request with an invalid size or alignment is refused where every request is.
        let want = self.want(request.size, request.alignment).ok();
        // A request that is certainly beyond the tag's limit does not make the pool grow first.
        let closed = self.closed.load(Ordering::Relaxed);
        let limited = !closed && self.all_pools().any(|pool| pool.is_tag_limited(tag));
        let fits = || {
            let pool = self.existing_pool(self.device_of(request));
            pool.zip(want)
                .map_or(Ok(()), |(pool, want)| pool.tag_fits(tag, want.size))
        };
        let mut room = if limited { fits() } else { Ok(()) };
        if room.is_err() {
            self.retry_after_handler(&mut room, request, fits);
        }
        let outcome = room.and_then(|()| attempt()).and_then(|address| {
            let counted = self
                .pool_at(address)
                .map_or(Ok(()), |pool| pool.tag_block(address, tag));
            match counted {
                Ok(()) => Ok(address),
                Err(error) => {
                    // It was not recorded yet.
                    self.deallocate_directly(address, request.stream)?;
                    Err(error)
                }
            }
        });
        if let Err(Error::OutOfMemory(_)) = &outcome
            && let Some(pool) = self.existing_pool(self.device_of(request))
        {
            pool.tag_refused(tag);
        }
        outcome
    }

    /// [`Allocator::deallocate`] on the instrumented path.
    #[cold]
    pub(super) fn deallocate_instrumented(&self, address: u64, stream: Option<Stream>) -> Result<()> {
        if process::is_ordinary() {
            return self.deallocate_in_recording_process(address, stream);
        }
        if process::forked() {
            return process::usable();
        }
        if process::exiting() {
            return Ok(());
        }
        self.check_stream_is_known(stream)?;
        if let Some(pool) = self.pool_at(address) {
            pool.notify_freed(address);
        }
        self.deallocate_in_recording_process(address, stream)
    }

    /// [`Allocator::reallocate`] on the instrumented path.
    #[cold]
    pub(super) fn reallocate_instrumented(&self, address: u64, alignment: u64, new_size: u64) -> Result<u64> {
        if process::is_ordinary() {
            return self.reallocate_in_recording_process(address, alignment, new_size);
        }
        process::usable()?;
        let Some(pool) = self.pool_at(address) else {
            return Err(foreign(address));
        };
        pool.notify_freed(address);
        let outcome = self.reallocate_in_recording_process(address, alignment, new_size);
        pool.notify_allocated(*outcome.as_ref().unwrap_or(&address));
        outcome
    }

    /// The pool that may have a block at `address`.
    pub(super) fn pool_at(&self, address: u64) -> Option<&Pool> {
        self.all_pools().find(|pool| pool.knows(address))
    }

    /// Limits what blocks of one tag may take of a device's pool, in allocated bytes; 0: no limit. Existing blocks
    /// stay.
    pub fn set_tag_limit(&self, device: Option<i32>, tag: &str, bytes: u64) -> Result<()> {
        process::usable()?;
        let tag = tags::intern(tag)?;
        self.pool(self.device(device)?)?.set_tag_limit(tag, bytes);
        Ok(())
    }

    /// The statistics of one device by tag. `None`: the current device.
    pub fn tag_stats(&self, device: Option<i32>) -> Result<Vec<TagStats>> {
        process::usable()?;
        Ok(self
            .existing_pool(self.device(device)?)
            .map(Pool::tag_stats)
            .unwrap_or_default())
    }

    /// The statistics of one tag on one device, by a name as an adapter takes it; none for a tag that was not used there.
    #[doc(hidden)]
    pub fn stats_of_tag(&self, device: Option<i32>, name: &[u8]) -> Result<Option<TagStats>> {
        let name = tags::readable(name);
        let all = self.tag_stats(device)?;
        Ok(all.into_iter().find(|figures| figures.tag == name))
    }

    /// The statistics of one device and of its tags, as JSON.
    pub fn stats_json(&self, device: Option<i32>) -> Result<String> {
        process::usable()?;
        let device = self.device(device)?;
        let (stats, tags) = (self.stats_with_device(Some(device))?, self.tag_stats(Some(device))?);
        Ok(crate::support::stats::json(device, &stats, &tags))
    }

    /// The statistics of every device and of its tags, in the OpenMetrics text format.
    pub fn metrics(&self) -> Result<String> {
        process::usable()?;
        let devices = self
            .all_pools()
            .map(|pool| (pool.device, pool.stats(), pool.tag_stats()));
        Ok(crate::support::stats::metrics(&devices.collect::<Vec<_>>()))
    }
}
