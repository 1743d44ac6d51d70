//! What the driver refused to take back. It stays in the books and is tried again, so that one refused call loses
//! nothing.

use std::sync::Arc;

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
    /// Returns all of it, up to a call that is refused twice: one that is refused once may be accepted the second time.
    pub fn give_back(&mut self, calls: &DriverCalls) -> Result<()> {
        self.give_some_back(calls).or_else(|_| self.give_some_back(calls))
    }

    /// Returns all of it, up to the first call that is refused.
    fn give_some_back(&mut self, calls: &DriverCalls) -> Result<()> {
        returned(&mut self.mappings, |(address, bytes)| {
            calls.submit(|driver| driver.unmap(address, bytes))
        })?;
        returned(&mut self.allocations, |(address, _)| calls.free(address))?;
        returned(&mut self.handles, |(handle, _)| {
            calls.submit(|driver| driver.release(handle))
        })?;
        returned(&mut self.reservations, |(address, bytes)| {
            calls.submit(|driver| driver.unreserve(address, bytes))
        })
    }

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

/// What an attempt to build a pool obtained and the driver did not take back. No pool has it in its books.
#[derive(Default)]
pub struct Unbuilt(Vec<(Arc<DriverCalls>, DeferredRelease)>);

impl Unbuilt {
    /// Returns what it can, and keeps the rest.
    pub(in crate::pool) fn give_back(&mut self, calls: &Arc<DriverCalls>, mut left: DeferredRelease) {
        if let Err(error) = left.give_back(calls) {
            tracing::warn!(%error, "something could not be given back, and is tried again later");
            self.0.push((calls.clone(), left));
        }
    }

    /// Tries again to return everything, and forgets what a dead context refuses. Returns whether nothing is left.
    pub fn retry(&mut self) -> bool {
        self.0.retain_mut(|(calls, left)| {
            let outcome = left.give_back(calls);
            outcome.is_err_and(|error| !error.failure.is_dead())
        });
        self.is_empty()
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Calls `call` with each item, the last first, and removes the items that it accepts. It ends at the first refusal.
fn returned<T: Copy>(list: &mut Vec<T>, call: impl Fn(T) -> Result<()>) -> Result<()> {
    while let Some(last) = list.last() {
        call(*last)?;
        list.pop();
    }
    Ok(())
}

fn refused(outcome: Result<()>) -> bool {
    outcome
        .inspect_err(|error| tracing::warn!(%error, "something could not be given back, and is tried again later"))
        .is_err()
}
