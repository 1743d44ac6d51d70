//! Run statistics: what `trtalloc run` collects from the processes of a program.
//!
//! The command creates a file in memory and names it in the environment, as `/proc/PID/fd/N`. So processes inherit no
//! descriptor, and no file remains. A process that uses TensorRT, or its own allocator, takes a slot in the file and
//! updates its statistics there. Once its allocator is in use, the helper thread writes them a few times a second, so that
//! little is lost where the process is killed, and once more as the process exits. A process without that variable, or without TensorRT, does none of
//! this.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::support::helper_thread::{self, Task};
use crate::support::process;
use crate::support::stats::Stats;

mod shared_file;

pub use shared_file::SharedFile;

/// The environment variable that names the file. It is no option.
pub const VARIABLE: &str = "__TRTALLOC_RUN_STATISTICS";

/// How many processes have a slot. Later processes are not counted.
const SLOTS: usize = 255;

/// The time between two updates.
const PERIOD: Duration = Duration::from_millis(200);

/// One process's slot. Only that process writes it; the command may read it at any time.
#[repr(C)]
#[derive(Default)]
struct Slot {
    pid: AtomicU32,
    /// The last TensorRT version that was used, as createInfer* received it; 0: none.
    version: AtomicI32,
    /// How many of TensorRT's objects got the allocator.
    attached: AtomicU32,
    /// How many objects kept TensorRT's own allocator.
    left: AtomicU32,
    /// 1: the process exited by itself, so the values are final.
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
struct FileLayout {
    /// The value of [`magic`], which shows that the same version of the library wrote the file.
    magic: u64,
    /// How many slots were requested, which may be more than there are.
    taken: AtomicU64,
    slots: [Slot; SLOTS],
}

/// Identifies the file, and the layout of this version.
const fn magic() -> u64 {
    let text = concat!("trtalloc run statistics ", env!("CARGO_PKG_VERSION")).as_bytes();
    let (mut hash, mut at) = (0xcbf2_9ce4_8422_2325u64, 0);
    while at < text.len() {
        hash = (hash ^ text[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    hash ^ size_of::<FileLayout>() as u64
}

/// The statistics of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessFigures {
    /// Its process id.
    pub pid: u32,
    /// The last TensorRT version it used, as createInfer* received it; 0: none.
    pub version: i32,
    /// How many runtimes and builders got the allocator.
    pub attached: u32,
    /// How many kept TensorRT's own allocator.
    pub left: u32,
    /// Whether it exited by itself. Otherwise the values are from shortly before its end.
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
pub fn record_object(version: i32, attached: Option<bool>) {
    let Some(slot) = own_slot() else { return };
    slot.version.store(version, Ordering::Relaxed);
    if let Some(attached) = attached {
        let count = if attached { &slot.attached } else { &slot.left };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Calls its second argument with the statistics of each device that has them so soon.
pub type EachStats = fn(patience: Option<Duration>, each: &mut dyn FnMut(Stats));

/// Records that the process's own allocator is in use. `stats` reads its statistics.
pub fn record_use(stats: EachStats) {
    let Some(slot) = own_slot() else { return };
    let task: Weak<dyn Task> = Arc::downgrade(WRITER.get_or_init(|| Arc::new(Writer { slot, stats }))) as _;
    if !helper_thread::schedule(task, Duration::ZERO) {
        WITHOUT_THREAD.store(true, Ordering::Relaxed);
    }
}

/// This process's slot, which the first call takes. `None` where the environment names no file.
fn own_slot() -> Option<&'static Slot> {
    static SLOT: OnceLock<Option<&'static Slot>> = OnceLock::new();
    // A forked child shares the mapping with its parent, and must not write to its parent's slot.
    if process::forked() {
        return None;
    }
    *SLOT.get_or_init(take_slot)
}

#[cold]
fn take_slot() -> Option<&'static Slot> {
    process::watch();
    let shared = shared_file::open(&shared_file::named()?)?;
    let number = shared.taken.fetch_add(1, Ordering::Relaxed);
    let slot = shared.slots.get(usize::try_from(number).ok()?)?;
    slot.pid.store(std::process::id(), Ordering::Relaxed);
    // SAFETY: a plain function that may be called at any time.
    let _ = unsafe { libc::atexit(at_exit) };
    Some(slot)
}

/// Set once the process's own allocator is in use.
static WRITER: OnceLock<Arc<Writer>> = OnceLock::new();

/// Set where the helper thread could not be started.
static WITHOUT_THREAD: AtomicBool = AtomicBool::new(false);

/// How long an exiting process without the helper thread waits for its figures. The thread that exits may have been
/// interrupted while it held a lock.
const PATIENCE: Duration = Duration::from_millis(200);

/// Updates the slot.
struct Writer {
    slot: &'static Slot,
    stats: EachStats,
}

impl Task for Writer {
    fn run(&self) -> Option<Duration> {
        self.write(None);
        Some(PERIOD)
    }

    fn last(&self) {
        self.end(None);
    }
}

impl Writer {
    fn end(&self, patience: Option<Duration>) {
        self.write(patience);
        self.slot.ended.store(1, Ordering::Release);
    }

    fn write(&self, patience: Option<Duration>) {
        let (slot, mut sum) = (self.slot, Stats::default());
        (self.stats)(patience, &mut |stats| {
            sum.allocated_peak += stats.allocated_peak;
            sum.reserved += stats.reserved;
            sum.reserved_peak += stats.reserved_peak;
            sum.allocations += stats.allocations;
            sum.out_of_memory += stats.out_of_memory;
        });
        slot.allocated_peak.store(sum.allocated_peak, Ordering::Relaxed);
        slot.reserved.store(sum.reserved, Ordering::Relaxed);
        slot.reserved_peak.store(sum.reserved_peak, Ordering::Relaxed);
        slot.allocations.store(sum.allocations, Ordering::Relaxed);
        slot.out_of_memory.store(sum.out_of_memory, Ordering::Relaxed);
    }
}

/// A process whose own allocator was never used has written everything. The helper thread ends the others, if there is one.
extern "C" fn at_exit() {
    if process::forked() {
        return;
    }
    match WRITER.get() {
        Some(writer) if WITHOUT_THREAD.load(Ordering::Relaxed) => {
            let end = std::panic::AssertUnwindSafe(|| writer.end(Some(PATIENCE)));
            let _ = std::panic::catch_unwind(end);
        }
        Some(_) => {}
        None => {
            if let Some(slot) = own_slot() {
                slot.ended.store(1, Ordering::Release);
            }
        }
    }
}
