//! The differences in virtual memory: unmapping takes only an address, unmaps one mapping, and follows a wait for the
//! device.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use super::super::{DriverError, Failure, Result};
use super::AscendDriver;
use super::failure::{SYNC_TIMEOUT, check};
use super::functions::{Acl, Location, PhysicalProperties};

/// How many milliseconds unmapping waits for the device.
const WAIT_MS: i32 = 100;
/// How many milliseconds it waits if the last wait timed out.
const SHORT_WAIT_MS: i32 = 1;
/// How many milliseconds one wait of [`synchronize`] takes.
const SLICE_MS: i32 = 250;
/// The pause between two waits, in which other threads can take AscendCL's lock.
const PAUSE: Duration = Duration::from_millis(1);

/// `ACL_HBM_MEM_HUGE`: pages of 2 MiB, which torch_npu uses.
const HUGE_PAGES: i32 = 4;
/// `ACL_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: i32 = 1;

/// Properties of a handle of the device's memory that stays in this process.
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

/// The mappings, and whether the last wait for the device timed out.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// Sizes in bytes, by address.
    mappings: Mutex<BTreeMap<u64, u64>>,
    /// Ranges of which only a part could be unmapped: sizes in bytes, by address. The caller holds such a range for mapped, and
    /// will unmap it again, so nothing else is mapped there before.
    unfinished: Mutex<BTreeMap<u64, u64>>,
    late: AtomicBool,
}

impl Mapped {
    /// Whether whole mappings cover a range exactly.
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

    /// Whether a range has a part of one that could not be unmapped as a whole.
    fn is_unfinished(&self, address: u64, bytes: u64) -> bool {
        let unfinished = self.unfinished.lock();
        let before = unfinished.range(..address.saturating_add(bytes)).next_back();
        before.is_some_and(|(start, size)| start + size > address)
    }
}

const SYNCHRONIZE: &str = "aclrtSynchronizeDeviceWithTimeout";

/// Waits for the device, at most `milliseconds`.
fn synchronize_device(acl: &Acl, milliseconds: i32) -> Result<()> {
    check(SYNCHRONIZE, code!(acl, aclrtSynchronizeDeviceWithTimeout(milliseconds)))
}

fn timed_out(result: &Result<()>) -> bool {
    result.is_err_and(|error| error.code == SYNC_TIMEOUT as u32)
}

/// Waits until the streams of the current context have completed. It waits in slices where AscendCL can, because
/// AscendCL holds a lock meanwhile that creating and destroying the context's streams needs. It ends where the process
/// is not `usable` any more.
pub(super) fn synchronize(acl: &Acl, usable: fn() -> bool) -> Result<()> {
    if !acl.functions.has(SYNCHRONIZE) {
        return call!(acl, aclrtSynchronizeDevice());
    }
    loop {
        match synchronize_device(acl, SLICE_MS) {
            // The waiting thread may have ended, and the process with it.
            late if timed_out(&late) && usable() => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
}

impl AscendDriver {
    pub(super) fn map_whole(&self, address: u64, bytes: u64, handle: u64) -> Result<()> {
        if self.mapped.is_unfinished(address, bytes) {
            return Err(DriverError::refused("aclrtMapMem", Failure::Other));
        }
        self.in_any_context(move |acl| {
            call!(
                acl,
                aclrtMapMem(address as *mut c_void, bytes as usize, 0, handle as usize, 0)
            )
        })?;
        self.mapped.mappings.lock().insert(address, bytes);
        Ok(())
    }

    /// Unmaps every mapping in a range, from the first. If one is refused, the ones before it stay unmapped, the next call
    /// for the range continues from there, and nothing is mapped in the range until then.
    pub(super) fn unmap_range(&self, address: u64, bytes: u64) -> Result<()> {
        let mappings: Vec<u64> = {
            let known = self.mapped.mappings.lock();
            let within = known.range(address..address.saturating_add(bytes));
            within.map(|(&start, _)| start).collect()
        };
        if mappings.is_empty() {
            return Err(DriverError::refused("aclrtUnmapMem", Failure::Other));
        }
        self.wait_before_unmap()?;
        for start in mappings {
            let outcome = self.in_any_context(move |acl| call!(acl, aclrtUnmapMem(start as *mut c_void)));
            if outcome.is_err() {
                if start != address {
                    self.mapped.unfinished.lock().insert(address, bytes);
                }
                return outcome;
            }
            self.mapped.mappings.lock().remove(&start);
        }
        self.mapped.unfinished.lock().remove(&address);
        Ok(())
    }

    /// Waits a little for the device before an unmapping. torch_npu always waits, because it does not know whether the
    /// memory's uses have ended. The pool knows that, and CANN's documentation requires no wait. So memory is unmapped
    /// even if the wait times out, is refused because a stream captures, or cannot be bounded.
    fn wait_before_unmap(&self) -> Result<()> {
        if !self.acl.functions.has(SYNCHRONIZE) {
            return Ok(());
        }
        let late = &self.mapped.late;
        let wait = if late.load(Relaxed) { SHORT_WAIT_MS } else { WAIT_MS };
        let result = self.in_any_context(move |acl| synchronize_device(acl, wait));
        let timed_out = timed_out(&result);
        late.store(timed_out, Relaxed);
        match result {
            Err(error) if timed_out || error.failure == Failure::Capture => Ok(()),
            result => result,
        }
    }
}
