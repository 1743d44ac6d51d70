//! What programs under `trtalloc run` tell of themselves.
//!
//! The command makes a file in memory and names it in the environment, as `/proc/PID/fd/N`: no descriptor is handed down, and
//! no file is left behind. A process that meets TensorRT, or uses its own allocator, takes a place in it and keeps its
//! figures there from then on. A thread writes them a few times a second, so that they hold, up to that, where the process
//! is killed; and once more as it exits. A process without that variable does nothing of this, nor does one that never meets
//! TensorRT.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::thread::{Builder, Thread};
use std::time::Duration;

use crate::process;
use crate::stats::Stats;

mod file;

pub use file::File;

/// The environment's name for the file. Not one of the options.
pub const VARIABLE: &str = "__TRTALLOC_TALLY";

/// How many processes there is room for; what later ones do is not counted.
const PLACES: usize = 255;

/// Between two writings of the figures.
const PERIOD: Duration = Duration::from_millis(200);

/// How long an exiting process waits for the last one. The thread may be kept from it: `exit` was called in a signal handler
/// that interrupted a call of the pool.
const LAST: Duration = Duration::from_millis(200);

/// One process's figures. Places are only ever written by their process, and read at any time.
#[repr(C)]
#[derive(Default)]
struct Place {
    pid: AtomicU32,
    /// The last TensorRT that was met, as createInfer* was given it; 0: none.
    version: AtomicI32,
    /// Objects of TensorRT's that got the allocator.
    attached: AtomicU32,
    /// Objects that were left with TensorRT's own.
    left: AtomicU32,
    /// The process came to its end by itself, so the figures are its last.
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
    /// [`magic`]: the same version of the library wrote it.
    magic: u64,
    /// Places asked for, which may be more than there are.
    taken: AtomicU64,
    places: [Place; PLACES],
}

/// Tells this file from others, and this layout from those of other versions.
const fn magic() -> u64 {
    let text = concat!("trtalloc tally ", env!("CARGO_PKG_VERSION")).as_bytes();
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
    /// Its number.
    pub pid: u32,
    /// The last TensorRT it met, as createInfer* was given it; 0: none.
    pub version: i32,
    /// Runtimes and builders that got the allocator.
    pub attached: u32,
    /// Those that were left with TensorRT's own.
    pub left: u32,
    /// Whether it came to its end by itself; else the figures are those of shortly before.
    pub ended: bool,
    /// Most bytes handed out at once, of all devices.
    pub allocated_peak: u64,
    /// Physical memory held, in bytes.
    pub reserved: u64,
    /// Most of it.
    pub reserved_peak: u64,
    /// Requests met.
    pub allocations: u64,
    /// Requests refused for want of memory.
    pub out_of_memory: u64,
}

/// TensorRT was asked for an object, by a program compiled with that version. The object got the process's own allocator, or
/// was left with TensorRT's; none: TensorRT made none.
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
    // The child of a fork shares the page with its parent; its figures are none of the parent's.
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

/// Starts the thread. The application's signals are not for it.
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
