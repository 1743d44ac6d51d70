//! Events.

use super::{INVALID_PARAM, NOT_SUPPORTED, Result, context, functions, put, stream_here, told};
use crate::model::Machine;

/// Bits that `aclrtCreateEventWithFlag` and its like know.
const FLAGS: u32 = 0x7b;
/// `ACL_EVENT_IPC`: not modelled.
const IPC: u32 = 0x40;

fn create(machine: &Machine, out: *mut usize, flags: u32) -> Result<()> {
    super::wanted(out)?;
    context(machine)?;
    if flags & !FLAGS != 0 {
        return Err(INVALID_PARAM);
    }
    if flags & IPC != 0 {
        return Err(NOT_SUPPORTED);
    }
    let made = told(machine.event_create())?;
    // SAFETY: the caller's pointer, not null.
    unsafe { put(out, made) }
}

fn known(event: usize) -> Result<()> {
    if event == 0 { Err(INVALID_PARAM) } else { Ok(()) }
}

functions! {
    fn aclrtCreateEvent(out: *mut usize) |machine| { create(machine, out, 0) }

    fn aclrtCreateEventWithFlag(out: *mut usize, flags: u32) |machine| { create(machine, out, flags) }

    fn aclrtCreateEventExWithFlag(out: *mut usize, flags: u32) |machine| { create(machine, out, flags) }

    fn aclrtDestroyEvent(event: usize) |machine| {
        known(event)?;
        told(machine.event_destroy(event))
    }

    fn aclrtRecordEvent(event: usize, stream: usize) |machine| {
        known(event)?;
        stream_here(machine, stream)?;
        told(machine.event_record(event, stream))
    }

    // 1: complete, as where it was never recorded.
    fn aclrtQueryEventStatus(event: usize, status: *mut u32) |machine| {
        known(event)?;
        super::wanted(status)?;
        let complete = told(machine.event_query(event))?;
        if !complete {
            // Whoever asks again has let time pass.
            machine.advance(100_000);
        }
        // SAFETY: the caller's pointer, not null.
        unsafe { put(status, u32::from(complete)) }
    }

    fn aclrtSynchronizeEvent(event: usize) |machine| {
        known(event)?;
        while !told(machine.event_query(event))? {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        Ok(())
    }

    fn aclrtStreamWaitEvent(stream: usize, event: usize) |machine| {
        known(event)?;
        stream_here(machine, stream)?;
        told(machine.stream_wait_event(stream, event))
    }
}
