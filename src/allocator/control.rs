//! Calls that administer an allocator: declared uses, statistics, trimming, limits.

use super::*;
use crate::driver::RelaxedMode;
use crate::support::stats::growth;

impl Allocator {
    /// Declares that the block is also used on `stream`. The block is reused only once that stream's work has completed
    /// too.
    pub fn record_stream(&self, address: u64, stream: Stream) -> Result<()> {
        process::usable()?;
        if !self.driver.knows_work() {
            return Err(Error::Unsupported(
                "there is no driver that could follow the stream".into(),
            ));
        }
        let Some(pool) = self.all_pools().find(|pool| pool.knows(address)) else {
            return Err(foreign(address));
        };
        let recorded = match self.key(stream) {
            Ok(None) => pool
                .in_primary(true, || self.record_use(pool, address, stream))
                .and_then(|inside| inside.unwrap_or(Ok(false))),
            _ => self.record_use(pool, address, stream),
        };
        // A block whose use cannot be followed waits for all contexts: hooks have no way to return an error.
        let shared = recorded.inspect_err(|_| drop(pool.add_unknown_use(address, None)))?;
        if shared { Ok(()) } else { Err(foreign(address)) }
    }

    fn record_use(&self, pool: &Pool, address: u64, stream: Stream) -> Result<bool> {
        let Some(key) = self.key(stream)? else {
            return pool.add_unknown_use(address, None);
        };
        if !self.streams || self.stream_device(stream)? != pool.device {
            return pool.add_unknown_use(address, Some(self.driver.context_of(stream)?));
        }
        self.leave_other_device(key, pool.device);
        let (id, capture) = self.query_stream(stream)?;
        let view = StreamView {
            key,
            stream,
            id,
            capture,
            device: Some(pool.device),
        };
        pool.add_use(address, &view)
    }

    /// Announces that `stream` is about to be destroyed. What it freed gets a completion event while that is possible.
    pub fn stream_release(&self, stream: Stream) -> Result<()> {
        process::usable()?;
        let Some(key) = self.key(stream)? else {
            return Ok(());
        };
        let known = self.served_by(key, |served| (served.id, served.device));
        let Some((id, pool)) = known.and_then(|(id, device)| Some((id, self.existing_pool(device)?))) else {
            return Ok(());
        };
        // A completion event on another stream with the same handle would not cover this stream's work.
        let (now, capture) = self.query_stream(stream)?;
        pool.release_stream(key, Some(stream).filter(|_| now == id && capture == Capture::None));
        Ok(())
    }

    /// The statistics of one device. `None`: the current device.
    pub fn stats(&self, device: Option<i32>) -> Result<Stats> {
        process::usable()?;
        let device = self.device(device)?;
        match self.existing_pool(device) {
            Some(pool) => Ok(pool.stats()),
            None => Ok(Stats {
                limit: self.first_limit(device)?,
                ..Stats::default()
            }),
        }
    }

    /// As [`Allocator::stats`], with what the driver says of the device's memory and the largest free range. On a device
    /// that was not used yet, the driver is asked only where a context of that device is current.
    pub fn stats_with_device(&self, device: Option<i32>) -> Result<Stats> {
        let stats = self.stats(device)?;
        let device = self.device(device)?;
        Ok(match self.existing_pool(device) {
            Some(pool) => pool.stats_with_device(),
            None if self.driver.current_device() == Ok(Some(device)) => {
                let (free, total) = self.driver.memory_info(device).unwrap_or_default();
                let growth = growth(0, stats.limit, free, self.first_headroom(device)?);
                stats.on_device((free, total)).with_growth(growth)
            }
            None => stats,
        })
    }

    /// The statistics of each device that has a pool. Makes no driver call, so it can be called at any time.
    pub fn stats_of_all(&self) -> impl Iterator<Item = Stats> {
        self.all_pools().map(Pool::stats)
    }

    /// The same for each device whose state can be read so soon: not where the thread that calls was interrupted while
    /// it held a lock of the pool.
    pub(crate) fn stats_within(&self, patience: std::time::Duration) -> impl Iterator<Item = Stats> {
        let read = move |pool: &Pool| pool.inspect(patience).map(drop).map(|()| pool.stats());
        self.all_pools().filter_map(read)
    }

    /// Resets the peaks to the current values.
    pub fn reset_peaks(&self, device: Option<i32>) -> Result<()> {
        process::usable()?;
        if let Some(pool) = self.existing_pool(self.device(device)?) {
            pool.reset_peaks();
        }
        Ok(())
    }

    /// Releases free memory to the driver until at most `keep` bytes stay reserved. Returns the bytes released.
    pub fn trim(&self, device: Option<i32>, keep: u64) -> Result<u64> {
        process::usable()?;
        self.return_unbuilt();
        self.existing_pool(self.device(device)?)
            .map_or(Ok(0), |pool| pool.trim(keep))
    }

    /// [`Allocator::trim`] on every device that has a pool.
    pub fn trim_all(&self, keep: u64) -> Result<u64> {
        process::usable()?;
        self.return_unbuilt();
        self.all_pools()
            .try_fold(0, |released, pool| Ok(released + pool.trim(keep)?))
    }

    /// Limits reserved memory; 0: no limit. Memory that is reserved beyond it is released once it is free.
    pub fn set_limit(&self, device: Option<i32>, bytes: u64) -> Result<()> {
        process::usable()?;
        self.pool(self.device(device)?)?.set_limit(bytes)
    }

    /// Limits reserved memory to a fraction of the device's memory, from 0 to 1.
    pub fn set_limit_fraction(&self, device: Option<i32>, fraction: f64) -> Result<()> {
        process::usable()?;
        let device = self.device(device)?;
        let total = self.driver.device_info(device)?.total;
        if total == 0 {
            return Err(Error::Unsupported("nothing is known of the device's memory".into()));
        }
        // 0 bytes would mean no limit.
        self.pool(device)?.set_limit(((total as f64 * fraction) as u64).max(1))
    }

    /// As [`Allocator::trim`], for a request that comes from outside the program: see [`Pool::trim_completed`].
    #[doc(hidden)]
    pub fn trim_completed(&self, device: i32, keep: u64, confirms: bool) -> Result<u64> {
        self.pool_at_device(device)?.trim_completed(keep, confirms)
    }

    /// As [`Allocator::set_limit`], for a request that comes from outside the program.
    #[doc(hidden)]
    pub fn set_limit_without_wait(&self, device: i32, bytes: u64) -> Result<()> {
        self.pool_at_device(device)?.set_limit_without_wait(bytes)
    }

    /// The pool of a device that was used.
    pub(super) fn pool_at_device(&self, device: i32) -> Result<&Pool> {
        match self.existing_pool(device) {
            Some(pool) => Ok(pool),
            None => self.no_device(device),
        }
    }

    /// Whether it was destroyed and holds nothing. What the interfaces for other languages have made is never freed.
    pub(super) fn is_gone(&self) -> bool {
        self.closed.load(Ordering::Relaxed) && self.stats_of_all().all(|stats| stats.reserved == 0)
    }

    /// Checks every invariant of every pool and returns the first violation. It reads the whole state: for tests.
    #[doc(hidden)]
    pub fn validate(&self) -> std::result::Result<(), String> {
        self.all_pools().try_for_each(Pool::validate)
    }

    #[cold]
    pub(super) fn release_closed(&self) {
        for pool in self.all_pools().filter(|pool| pool.is_idle()) {
            if !pool.shut_down() {
                tracing::debug!(device = pool.device, "memory is still in use and stays for now");
                #[cfg(not(loom))]
                self.close_later();
            }
        }
        if !self.return_unbuilt() {
            #[cfg(not(loom))]
            self.close_later();
        }
    }

    /// Tries again to return what attempts to build a pool have left. Returns whether nothing of it remains.
    pub(super) fn return_unbuilt(&self) -> bool {
        let mut unbuilt = self.making.lock();
        if unbuilt.is_empty() {
            return true;
        }
        let _relaxed = RelaxedMode::begin(&*self.driver);
        unbuilt.retry()
    }
}
