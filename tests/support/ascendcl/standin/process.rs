//! The process's one machine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard, RwLock};

use super::{REPEATED_INIT, Result, UNINITIALIZED, allocators, capture, events, host_functions};
use crate::model::Machine;

/// Makes a machine for `aclInit` where there is none.
pub type Make = fn() -> std::result::Result<Arc<Machine>, String>;

static MACHINE: RwLock<Option<Arc<Machine>>> = RwLock::new(None);
static MAKE: RwLock<Option<Make>> = RwLock::new(None);
static INITIALIZED: AtomicBool = AtomicBool::new(false);

/// Sets how `aclInit` makes a machine.
pub fn make_with(make: Make) {
    *MAKE.write() = Some(make);
}

/// From now on every function uses `machine`, and `aclInit` has not been called. `None` removes the machine.
pub fn install(machine: Option<Arc<Machine>>) {
    if let Some(machine) = &machine {
        keep_time(Arc::downgrade(machine));
    }
    host_functions::forget();
    capture::forget();
    events::forget();
    allocators::forget();
    *MACHINE.write() = machine;
    INITIALIZED.store(false, Ordering::SeqCst);
}

/// While this exists, every function uses one machine, and other calls of [`exclusive`] wait.
pub struct Installed(#[allow(dead_code)] MutexGuard<'static, ()>);

/// Calls [`install`], and removes the machine when the value is dropped.
pub fn exclusive(machine: Arc<Machine>) -> Installed {
    static ONE: Mutex<()> = Mutex::new(());
    let installed = Installed(ONE.lock());
    install(Some(machine));
    installed
}

impl Drop for Installed {
    fn drop(&mut self) {
        install(None);
    }
}

pub(super) fn initialize() -> Result<()> {
    let mut machine = MACHINE.write();
    if INITIALIZED.load(Ordering::SeqCst) {
        return Err(REPEATED_INIT);
    }
    if machine.is_none() {
        let make = (*MAKE.read()).ok_or(super::NOT_SUPPORTED)?;
        let made = make().map_err(|why| {
            eprintln!("simascend: {why}");
            super::INVALID_PARAM
        })?;
        keep_time(Arc::downgrade(&made));
        *machine = Some(made);
    }
    INITIALIZED.store(true, Ordering::SeqCst);
    Ok(())
}

pub(super) fn finalize() -> Result<()> {
    // ACL_ERROR_REPEAT_FINALIZE
    let before = INITIALIZED.swap(false, Ordering::SeqCst);
    if before { Ok(()) } else { Err(100_037) }
}

/// The machine, once `aclInit` was called.
#[inline]
pub(super) fn get() -> Result<Arc<Machine>> {
    if !INITIALIZED.load(Ordering::Relaxed) {
        return Err(UNINITIALIZED);
    }
    MACHINE.read().clone().ok_or(UNINITIALIZED)
}

/// Lets the simulated clock follow the wall clock while the machine exists. In a process that has only the library, the
/// model's faults are printed on stderr; a real device would not report them.
fn keep_time(machine: Weak<Machine>) {
    let run = move || {
        let (start, mut passed, mut printed) = (Instant::now(), 0, 0);
        loop {
            std::thread::sleep(Duration::from_millis(1));
            let Some(machine) = machine.upgrade() else { return };
            let now = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            machine.advance(now - passed);
            passed = now;
            if MAKE.read().is_some() {
                let faults = machine.faults();
                for fault in faults.iter().skip(printed) {
                    eprintln!("simascend: {fault}");
                }
                printed = faults.len();
            }
        }
    };
    // Without the thread, only calls advance the time.
    let _ = std::thread::Builder::new().name("simascend-clock".into()).spawn(run);
}
