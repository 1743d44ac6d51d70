//! Events.

use std::collections::HashSet;

use parking_lot::Mutex;

use super::{INVALID_PARAM, NOT_SUPPORTED, RT_PARAM_INVALID, Result, checked, context, functions, put, stream_here};
use crate::model::Machine;

/// `ACL_EVENT_SYNC`: streams may wait for the event.
const SYNC: u32 = 0x1;
/// The flags of `aclrtCreateEvent`.
const DEFAULT: u32 = 0xe;
/// Bits that `aclrtCreateEventExWithFlag` knows.
const KNOWN_EX: u32 = 0x4f;
/// Bits that `aclrtCreateEventWithFlag` knows.
const KNOWN: u32 = 0x3f;
/// Flags that exclude others: `ACL_EVENT_DEVICE_USE_ONLY`, `ACL_EVENT_EXTERNAL`, `ACL_EVENT_IPC`. They are not
/// modelled.
const EXCLUSIVE: u32 = 0x70;
/// A stream can wait only for an event with one of these flags.
const WAITED_FOR: u32 = SYNC | 0x4;

/// Events that streams cannot wait for.
static QUERY_ONLY: Mutex<Option<HashSet<usize>>> = Mutex::new(None);

/// The next machine has other events.
pub(super) fn forget() {
    *QUERY_ONLY.lock() = None;
}

fn create(machine: &Machine, out: *mut usize, flags: u32, known: u32) -> Result<()> {
    super::wanted(out)?;
    context(machine)?;
    let alone = flags & EXCLUSIVE != 0;
    if flags == 0 || flags & !known != 0 || (alone && !flags.is_power_of_two()) {
        return Err(RT_PARAM_INVALID);
    }
    if alone {
        return Err(NOT_SUPPORTED);
    }
    let made = checked(machine.event_create())?;
    let mut query_only = QUERY_ONLY.lock();
    let query_only = query_only.get_or_insert_default();
    match flags & WAITED_FOR {
        0 => query_only.insert(made),
        // Another event may have had this handle.
        _ => query_only.remove(&made),
    };
    // SAFETY: the caller's pointer, not null.
    unsafe { put(out, made) }
}

fn known(event: usize) -> Result<()> {
    if event == 0 { Err(INVALID_PARAM) } else { Ok(()) }
}

functions! {
    fn aclrtCreateEvent(out: *mut usize) |machine| { create(machine, out, DEFAULT, KNOWN) }

    fn aclrtCreateEventWithFlag(out: *mut usize, flags: u32) |machine| { create(machine, out, flags, KNOWN) }

    fn aclrtCreateEventExWithFlag(out: *mut usize, flags: u32) |machine| { create(machine, out, flags, KNOWN_EX) }

    fn aclrtDestroyEvent(event: usize) |machine| {
        known(event)?;
        checked(machine.event_destroy(event))
    }

    fn aclrtRecordEvent(event: usize, stream: usize) |machine| {
        known(event)?;
        stream_here(machine, stream)?;
        checked(machine.event_record(event, stream))
    }

    // 1: complete, also where the event was never recorded.
    fn aclrtQueryEventStatus(event: usize, status: *mut u32) |machine| {
        known(event)?;
        super::wanted(status)?;
        let complete = checked(machine.event_query(event))?;
        if !complete {
            // A caller that polls lets time pass.
            machine.advance(100_000);
        }
        // SAFETY: the caller's pointer, not null.
        unsafe { put(status, u32::from(complete)) }
    }

    fn aclrtSynchronizeEvent(event: usize) |machine| {
        known(event)?;
        while !checked(machine.event_query(event))? {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        Ok(())
    }

    fn aclrtStreamWaitEvent(stream: usize, event: usize) |machine| {
        known(event)?;
        if QUERY_ONLY.lock().as_ref().is_some_and(|all| all.contains(&event)) {
            return Err(NOT_SUPPORTED);
        }
        stream_here(machine, stream)?;
        checked(machine.stream_wait_event(stream, event))
    }
}
