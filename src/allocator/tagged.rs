//! Calls in a process that uses tags or has a tool: the ordinary call, and the tag's books and the tool's news around it.

use super::*;
use crate::stats::TagStats;
use crate::tags::{self, Tag};

impl Allocator {
    /// [`Allocator::allocate`] where something is unusual about the process: it is going, or was forked, or uses tags,
    /// or has a tool.
    #[cold]
    pub(super) fn allocate_unusual(&self, request: Request) -> Result<u64> {
        process::usable()?;
        let address = match tags::current() {
            0 => self.allocate_usual(request),
            tag => self.allocate_tagged(request, tag),
        }?;
        if let Some(pool) = self.pool_at(address) {
            pool.tell_allocated(address);
        }
        Ok(address)
    }

    fn allocate_tagged(&self, request: Request, tag: Tag) -> Result<u64> {
        let want = self.want(request.size, request.alignment)?;
        // What is certainly beyond the tag's limit does not make the pool grow first.
        let likely = request.device.or_else(|| match request.stream {
            Some(stream) => self.stream_device(stream).ok(),
            None => self.device(None).ok(),
        });
        let outcome = likely
            .and_then(|device| self.made(device))
            .map_or(Ok(()), |pool| pool.tag_fits(tag, want.size))
            .and_then(|()| self.allocate_usual(request))
            .and_then(|address| match self.pool_at(address) {
                None => Ok(address),
                Some(pool) => match pool.tag_block(address, tag) {
                    Ok(()) => Ok(address),
                    Err(error) => {
                        self.deallocate_usual(address, request.stream)?;
                        Err(error)
                    }
                },
            });
        if let (Err(Error::OutOfMemory(_)), Some(pool)) = (&outcome, likely.and_then(|device| self.made(device))) {
            pool.tag_refused(tag);
        }
        outcome
    }

    /// [`Allocator::deallocate`] likewise.
    #[cold]
    pub(super) fn deallocate_unusual(&self, address: u64, stream: Option<Stream>) -> Result<()> {
        if process::forked() {
            return process::usable();
        }
        if process::exiting() {
            return Ok(());
        }
        if let Some(pool) = self.pool_at(address) {
            pool.tell_freed(address);
            pool.untag_block(address);
        }
        self.deallocate_usual(address, stream)
    }

    /// The pool that has a block at `address`.
    fn pool_at(&self, address: u64) -> Option<&Pool> {
        self.all_pools()
            .find(|pool| pool.find(address).is_some() || pool.has_standalone(address))
    }

    /// Caps what blocks of one tag may take of a device's pool, in bytes as handed out; 0: no cap. What is held already stays.
    pub fn set_tag_limit(&self, device: Option<i32>, tag: &str, bytes: u64) -> Result<()> {
        process::usable()?;
        let tag = tags::intern(tag)?;
        self.pool(self.device(device)?)?.set_tag_limit(tag, bytes);
        Ok(())
    }

    /// One device's figures by tag; none: the current device's.
    pub fn tag_stats(&self, device: Option<i32>) -> Result<Vec<TagStats>> {
        process::usable()?;
        Ok(self.made(self.device(device)?).map(Pool::tag_stats).unwrap_or_default())
    }

    /// One device's figures and those of its tags, as JSON.
    pub fn stats_json(&self, device: Option<i32>) -> Result<String> {
        process::usable()?;
        let device = self.device(device)?;
        let (stats, tags) = (self.stats(Some(device))?, self.tag_stats(Some(device))?);
        Ok(crate::stats::json(device, &stats, &tags))
    }

    /// Every device's figures and those of its tags, in the OpenMetrics text format.
    pub fn metrics(&self) -> Result<String> {
        process::usable()?;
        let devices = self
            .all_pools()
            .map(|pool| (pool.device, pool.stats(), pool.tag_stats()));
        Ok(crate::stats::metrics(&devices.collect::<Vec<_>>()))
    }
}
