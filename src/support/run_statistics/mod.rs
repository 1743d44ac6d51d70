//! Run statistics: what `trtalloc run` collects from the processes of a program.
//!
//! The command creates a file in memory and names it in the environment, as `/proc/PID/fd/N`. So processes inherit no
//! descriptor, and no file remains. A process that uses TensorRT, or its own allocator, takes a slot in the file and
//! updates its statistics there. A thread writes them a few times a second, so that little is lost where the process
//! is killed, and once more as the process exits. A process without that variable, or without TensorRT, does none of
//! this.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::thread::{Builder, Thread};
use std::time::Duration;

use crate::support::process;
use crate::support::stats::Stats;

mod file;

pub use file::File;

/// The environment variable that names the file. It is no option.
pub const VARIABLE: &str = "__TRTALLOC_RUN_STATISTICS";

/// How many processes there is room for; what later ones do is not counted.
const PLACES: usize = 255;

/// The time between two updates.
const PERIOD: Duration = Duration::from_millis(200);

/// How long an exiting process waits for the last update. The thread may be blocked, if `exit` was called in a signal
/// handler that interrupted a call of the pool.
const LAST: Duration = Duration::from_millis(200);

/// One process's slot. Only that process writes it; the command may read it at any time.
#[repr(C)]
#[derive(Default)]
struct Place {
    pid: AtomicU32,
    /// The last TensorRT version that was used, as createInfer* received it; 0: none.
    version: AtomicI32,
    /// How many of TensorRT's objects got the allocator.
    attached: AtomicU32,
    /// How many objects kept TensorRT's own allocator.
    left: AtomicU32,
    /// 1: the process exited by itself, so these are its last figures.
    ended: AtomicU32,
    padding: AtomicU32,
    allocated_peak: AtomicU64,
    reserved: AtomicU64,
    reserved_peak: AtomicU64,
    allocations: AtomicU64,
    out_of_memory: AtomicU64,
}

/// The file's layout.
#[repr(C)]
struct Shared {
    /// The value of [`magic`], which shows that the same version of the library wrote the file.
    magic: u64,
    /// How many slots were requested, which may be more than there are.
    taken: AtomicU64,
    places: [Place; PLACES],
}

/// Identifies the file, and the layout of this version.
const fn magic() -> u64 {
    let text = concat!("trtalloc run statistics ", env!("CARGO_PKG_VERSION")).as_bytes();
    let (mut hash, mut at) = (0xcbf2_9ce4_8422_2325u64, 0);
    while at < text.len() {
        hash = (hash ^ text[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    hash ^ size_of::<Shared>() as u64
}

/// What one process has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Its process id.
    pub pid: u32,
    /// The last TensorRT version it used, as createInfer* received it; 0: none.
    pub version: i32,
    /// How many runtimes and builders got the allocator.
    pub attached: u32,
    /// How many kept TensorRT's own.
    pub left: u32,
    /// Whether it exited by itself; else the figures are a little older than its end.
    pub ended: bool,
    /// Peak of allocated bytes, summed over devices.
    pub allocated_peak: u64,
    /// Bytes of physical memory held.
    pub reserved: u64,
    /// Peak of `reserved`.
    pub reserved_peak: u64,
    /// Requests that succeeded.
    pub allocations: u64,
    /// Requests refused because memory ran out.
    pub out_of_memory: u64,
}

/// Records that a program compiled with that version created an object of TensorRT. `attached` says whether the
/// object got the process's allocator; `None` where TensorRT created no object.
pub fn met(version: i32, attached: Option<bool>) {
    let Some(place) = joined() else { return };
    place.version.store(version, Ordering::Relaxed);
    if let Some(attached) = attached {
        let count = if attached { &place.attached } else { &place.left };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Calls its argument with the figures of each device.
pub type EachStats = fn(each: &mut dyn FnMut(Stats));

/// The process's own allocator is used, whose figures `stats` gives.
pub fn used(stats: EachStats) {
    let _ = STATS.set(stats);
    joined();
}

/// This process's place, taken at the first call; none where the environment names no file.
fn joined() -> Option<&'static Place> {
    static PLACE: OnceLock<Option<&'static Place>> = OnceLock::new();
    // The child of a fork shares the mapping with its parent, and its figures are not the parent's.
    if process::forked() {
        return None;
    }
    *PLACE.get_or_init(join)
}

#[cold]
fn join() -> Option<&'static Place> {
    process::watch();
    let shared = file::open(&file::named()?)?;
    let number = shared.taken.fetch_add(1, Ordering::Relaxed);
    let place = shared.places.get(usize::try_from(number).ok()?)?;
    place.pid.store(std::process::id(), Ordering::Relaxed);
    // Where there can be no thread, the place still says that TensorRT was met.
    if let Some(writer) = start(place) {
        let _ = WRITER.set(writer);
        // SAFETY: a plain function that may be called at any time.
        let _ = unsafe { libc::atexit(at_exit) };
    }
    Some(place)
}

/// Where the figures come from; unset while the process's own allocator is not in use.
static STATS: OnceLock<EachStats> = OnceLock::new();
static WRITER: OnceLock<Thread> = OnceLock::new();
static ENDING: AtomicBool = AtomicBool::new(false);
static ENDED: AtomicBool = AtomicBool::new(false);

/// Starts the thread, with all signals blocked, since these are for the application's threads.
fn start(place: &'static Place) -> Option<Thread> {
    // SAFETY: plain data, filled by the calls below.
    let (mut all, mut before) = unsafe { std::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>() };
    // SAFETY: both are sets of this frame.
    let masked = unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) == 0
    };
    let thread = Builder::new()
        .name("trtalloc".into())
        .stack_size(128 << 10)
        .spawn(move || write_on(place));
    if masked {
        // SAFETY: the mask from before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    }
    Some(thread.ok()?.thread().clone())
}

fn write_on(place: &Place) {
    while !ENDING.load(Ordering::Acquire) {
        write(place);
        std::thread::park_timeout(PERIOD);
    }
    write(place);
    place.ended.store(1, Ordering::Release);
    ENDED.store(true, Ordering::Release);
}

fn write(place: &Place) {
    let Some(stats) = STATS.get() else {
        return;
    };
    let mut sum = Stats::default();
    stats(&mut |stats| {
        sum.allocated_peak += stats.allocated_peak;
        sum.reserved += stats.reserved;
        sum.reserved_peak += stats.reserved_peak;
        sum.allocations += stats.allocations;
        sum.out_of_memory += stats.out_of_memory;
    });
    place.allocated_peak.store(sum.allocated_peak, Ordering::Relaxed);
    place.reserved.store(sum.reserved, Ordering::Relaxed);
    place.reserved_peak.store(sum.reserved_peak, Ordering::Relaxed);
    place.allocations.store(sum.allocations, Ordering::Relaxed);
    place.out_of_memory.store(sum.out_of_memory, Ordering::Relaxed);
}

extern "C" fn at_exit() {
    let Some(writer) = WRITER.get().filter(|_| !process::forked()) else {
        return;
    };
    ENDING.store(true, Ordering::Release);
    writer.unpark();
    let step = Duration::from_micros(100);
    let mut waited = Duration::ZERO;
    while !ENDED.load(Ordering::Acquire) && waited < LAST {
        std::thread::sleep(step);
        waited += step;
    }
}
