//! The instrumented path: the ordinary call, with the tag's statistics and the notifications to tools.

use super::*;
use crate::support::stats::TagStats;
use crate::support::tags::{self, Tag};

impl Allocator {
    /// [`Allocator::allocate`] on the instrumented path: the process is exiting, was forked, uses tags, has a tool, or
    /// records.
    #[cold]
    pub(super) fn allocate_instrumented(&self, request: Request) -> Result<u64> {
        if process::is_only_recording() {
            return self.allocate_in_recording_process(request);
        }
        process::usable()?;
        let address = match tags::current() {
            0 => self.allocate_in_recording_process(request),
            tag => self.allocate_tagged(request, tag),
        }?;
        if let Some(pool) = self.pool_at(address) {
            pool.notify_allocated(address);
        }
        Ok(address)
    }

    fn allocate_tagged(&self, request: Request, tag: Tag) -> Result<u64> {
        // A request with an invalid size or alignment is refused where every request is.
        let want = self.want(request.size, request.alignment).ok();
        // A request that is certainly beyond the tag's limit does not make the pool grow first.
        let likely = request.device.or_else(|| match request.stream {
            Some(stream) => self.stream_device(stream).ok(),
            None => self.device(None).ok(),
        });
        let fits = || {
            let pool = likely.and_then(|device| self.existing_pool(device));
            pool.zip(want)
                .map_or(Ok(()), |(pool, want)| pool.tag_fits(tag, want.size))
        };
        let mut room = fits();
        if room.is_err() {
            self.retry_after_handler(&mut room, request, fits);
        }
        let outcome = room
            .and_then(|()| self.allocate_in_recording_process(request))
            .and_then(|address| match self.pool_at(address) {
                None => Ok(address),
                Some(pool) => match pool.tag_block(address, tag) {
                    Ok(()) => Ok(address),
                    Err(error) => {
                        self.deallocate_in_recording_process(address, request.stream)?;
                        Err(error)
                    }
                },
            });
        if let (Err(Error::OutOfMemory(_)), Some(pool)) =
            (&outcome, likely.and_then(|device| self.existing_pool(device)))
        {
            pool.tag_refused(tag);
        }
        outcome
    }

    /// [`Allocator::deallocate`] on the instrumented path.
    #[cold]
    pub(super) fn deallocate_instrumented(&self, address: u64, stream: Option<Stream>) -> Result<()> {
        if process::is_only_recording() {
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
            pool.untag_block(address);
        }
        self.deallocate_in_recording_process(address, stream)
    }

    /// [`Allocator::reallocate`] on the instrumented path. The block keeps its tag, even if it moves.
    #[cold]
    pub(super) fn reallocate_instrumented(&self, address: u64, alignment: u64, new_size: u64) -> Result<u64> {
        if process::is_only_recording() {
            return self.reallocate_in_recording_process(address, alignment, new_size);
        }
        process::usable()?;
        let want = self.want(new_size, alignment).ok();
        let Some(pool) = self.pool_at(address) else {
            return Err(foreign(address));
        };
        let (tag, old) = pool.take_tag(address);
        let growth = want.map_or(0, |want| want.size.saturating_sub(old));
        let mut grows = pool.tag_grows(tag, growth);
        if grows.is_err() {
            self.retry_after_handler(&mut grows, self.resize_request(address, new_size), || {
                pool.tag_grows(tag, growth)
            });
        }
        let outcome = grows.and_then(|()| {
            pool.notify_freed(address);
            let outcome = self.reallocate_in_recording_process(address, alignment, new_size);
            // A block that could not shrink keeps its bytes.
            let now = outcome.as_ref().map_or(old, |new| pool.allocated_at(*new));
            pool.tag_shrinks(tag, (old + growth).saturating_sub(now));
            pool.notify_allocated(*outcome.as_ref().unwrap_or(&address));
            outcome
        });
        pool.put_tag(*outcome.as_ref().unwrap_or(&address), tag);
        if let (Err(Error::OutOfMemory(_)), true) = (&outcome, tag != 0) {
            pool.tag_refused(tag);
        }
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

    /// The statistics of one device and of its tags, as JSON.
    pub fn stats_json(&self, device: Option<i32>) -> Result<String> {
        process::usable()?;
        let device = self.device(device)?;
        let (stats, tags) = (self.stats(Some(device))?, self.tag_stats(Some(device))?);
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
