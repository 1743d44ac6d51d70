//! Devices and contexts, and waits for all work of a context.

use std::time::{Duration, Instant};

use super::{CONTEXT_NULL, INVALID_PARAM, RT_PARAM_INVALID, Result, STREAM_CAPTURED, checked, context, functions, put};
use crate::model::Machine;

/// `ACL_ERROR_RT_STREAM_SYNC_TIMEOUT`.
const TIMEOUT: i32 = 507_046;

/// Refuses to wait where a stream of the context captures. Unlike in CUDA, that ends no capture.
fn no_capture(machine: &Machine) -> Result<()> {
    match machine.context_captures(context(machine)?) {
        Ok(false) => Ok(()),
        Ok(true) => Err(STREAM_CAPTURED),
        Err(code) => checked(Err(code)),
    }
}

functions! {
    fn aclrtGetDeviceCount(count: *mut u32) |machine| {
        let known = checked(machine.device_count())?;
        // SAFETY: the caller's pointer.
        unsafe { put(count, known) }
    }

    // Retains the device's own context and makes it current to this thread.
    fn aclrtSetDevice(device: i32) |machine| {
        let context = checked(machine.primary_retain(device))?;
        let _exempt = machine.exempt();
        checked(machine.context_set_current(context))
    }

    fn aclrtResetDevice(device: i32) |machine| { checked(machine.primary_release(device)) }

    fn aclrtResetDeviceForce(device: i32) |machine| { checked(machine.primary_reset(device)) }

    fn aclrtGetDevice(device: *mut i32) |machine| {
        let known = checked(machine.context_current_device())?;
        // SAFETY: the caller's pointer.
        unsafe { put(device, known) }
    }

    fn aclrtGetPrimaryCtxState(device: i32, flags: *mut u32, active: *mut i32) |machine| {
        if !flags.is_null() {
            return Err(INVALID_PARAM);
        }
        let known = checked(machine.primary_active(device))?;
        // SAFETY: the caller's pointer.
        unsafe { put(active, i32::from(known)) }
    }

    fn aclrtCreateContext(out: *mut usize, device: i32) |machine| {
        super::wanted(out)?;
        let had = machine.context_current();
        let made = checked(machine.context_create(device))?;
        // CANN has one current context and no stack: the new context replaces the old one.
        if had != Ok(0) {
            let _exempt = machine.exempt();
            let _ = machine.context_pop();
            checked(machine.context_set_current(made))?;
        }
        // SAFETY: the caller's pointer.
        unsafe { put(out, made) }
    }

    fn aclrtDestroyContext(context: usize) |machine| { checked(machine.context_destroy(context)) }

    fn aclrtSetCurrentContext(context: usize) |machine| {
        if context == 0 {
            return Err(RT_PARAM_INVALID);
        }
        checked(machine.context_set_current(context)).map_err(|code| match code {
            CONTEXT_NULL => RT_PARAM_INVALID,
            code => code,
        })
    }

    fn aclrtGetCurrentContext(out: *mut usize) |machine| {
        super::wanted(out)?;
        checked(machine.context_current())?;
        let known = context(machine)?;
        // SAFETY: the caller's pointer, not null.
        unsafe { put(out, known) }
    }

    fn aclrtSynchronizeDevice() |machine| {
        no_capture(machine)?;
        checked(machine.context_synchronize())
    }

    fn aclrtSynchronizeDeviceWithTimeout(milliseconds: i32) |machine| {
        no_capture(machine)?;
        if milliseconds < 0 {
            return checked(machine.context_synchronize());
        }
        let event = checked(machine.event_create())?;
        let until = Instant::now() + Duration::from_millis(milliseconds as u64);
        let wait = || {
            checked(machine.context_current().and_then(|context| machine.context_record_event(context, event)))?;
            while !checked(machine.event_query(event))? {
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
