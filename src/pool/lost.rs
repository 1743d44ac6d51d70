//! What the driver would not take back. It stays on the books and is tried again, so that one refused call loses nothing.

use super::calls::Calls;
use crate::driver::{Handle, Result};

/// Memory and address space on their way back to the driver, whose steps are taken in the order of the fields.
#[derive(Debug, Default)]
pub struct Lost {
    /// Ranges to be unmapped: address and bytes.
    pub mappings: Vec<(u64, u64)>,
    /// Allocations of the driver's malloc: address and bytes.
    pub allocations: Vec<(u64, u64)>,
    /// Handles that nothing uses once all of that is unmapped, with their bytes.
    pub handles: Vec<(Handle, u64)>,
    /// Reservations with nothing mapped in them: address and bytes.
    pub reservations: Vec<(u64, u64)>,
}

/// What came of trying.
#[derive(Debug, Default)]
pub struct Found {
    /// Handles that are free again.
    pub handles: Vec<(Handle, u64)>,
    /// Bytes that the driver's malloc has back.
    pub freed: u64,
}

impl Lost {
    /// Does what is left to be done; whether nothing is.
    pub fn retry(&mut self, calls: &Calls, found: &mut Found) -> bool {
        self.mappings
            .retain(|(address, bytes)| refused(calls.submit(|driver| driver.unmap(*address, *bytes))));
        self.allocations.retain(|(address, bytes)| {
            let kept = refused(calls.free(*address));
            found.freed += if kept { 0 } else { *bytes };
            kept
        });
        if self.mappings.is_empty() {
            found.handles.append(&mut self.handles);
            self.reservations
                .retain(|(address, bytes)| refused(calls.submit(|driver| driver.unreserve(*address, *bytes))));
        }
        self.mappings.is_empty() && self.allocations.is_empty() && self.reservations.is_empty()
    }
}

fn refused(outcome: Result<()>) -> bool {
    outcome
        .inspect_err(|error| tracing::warn!(%error, "something could not be given back, and is tried again later"))
        .is_err()
}
