//! What is done to a live block, and work in the pool's own context.

use crate::driver::{Capture, DriverError, Event, Stream};
use crate::pool::Pool;
use crate::support::error::Result;
use crate::support::nvtx;
use crate::sync::atomic::Ordering;

impl Pool {
    /// Notifies a tool of the block that was just handed out at `address`. The driver itself reports dedicated
    /// allocations.
    pub fn notify_allocated(&self, address: u64) {
        if let Some((_, block)) = self.find(address) {
            let requested = block.requested.load(Ordering::Relaxed);
            nvtx::allocated(self.addresses.heap(address), address, requested);
        }
    }

    /// Notifies a tool that the block at `address` is about to be freed.
    pub fn notify_freed(&self, address: u64) {
        if self.find(address).is_some_and(|(_, block)| block.is_live()) {
            nvtx::freed(self.addresses.heap(address), address);
        }
    }

    /// Fills memory with `byte`, in the order of `stream`; without a stream, before the call returns. An error where
    /// the memory may still be written to.
    pub fn fill(&self, address: u64, byte: u8, bytes: u64, stream: Option<Stream>) -> Result<()> {
        // The block is in use, so the pool stays open, and others have the lock while this waits.
        let entered = self.enter(&self.core.lock().reclaimer.contexts);
        let Ok(_entered) = entered else {
            return Ok(());
        };
        let order = stream.unwrap_or(Stream::LEGACY);
        if self.calls.query(|driver| driver.look_for_capture(order)) != Ok(Capture::None) {
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

    /// Waits for what is queued on the legacy stream, by an event: synchronizing would end captures.
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
