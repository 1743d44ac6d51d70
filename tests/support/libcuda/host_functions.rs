//! Host functions, and the thread that they run on.
//!
//! In the model a host function is a kernel that runs until it is released. Once all work queued before it has
//! completed, the thread calls the function and then releases the kernel. As with NVIDIA's driver there is only one
//! such thread, so a function that waits delays the others, and a driver call in a host function is refused.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::model::Machine;
use crate::model::capture::MODE_RELAXED;
use crate::model::code::{CAPTURE_UNSUPPORTED, OUT_OF_MEMORY, Result};

/// `CUhostFn`.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

struct Job {
    /// An event that completes when the function may run, and the kernel to release after it. `None`: run at once.
    ready: Option<(usize, u64)>,
    function: HostFunction,
    data: usize,
}

#[derive(Default)]
struct Shared {
    jobs: Mutex<Vec<Job>>,
    changed: Condvar,
}

static SHARED: OnceLock<Option<Arc<Shared>>> = OnceLock::new();

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is in a host function, where driver calls are not permitted.
#[inline]
pub(crate) fn inside() -> bool {
    INSIDE.with(Cell::get)
}

fn shared(machine: &Arc<Machine>) -> Result<&'static Arc<Shared>> {
    let start = || {
        let (shared, machine) = (Arc::new(Shared::default()), machine.clone());
        let own = shared.clone();
        let thread = std::thread::Builder::new().name("simcuda-host".into());
        thread.spawn(move || own.run(&machine)).ok().map(|_| shared)
    };
    SHARED.get_or_init(start).as_ref().ok_or(OUT_OF_MEMORY)
}

/// `cuLaunchHostFunc`. Not modelled on a capturing stream.
pub(crate) fn launch(machine: &Arc<Machine>, stream: usize, function: HostFunction, data: *mut c_void) -> Result<()> {
    if machine.stream_is_capturing(stream)? != 0 {
        return Err(CAPTURE_UNSUPPORTED);
    }
    let shared = shared(machine)?;
    let _exempt = machine.exempt();
    machine.context_push(machine.stream_context(stream)?)?;
    let event = machine.event_create();
    machine.context_pop()?;
    let event = event?;
    // The lock keeps the functions of one stream in their order.
    let mut jobs = shared.jobs.lock();
    let kernel = machine
        .event_record(event, stream)
        .and_then(|()| machine.launch_persistent(stream, &[]));
    match kernel {
        Ok(kernel) => {
            jobs.push(Job {
                ready: Some((event, kernel)),
                function,
                data: data as usize,
            });
            shared.changed.notify_all();
            Ok(())
        }
        Err(code) => {
            let _ = machine.event_destroy(event);
            Err(code)
        }
    }
}

/// Makes the thread call `function` soon.
pub(crate) fn call_soon(machine: &Arc<Machine>, function: HostFunction, data: *mut c_void) -> Result<()> {
    let shared = shared(machine)?;
    shared.jobs.lock().push(Job {
        ready: None,
        function,
        data: data as usize,
    });
    shared.changed.notify_all();
    Ok(())
}

impl Shared {
    fn run(&self, machine: &Arc<Machine>) {
        let _exempt = machine.exempt();
        // This thread's queries must not invalidate a capture.
        let _ = machine.exchange_capture_mode(MODE_RELAXED);
        let mut jobs = self.jobs.lock();
        loop {
            if jobs.is_empty() {
                self.changed.wait(&mut jobs);
                continue;
            }
            let ready = |job: &Job| {
                job.ready
                    .is_none_or(|(event, _)| machine.event_query(event) != Ok(false))
            };
            let Some(at) = jobs.iter().position(ready) else {
                self.changed.wait_for(&mut jobs, Duration::from_micros(50));
                continue;
            };
            let job = jobs.remove(at);
            drop(jobs);
            // If the event is gone, its context was destroyed, and the work with it.
            if job.ready.is_none_or(|(event, _)| machine.event_destroy(event).is_ok()) {
                INSIDE.with(|inside| inside.set(true));
                // SAFETY: the client declared that this pair may be called.
                unsafe { (job.function)(job.data as *mut c_void) };
                INSIDE.with(|inside| inside.set(false));
            }
            if let Some((_, kernel)) = job.ready {
                machine.release_persistent(kernel);
            }
            jobs = self.jobs.lock();
        }
    }
}
