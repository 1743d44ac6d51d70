//! What the driver refused to take back. It stays in the books and is tried again, so that one refused call loses
//! nothing.

use crate::driver::{Handle, Result};
use crate::pool::driver_calls::DriverCalls;

/// Memory and address space to be returned to the driver. The steps are taken in the order of the fields.
#[derive(Debug, Default)]
pub struct DeferredRelease {
    /// Ranges to unmap: address and bytes.
    pub mappings: Vec<(u64, u64)>,
    /// Allocations of the driver's malloc: address and bytes.
    pub allocations: Vec<(u64, u64)>,
    /// Handles that nothing uses once all of that is unmapped, with their bytes.
    pub handles: Vec<(Handle, u64)>,
    /// Reservations with nothing mapped in them: address and bytes.
    pub reservations: Vec<(u64, u64)>,
}

/// The result of a retry.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Handles that are free again.
    pub handles: Vec<(Handle, u64)>,
    /// What went back to the driver's malloc: address and bytes.
    pub freed: Vec<(u64, u64)>,
}

impl DeferredRelease {
    /// Retries to unmap and to free what is left.
    pub fn unmap(&mut self, calls: &DriverCalls, found: &mut Recovered) {
        self.mappings
            .retain(|(address, bytes)| refused(calls.submit(|driver| driver.unmap(*address, *bytes))));
        self.allocations.retain(|(address, bytes)| {
            let cached = refused(calls.free(*address));
            if !cached {
                found.freed.push((*address, *bytes));
            }
            cached
        });
        if self.mappings.is_empty() {
            found.handles.append(&mut self.handles);
        }
    }

    /// Retries to free the reservations in which none of `mapped` lies, and returns whether nothing is left. The
    /// documentation does not say that the driver refuses to free a reservation with mappings in it.
    pub fn unreserve(&mut self, calls: &DriverCalls, mapped: &[(u64, u64)]) -> bool {
        let within = |start: u64, bytes: u64| mapped.iter().any(|(at, _)| (start..start + bytes).contains(at));
        self.reservations.retain(|(address, bytes)| {
            within(*address, *bytes) || refused(calls.submit(|driver| driver.unreserve(*address, *bytes)))
        });
        self.mappings.is_empty() && self.allocations.is_empty() && self.reservations.is_empty()
    }
}

fn refused(outcome: Result<()>) -> bool {
    outcome
        .inspect_err(|error| tracing::warn!(%error, "something could not be given back, and is tried again later"))
        .is_err()
}
