//! Devices and contexts, and waiting for all of one.

use std::time::{Duration, Instant};

use super::{CONTEXT_NULL, INVALID_PARAM, RT_PARAM_INVALID, Result, STREAM_CAPTURED, context, functions, put, told};
use crate::model::Machine;

/// `ACL_ERROR_RT_STREAM_SYNC_TIMEOUT`.
const TIMEOUT: i32 = 507_046;

/// Refuses to wait where a stream of the context captures; that ends no capture, as it would in CUDA.
fn no_capture(machine: &Machine) -> Result<()> {
    match machine.context_captures(context(machine)?) {
        Ok(false) => Ok(()),
        Ok(true) => Err(STREAM_CAPTURED),
        Err(code) => told(Err(code)),
    }
}

functions! {
    fn aclrtGetDeviceCount(count: *mut u32) |machine| {
        let known = told(machine.device_count())?;
        // SAFETY: the caller's pointer.
        unsafe { put(count, known) }
    }

    // The device's own context, kept alive once more, is this thread's from now on.
    fn aclrtSetDevice(device: i32) |machine| {
        let context = told(machine.primary_retain(device))?;
        let _exempt = machine.exempt();
        told(machine.context_set_current(context))
    }

    fn aclrtResetDevice(device: i32) |machine| { told(machine.primary_release(device)) }

    fn aclrtResetDeviceForce(device: i32) |machine| { told(machine.primary_reset(device)) }

    fn aclrtGetDevice(device: *mut i32) |machine| {
        let known = told(machine.context_current_device())?;
        // SAFETY: the caller's pointer.
        unsafe { put(device, known) }
    }

    fn aclrtGetPrimaryCtxState(device: i32, flags: *mut u32, active: *mut i32) |machine| {
        if !flags.is_null() {
            return Err(INVALID_PARAM);
        }
        let known = told(machine.primary_active(device))?;
        // SAFETY: the caller's pointer.
        unsafe { put(active, i32::from(known)) }
    }

    fn aclrtCreateContext(out: *mut usize, device: i32) |machine| {
        super::wanted(out)?;
        let had = machine.context_current();
        let made = told(machine.context_create(device))?;
        // CANN has one place for it, no stack: what was there before is gone.
        if had != Ok(0) {
            let _exempt = machine.exempt();
            let _ = machine.context_pop();
            told(machine.context_set_current(made))?;
        }
        // SAFETY: the caller's pointer.
        unsafe { put(out, made) }
    }

    fn aclrtDestroyContext(context: usize) |machine| { told(machine.context_destroy(context)) }

    fn aclrtSetCurrentContext(context: usize) |machine| {
        if context == 0 {
            return Err(RT_PARAM_INVALID);
        }
        told(machine.context_set_current(context)).map_err(|code| match code {
            CONTEXT_NULL => RT_PARAM_INVALID,
            code => code,
        })
    }

    fn aclrtGetCurrentContext(out: *mut usize) |machine| {
        super::wanted(out)?;
        told(machine.context_current())?;
        let known = context(machine)?;
        // SAFETY: the caller's pointer, not null.
        unsafe { put(out, known) }
    }

    fn aclrtSynchronizeDevice() |machine| {
        no_capture(machine)?;
        told(machine.context_synchronize())
    }

    fn aclrtSynchronizeDeviceWithTimeout(milliseconds: i32) |machine| {
        no_capture(machine)?;
        if milliseconds < 0 {
            return told(machine.context_synchronize());
        }
        let event = told(machine.event_create())?;
        let until = Instant::now() + Duration::from_millis(milliseconds as u64);
        let wait = || {
            told(machine.context_current().and_then(|context| machine.context_record_event(context, event)))?;
            while !told(machine.event_query(event))? {
                if Instant::now() >= until {
                    return Err(TIMEOUT);
                }
                machine.advance(1_000_000);
                std::thread::sleep(Duration::from_micros(10));
            }
            Ok(())
        };
        let waited = wait();
        let _ = machine.event_destroy(event);
        waited
    }
}
