//! Contexts.

use std::ffi::c_int;

use crate::model::code::INVALID_CONTEXT;
use crate::{functions, put, put_optional};

/// The handle of a green context whose context has this handle. CUDA does not take one for the other.
pub(crate) fn green(context: usize) -> usize {
    context + 1
}

functions! {
    7000 fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) |machine| {
        let primary = machine.primary_retain(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(context, primary) }
    }

    11000 fn cuDevicePrimaryCtxRelease_v2(device: c_int) |machine| { machine.primary_release(device) }

    11000 fn cuDevicePrimaryCtxReset_v2(device: c_int) |machine| { machine.primary_reset(device) }

    11000 fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: u32) |machine| {
        machine.primary_active(device).map(drop)
    }

    7000 fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut u32, active: *mut c_int) |machine| {
        let state = machine.primary_active(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(flags, 0) }?;
        // SAFETY: the caller's pointer.
        unsafe { put(active, c_int::from(state)) }
    }

    3020 fn cuCtxCreate_v2(context: *mut usize, _flags: u32, device: c_int) |machine| {
        let created = machine.context_create(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(context, created) }
    }

    4000 fn cuCtxDestroy_v2(context: usize) |machine| { machine.context_destroy(context) }

    4000 fn cuCtxPushCurrent_v2(context: usize) |machine| { machine.context_push(context) }

    4000 fn cuCtxPopCurrent_v2(context: *mut usize) |machine| {
        let popped = machine.context_pop()?;
        // SAFETY: the caller's pointer.
        unsafe { put_optional(context, popped) };
        Ok(())
    }

    4000 fn cuCtxSetCurrent(context: usize) |machine| { machine.context_set_current(context) }

    4000 fn cuCtxGetCurrent(context: *mut usize) |machine| {
        let current = machine.context_current()?;
        // SAFETY: the caller's pointer.
        unsafe { put(context, current) }
    }

    2000 fn cuCtxGetDevice(device: *mut c_int) |machine| {
        let current = machine.context_current_device()?;
        // SAFETY: the caller's pointer.
        unsafe { put(device, current) }
    }

    2000 fn cuCtxSynchronize() |machine| { machine.context_synchronize() }

    // A null context means the current one.
    12000 fn cuCtxGetId(context: usize, id: *mut u64) |machine| {
        let context = if context == 0 { machine.context_current()? } else { context };
        if context == 0 {
            return Err(INVALID_CONTEXT);
        }
        let known = machine.context_id(context)?;
        // SAFETY: the caller's pointer.
        unsafe { put(id, known) }
    }

    12050 fn cuCtxRecordEvent(context: usize, event: usize) |machine| { machine.context_record_event(context, event) }

    // Each resource is the whole device, so what describes one is any address.
    12040 fn cuDeviceGetDevResource(device: c_int, resource: *mut u8, _kind: u32) |machine| {
        machine.device_total(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(resource, 1) }
    }

    12040 fn cuDevResourceGenerateDesc(description: *mut usize, resources: *mut u8, _count: u32) |_machine| {
        // SAFETY: the caller's pointer.
        unsafe { put(description, resources as usize) }
    }

    12040 fn cuGreenCtxCreate(context: *mut usize, _description: usize, device: c_int, _flags: u32) |machine| {
        let created = green(machine.green_context_create(device)?);
        // SAFETY: the caller's pointer.
        unsafe { put(context, created) }
    }

    12040 fn cuGreenCtxDestroy(context: usize) |machine| { machine.context_destroy(context - 1) }

    12040 fn cuCtxFromGreenCtx(context: *mut usize, green: usize) |_machine| {
        // SAFETY: the caller's pointer.
        unsafe { put(context, green - 1) }
    }

    5050 fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) |_machine| {
        // SAFETY: the caller's pointers.
        unsafe {
            put_optional(least, 0);
            put_optional(greatest, 0);
        }
        Ok(())
    }

    // All peers reach each other.
    4000 fn cuCtxEnablePeerAccess(context: usize, _flags: u32) |machine| { machine.context_device(context).map(drop) }
}
