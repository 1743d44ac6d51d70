//! Streams.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use super::host_functions::{self, HostFunction};
use super::{INVALID_PARAM, Result, STREAM_CAPTURED, checked, context, functions, put, stream_here};
use crate::model::Machine;

/// `ACL_ERROR_RT_STREAM_SYNC_TIMEOUT`.
const TIMEOUT: i32 = 507_046;

// Ascend's default stream is not ordered with other streams.
fn create(machine: &Machine, out: *mut usize) -> Result<()> {
    super::wanted(out)?;
    context(machine)?;
    let made = checked(machine.stream_create(true))?;
    // SAFETY: the caller's pointer, not null.
    unsafe { put(out, made) }
}

fn destroy(machine: &Machine, stream: usize) -> Result<()> {
    if stream == 0 {
        return Err(INVALID_PARAM);
    }
    stream_here(machine, stream)?;
    checked(machine.stream_destroy(stream))
}

functions! {
    fn aclrtCreateStream(out: *mut usize) |machine| { create(machine, out) }

    // Priorities and flags are not modelled.
    fn aclrtCreateStreamWithConfig(out: *mut usize, _priority: u32, _flags: u32) |machine| { create(machine, out) }

    // It waits for the stream's work; aclrtDestroyStreamForce does not.
    fn aclrtDestroyStream(stream: usize) |machine| {
        if stream != 0 {
            stream_here(machine, stream)?;
            if checked(machine.stream_is_capturing(stream))? != 0 {
                return Err(STREAM_CAPTURED);
            }
            checked(machine.stream_synchronize(stream))?;
        }
        destroy(machine, stream)
    }

    fn aclrtDestroyStreamForce(stream: usize) |machine| { destroy(machine, stream) }

    fn aclrtSynchronizeStream(stream: usize) |machine| {
        stream_here(machine, stream)?;
        checked(machine.stream_synchronize(stream))
    }

    fn aclrtSynchronizeStreamWithTimeout(stream: usize, milliseconds: i32) |machine| {
        stream_here(machine, stream)?;
        if milliseconds < 0 {
            return checked(machine.stream_synchronize(stream));
        }
        let until = Instant::now() + Duration::from_millis(milliseconds as u64);
        while !checked(machine.stream_query(stream))? {
            if Instant::now() >= until {
                return Err(TIMEOUT);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    // 0: complete.
    fn aclrtStreamQuery(stream: usize, status: *mut u32) |machine| {
        stream_here(machine, stream)?;
        let complete = checked(machine.stream_query(stream))?;
        // SAFETY: the caller's pointer.
        unsafe { put(status, u32::from(!complete)) }
    }

    // The hardware's number. A later stream may have it, too.
    fn aclrtStreamGetId(stream: usize, id: *mut i32) |machine| {
        stream_here(machine, stream)?;
        // SAFETY: the caller's pointer.
        unsafe { put(id, (stream & 0x7ff) as i32) }
    }

    fn aclrtLaunchHostFunc(stream: usize, function: Option<HostFunction>, data: *mut c_void) |machine| {
        stream_here(machine, stream)?;
        host_functions::launch(machine, stream, function.ok_or(INVALID_PARAM)?, data)
    }
}
