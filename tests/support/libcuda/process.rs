//! The process's one machine.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config::{self, Config, Latency};
use crate::model::code::{INVALID_VALUE, NOT_SUPPORTED};
use crate::model::{Machine, MachineConfig};
use crate::{NOT_INITIALIZED, NOT_PERMITTED, host_functions};

/// The state that `cuInit` made.
pub(crate) struct Process {
    pub(crate) machine: Arc<Machine>,
    version: u32,
    spins: bool,
    start: Instant,
    /// How many nanoseconds since `start` the machine's clock has followed.
    followed: AtomicU64,
}

impl Process {
    /// Lets the simulated clock follow the wall clock. Calls that wait advance it further.
    pub(crate) fn tick(&self) {
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let before = self.followed.fetch_max(now, Ordering::Relaxed);
        if now > before {
            self.machine.advance(now - before);
        }
    }
}

static PROCESS: OnceLock<Result<Process, u32>> = OnceLock::new();
/// Set in the child of a fork, in which the driver cannot be used.
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// `cuInit`: makes the machine at the first call.
pub(crate) fn initialize() -> u32 {
    if FORKED.load(Ordering::Relaxed) {
        return NOT_INITIALIZED;
    }
    match PROCESS.get_or_init(make) {
        Ok(_) => TICKER.call_once(|| {
            // Without the thread, only calls advance the time.
            let _ = std::thread::Builder::new()
                .name("simcuda-clock".into())
                .spawn(keep_time);
        }),
        Err(code) => return *code,
    }
    0
}

/// Calls [`Process::tick`] of the process's machine.
pub(crate) fn tick() {
    if let Some(Ok(process)) = PROCESS.get() {
        process.tick();
    }
}

/// Prints new faults of the model on stderr. A real device would not report them, or only as a sticky error.
pub(crate) fn report_faults() {
    static PRINTED: Mutex<usize> = Mutex::new(0);
    let Some(Ok(process)) = PROCESS.get() else {
        return;
    };
    let faults = process.machine.faults();
    let mut printed = PRINTED.lock();
    for fault in faults.iter().skip(*printed) {
        eprintln!("simcuda: {fault}");
    }
    *printed = faults.len().max(*printed);
}

/// Advances the clock in the background, so that work completes and user objects are destroyed without calls.
fn keep_time() {
    while let Some(Ok(process)) = PROCESS.get() {
        std::thread::sleep(Duration::from_millis(1));
        process.tick();
        report_faults();
    }
}

static TICKER: Once = Once::new();

fn make() -> Result<Process, u32> {
    let refuse = |why: String| {
        eprintln!("simcuda: {why}");
        INVALID_VALUE
    };
    let config = Config::read().map_err(refuse)?;
    let defaults = MachineConfig::default();
    let machine = Machine::new(MachineConfig {
        devices: config.devices.unwrap_or(defaults.devices),
        memory: config.memory.unwrap_or(defaults.memory),
        version: config.version,
        addresses: config.addresses,
        ..defaults
    });
    for (call, n, code) in &config.failures {
        if !machine.fail_nth(Some(call), *n, *code) {
            return Err(refuse(format!(
                "SIMCUDA_FAIL names {call}, which is no function of the model"
            )));
        }
    }
    // SAFETY: the handler only stores to an atomic, which is allowed between fork and exec.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    Ok(Process {
        machine,
        version: config.version,
        spins: config.latency == Latency::Peers,
        start: Instant::now(),
        followed: AtomicU64::new(0),
    })
}

/// The machine, for a function that CUDA `since` added. Waits for the call's latency.
#[inline]
pub(crate) fn get(name: &'static str, since: u32) -> Result<&'static Process, u32> {
    let Some(Ok(process)) = PROCESS.get() else {
        return Err(NOT_INITIALIZED);
    };
    if FORKED.load(Ordering::Relaxed) {
        return Err(NOT_INITIALIZED);
    }
    if host_functions::inside() {
        return Err(NOT_PERMITTED);
    }
    if since > process.version {
        return Err(NOT_SUPPORTED);
    }
    if process.spins {
        spin(config::published_nanoseconds(name));
    }
    Ok(process)
}

#[cold]
fn spin(nanoseconds: u64) {
    let end = Instant::now() + Duration::from_nanos(nanoseconds);
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}
