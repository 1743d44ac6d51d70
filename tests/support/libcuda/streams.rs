//! Streams.

use std::ffi::{c_int, c_void};

use crate::host_functions::{self, HostFunction};
use crate::model::code::{INVALID_VALUE, NOT_READY};
use crate::{functions, put, put_optional};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

functions! {
    2000 fn cuStreamCreate(stream: *mut usize, flags: u32) |machine| {
        if flags > NON_BLOCKING {
            return Err(INVALID_VALUE);
        }
        let created = machine.stream_create(flags == NON_BLOCKING)?;
        // SAFETY: the caller's pointer.
        unsafe { put(stream, created) }
    }

    // Priorities are not modelled.
    5050 fn cuStreamCreateWithPriority(stream: *mut usize, flags: u32, _priority: c_int) |machine| {
        if flags > NON_BLOCKING {
            return Err(INVALID_VALUE);
        }
        let created = machine.stream_create(flags == NON_BLOCKING)?;
        // SAFETY: the caller's pointer.
        unsafe { put(stream, created) }
    }

    4000 fn cuStreamDestroy_v2(stream: usize) |machine| { machine.stream_destroy(stream) }

    2000 fn cuStreamSynchronize(stream: usize) |machine| { machine.stream_synchronize(stream) }

    2000 fn cuStreamQuery(stream: usize) |machine| {
        crate::process::tick();
        if machine.stream_query(stream)? { Ok(()) } else { Err(NOT_READY) }
    }

    12000 fn cuStreamGetId(stream: usize, id: *mut u64) |machine| {
        let known = machine.stream_id(stream)?;
        // SAFETY: the caller's pointer.
        unsafe { put(id, known) }
    }

    9020 fn cuStreamGetCtx(stream: usize, context: *mut usize) |machine| {
        let owner = machine.stream_context(stream)?;
        // SAFETY: the caller's pointer.
        unsafe { put(context, owner) }
    }

    12050 fn cuStreamGetCtx_v2(stream: usize, context: *mut usize, green: *mut usize) |machine| {
        let (covering, own) = machine.stream_contexts(stream)?;
        // SAFETY: the caller's pointers.
        unsafe {
            put(context, covering)?;
            put_optional(green, if own == 0 { 0 } else { crate::contexts::green(own) });
        }
        Ok(())
    }

    3020 fn cuStreamWaitEvent(stream: usize, event: usize, _flags: u32) |machine| {
        machine.stream_wait_event(stream, event)
    }

    10000 fn cuLaunchHostFunc(stream: usize, function: Option<HostFunction>, data: *mut c_void) |machine| {
        host_functions::launch(machine, stream, function.ok_or(INVALID_VALUE)?, data)
    }
}
