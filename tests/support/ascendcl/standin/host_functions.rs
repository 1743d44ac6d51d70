//! Host functions in stream order: each is work that lasts until the function has run.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Result, checked};
use crate::model::Machine;
use crate::model::capture::MODE_RELAXED;
use crate::model::code::CAPTURE_UNSUPPORTED;

/// `aclrtHostFunc`.
pub type HostFunction = unsafe extern "C" fn(*mut c_void);

/// Raised when the machine changes, so that threads of an earlier machine give up.
static ROUND: AtomicU64 = AtomicU64::new(0);

pub(super) fn forget() {
    ROUND.fetch_add(1, Ordering::SeqCst);
}

/// A new thread calls the function once all work queued before it has completed, and then ends the work.
pub(super) fn launch(machine: &Arc<Machine>, stream: usize, function: HostFunction, data: *mut c_void) -> Result<()> {
    let _exempt = machine.exempt();
    if checked(machine.stream_is_capturing(stream))? != 0 {
        return checked(Err(CAPTURE_UNSUPPORTED));
    }
    let event = checked(machine.event_create())?;
    let kernel = machine
        .event_record(event, stream)
        .and_then(|()| machine.launch_persistent(stream, &[]));
    let kernel = match checked(kernel) {
        Ok(kernel) => kernel,
        Err(code) => {
            let _ = machine.event_destroy(event);
            return Err(code);
        }
    };
    let (machine, data, round) = (machine.clone(), data as usize, ROUND.load(Ordering::SeqCst));
    let run = move || {
        let _exempt = machine.exempt();
        // This thread's queries must not invalidate a capture.
        let _ = machine.exchange_capture_mode(MODE_RELAXED);
        while machine.event_query(event) == Ok(false) && ROUND.load(Ordering::SeqCst) == round {
            std::thread::sleep(Duration::from_micros(50));
        }
        // If the event is gone, its context was destroyed, and the work with it.
        if machine.event_destroy(event).is_ok() && ROUND.load(Ordering::SeqCst) == round {
            // SAFETY: the client declared that this pair may be called.
            unsafe { function(data as *mut c_void) };
        }
        machine.release_persistent(kernel);
    };
    let thread = std::thread::Builder::new().name("simascend-host".into());
    thread.spawn(run).map(drop).map_err(|_| super::OUT_OF_MEMORY)
}
