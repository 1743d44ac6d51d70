//! Controls when the driver runs host functions and the destructors of user objects. The driver runs them in order on
//! one thread. A function of the gate waits in that queue until the test lets the others run, so that they run at the
//! same point in each run.

use std::ffi::c_void;
use std::ptr::null_mut;

use cudarc::driver::sys;
use parking_lot::{Condvar, Mutex};

use super::machine::code;
use crate::cudasim::clock;

#[derive(Default)]
struct GateState {
    opened: u64,
    /// How many functions of the gate have been reached.
    reached: u64,
}

struct Shared {
    state: Mutex<GateState>,
    changed: Condvar,
}

pub struct Gate {
    /// Leaked, because the driver's thread uses it.
    shared: &'static Shared,
    /// A context of the gate, which no other stream waits for.
    context: sys::CUcontext,
    stream: sys::CUstream,
}

// SAFETY: the handles are used from any thread, as the driver allows.
unsafe impl Send for Gate {}
// SAFETY: as above.
unsafe impl Sync for Gate {}

unsafe extern "C" fn wait(shared: *mut c_void) {
    clock::be_passive();
    // SAFETY: `Gate::new` leaked it.
    let shared = unsafe { &*shared.cast::<Shared>() };
    let mut state = shared.state.lock();
    state.reached += 1;
    shared.changed.notify_all();
    while state.opened < state.reached {
        shared.changed.wait(&mut state);
    }
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Gate {
        let shared = Box::leak(Box::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
        }));
        let (mut context, mut stream) = (null_mut(), null_mut());
        // SAFETY: locals to write to, and a context that was just made.
        unsafe {
            code(sys::cuCtxCreate_v2(&mut context, 0, 0)).expect("there is a device");
            code(sys::cuStreamCreate(&mut stream, 1)).expect("a context is current");
            code(sys::cuCtxPopCurrent_v2(&mut null_mut())).expect("it is current");
        }
        let gate = Gate {
            shared,
            context,
            stream,
        };
        gate.close();
        gate
    }

    fn close(&self) {
        let data = std::ptr::from_ref(self.shared).cast_mut().cast();
        // SAFETY: a context and a stream that are never destroyed, and a function that takes that data.
        unsafe {
            code(sys::cuCtxPushCurrent_v2(self.context)).expect("it is there");
            code(sys::cuLaunchHostFunc(self.stream, Some(wait), data)).expect("it is queued");
            code(sys::cuCtxPopCurrent_v2(&mut null_mut())).expect("it is current");
        }
    }

    /// Runs everything that is in the queue now, and closes the gate again.
    pub fn run_queued(&self) {
        self.close();
        let mut state = self.shared.state.lock();
        state.opened += 1;
        self.shared.changed.notify_all();
        let until = state.opened + 1;
        while state.reached < until {
            self.shared.changed.wait(&mut state);
        }
    }
}
