//! Events. Timing is not modelled.

use crate::model::code::NOT_READY;
use crate::{functions, put};

functions! {
    2000 fn cuEventCreate(event: *mut usize, _flags: u32) |machine| {
        let created = machine.event_create()?;
        // SAFETY: the caller's pointer.
        unsafe { put(event, created) }
    }

    4000 fn cuEventDestroy_v2(event: usize) |machine| { machine.event_destroy(event) }

    2000 fn cuEventRecord(event: usize, stream: usize) |machine| { machine.event_record(event, stream) }

    11010 fn cuEventRecordWithFlags(event: usize, stream: usize, _flags: u32) |machine| {
        machine.event_record(event, stream)
    }

    2000 fn cuEventQuery(event: usize) |machine| {
        crate::process::tick();
        if machine.event_query(event)? { Ok(()) } else { Err(NOT_READY) }
    }

    2000 fn cuEventSynchronize(event: usize) |machine| { machine.event_synchronize(event) }
}
