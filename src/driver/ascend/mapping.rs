//! What differs in virtual memory: a mapping is unmapped by its address alone, one at a time, and behind the device's work.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use super::super::{DriverError, Failure, Result};
use super::AscendDriver;
use super::failure::{SYNC_TIMEOUT, check};
use super::functions::{Acl, Location, PhysicalProperties};
use crate::process;

/// How many milliseconds an unmapping waits for the device.
const PATIENCE: i32 = 100;
/// How many, while the device did not come to rest in time before.
const NO_PATIENCE: i32 = 1;
/// How many milliseconds one turn of [`synchronize`] takes.
const TURN: i32 = 250;
/// How long AscendCL's lock is left to others between two turns.
const BETWEEN: Duration = Duration::from_millis(1);

/// `ACL_HBM_MEM_HUGE`: pages of 2 MiB, which is what torch_npu asks for.
const HUGE_PAGES: i32 = 4;
/// `ACL_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: i32 = 1;

/// A handle of the device's memory that stays in this process.
pub(super) fn properties(device: i32) -> PhysicalProperties {
    PhysicalProperties {
        handle_type: 0,
        allocation_type: 0,
        attribute: HUGE_PAGES,
        location: Location {
            id: device as u32,
            kind: ON_DEVICE,
        },
        reserve: 0,
    }
}

/// What is mapped where, and whether the device did not come to rest when it was last waited for.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// Bytes by address.
    mappings: Mutex<BTreeMap<u64, u64>>,
    busy: AtomicBool,
}

impl Mapped {
    /// Whether whole mappings make up a range.
    pub(super) fn covers(&self, address: u64, bytes: u64) -> bool {
        let end = address.saturating_add(bytes);
        let mut at = address;
        for (&start, &size) in self.mappings.lock().range(address..end) {
            if start != at {
                return false;
            }
            at += size;
        }
        at == end && bytes > 0
    }
}

const BOUNDED: &str = "aclrtSynchronizeDeviceWithTimeout";

/// Waits for the device, no longer than said.
fn rest(acl: &Acl, milliseconds: i32) -> Result<()> {
    check(BOUNDED, code!(acl, aclrtSynchronizeDeviceWithTimeout(milliseconds)))
}

fn is_late(rested: &Result<()>) -> bool {
    rested.is_err_and(|error| error.code == SYNC_TIMEOUT as u32)
}

/// Waits until the streams of the current context are done. In turns where that can be: while it waits, AscendCL holds the lock
/// under which a context's streams are made and destroyed.
pub(super) fn synchronize(acl: &Acl) -> Result<()> {
    if !acl.functions.has(BOUNDED) {
        return call!(acl, aclrtSynchronizeDevice());
    }
    loop {
        match rest(acl, TURN) {
            // Whoever waited may be gone, and the process with it.
            late if is_late(&late) && process::usable().is_ok() => std::thread::sleep(BETWEEN),
            rested => return rested,
        }
    }
}

impl AscendDriver {
    pub(super) fn map_whole(&self, address: u64, bytes: u64, handle: u64) -> Result<()> {
        self.anywhere(move |acl| {
            call!(
                acl,
                aclrtMapMem(address as *mut c_void, bytes as usize, 0, handle as usize, 0)
            )
        })?;
        self.mapped.mappings.lock().insert(address, bytes);
        Ok(())
    }

    /// Unmaps every mapping in a range, from the first. What was unmapped when one is refused stays so, and the next call for
    /// the range goes on from there.
    pub(super) fn unmap_range(&self, address: u64, bytes: u64) -> Result<()> {
        let mappings: Vec<u64> = {
            let known = self.mapped.mappings.lock();
            let within = known.range(address..address.saturating_add(bytes));
            within.map(|(&start, _)| start).collect()
        };
        if mappings.is_empty() {
            return Err(refused("aclrtUnmapMem", Failure::Other));
        }
        self.come_to_rest()?;
        for start in mappings {
            self.anywhere(move |acl| call!(acl, aclrtUnmapMem(start as *mut c_void)))?;
            self.mapped.mappings.lock().remove(&start);
        }
        Ok(())
    }

    /// Waits a little for the device before something is unmapped. torch_npu always waits, for it does not know whether what
    /// used the memory is over; here that is known, and nothing in CANN's documentation demands more. So a device that does not
    /// come to rest, or may not be waited for since a stream captures, does not keep memory from being moved; nor does one of
    /// which AscendCL cannot be told how long to wait.
    fn come_to_rest(&self) -> Result<()> {
        if !self.acl.functions.has(BOUNDED) {
            return Ok(());
        }
        let busy = &self.mapped.busy;
        let patience = if busy.load(Relaxed) { NO_PATIENCE } else { PATIENCE };
        let rested = self.anywhere(move |acl| rest(acl, patience));
        let late = is_late(&rested);
        busy.store(late, Relaxed);
        match rested {
            Err(error) if late || error.failure == Failure::Capture => Ok(()),
            rested => rested,
        }
    }
}

/// An error of our own where AscendCL was not asked.
pub(super) fn refused(call: &'static str, failure: Failure) -> DriverError {
    DriverError { call, code: 0, failure }
}
