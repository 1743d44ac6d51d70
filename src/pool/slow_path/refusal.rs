//! The errors of requests that the slow path refuses.

use crate::driver::DriverError;
use crate::pool::{Core, Pool, Want};
use crate::support::error::Error;

impl Pool {
    /// Counts and describes a request for which there is no memory. `refusal` is the driver's last refusal.
    pub(super) fn out_of_memory(&self, core: &Core, want: &Want, refusal: Option<DriverError>) -> Error {
        self.count_refused();
        let allocated = self.in_use();
        let pending = self.pending_bytes(core);
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
        // What is free and pending, and what may be created: a request gets no more than that, and not always so much.
        let device = self
            .calls
            .device_memory(core.reclaimer.contexts.own.context, self.device);
        let free = physical.reserved().saturating_sub(allocated);
        let available = free.saturating_add(self.growth(physical, device));
        match want.size.saturating_sub(available) {
            0 => text.push_str(&format!(
                ", {available} available, but not in one piece or not before other work has completed"
            )),
            lacking => text.push_str(&format!(", {available} available, which is {lacking} too few")),
        }
        if let Some(refusal) = refusal {
            let refusal = self.describe_budget(&refusal).unwrap_or_else(|| refusal.to_string());
            text.push_str(&format!("; {refusal}"));
        }
        Error::OutOfMemory(text)
    }
}

#[cold]
pub(super) fn capture_invalidated() -> Error {
    Error::Unsupported("the stream's capture was invalidated and must be ended first".into())
}
