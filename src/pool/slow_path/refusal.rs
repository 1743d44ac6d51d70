//! The errors of requests that the slow path refuses.

use crate::driver::DriverError;
use crate::pool::{Core, Pool, Want};
use crate::support::error::Error;
use crate::sync::atomic::Ordering;

impl Pool {
    /// Counts and describes a request for which there is no memory. `refusal` is the driver's last refusal.
    pub(super) fn out_of_memory(&self, core: &Core, want: &Want, refusal: Option<DriverError>) -> Error {
        self.count_refused();
        let allocated = self.in_use();
        let pending = self.counters.pending.load(Ordering::Relaxed);
        let physical = &core.memory.physical;
        let limit = match physical.limit {
            0 => "none".into(),
            limit => format!("{limit} bytes"),
        };
        let mut text = format!(
            "{} bytes on device {}: {allocated} allocated, {pending} pending, {} reserved, limit {limit}",
            want.requested,
            self.device,
            physical.reserved()
        );
        if physical.headroom != 0 {
            text.push_str(&format!(", headroom {} bytes", physical.headroom));
        }
        if let Some(refusal) = refusal {
            text.push_str(&format!("; {refusal}"));
        }
        Error::OutOfMemory(text)
    }
}

#[cold]
pub(super) fn capture_invalidated() -> Error {
    Error::Unsupported("the stream's capture was invalidated and must be ended first".into())
}
