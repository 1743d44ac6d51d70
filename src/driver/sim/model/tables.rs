//! Fixed tables of streams and contexts, and the clock: the data that queries read without a lock.
//!
//! Writers hold the machine's lock. A handle contains its machine, its kind and its index in a table, so a look-up is a
//! comparison and an array access.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The maximum of streams alive at one time in one machine.
pub(super) const STREAM_SLOTS: usize = 1 << 16;
/// The maximum of contexts at one time in one machine, with those on a thread's stack.
pub(super) const CONTEXT_SLOTS: usize = 1 << 12;

/// Not capturing.
pub(super) const CAPTURE_NONE: u32 = 0;
/// Capturing.
pub(super) const CAPTURE_ACTIVE: u32 = 1;
/// In a capture that was invalidated.
pub(super) const CAPTURE_DEAD: u32 = 2;
/// The legacy stream while a blocking stream of its context captures.
pub(super) const CAPTURE_IMPLIED: u32 = 3;

/// A call has an injected failure waiting.
pub(super) const FLAG_ARMED: u32 = 1;
/// A query has a latency.
pub(super) const FLAG_LATENCY: u32 = 2;
/// Latencies pass on the host, too.
pub(super) const FLAG_HOST: u32 = 4;

/// One stream handle.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct StreamSlot {
    /// The id of the stream that lives here; 0: none.
    pub(super) id: AtomicU64,
    /// Index of its context.
    pub(super) context: AtomicU32,
    /// Capture state.
    pub(super) capture: AtomicU32,
    /// The sticky error of its context; 0: none.
    pub(super) poison: AtomicU32,
}

/// One context handle.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct ContextSlot {
    /// The id of the context that lives here; 0: destroyed, reset or never made.
    pub(super) id: AtomicU64,
    /// Its device.
    pub(super) device: AtomicU32,
    /// The slot of its legacy stream.
    pub(super) legacy: AtomicU32,
    /// Whether a context was ever made here.
    pub(super) made: AtomicU32,
    /// Whether it is a green context.
    pub(super) green: AtomicU32,
}

/// What a handle refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum ObjectKind {
    Stream = 1,
    Context = 2,
    Event = 3,
    Graph = 4,
    Exec = 5,
}

/// The tables.
#[derive(Debug)]
pub(super) struct Tables {
    tag: usize,
    clock: AtomicU64,
    pub(super) flags: AtomicU32,
    /// How many captures run.
    pub(super) captures: AtomicU32,
    pub(super) streams: Box<[StreamSlot]>,
    pub(super) contexts: Box<[ContextSlot]>,
}

/// Zeroed memory that the system provides page by page as it is touched.
fn zeroed<T>(count: usize) -> Box<[T]> {
    let Ok(layout) = Layout::array::<T>(count) else {
        unreachable!("the tables are a few megabytes")
    };
    // SAFETY: the layout is not empty: both tables have entries of 64 bytes.
    let memory = unsafe { alloc_zeroed(layout) };
    if memory.is_null() {
        handle_alloc_error(layout);
    }
    // SAFETY: the memory has the layout of `[T; count]` and came from the global allocator. Both kinds of entries
    // consist of atomics only, for which all zeroes is a valid value.
    unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(memory.cast::<T>(), count)) }
}

impl Tables {
    pub(super) fn new(machine: u64) -> Tables {
        Tables {
            tag: (machine % 0x7fff) as usize + 1,
            clock: AtomicU64::new(1),
            flags: AtomicU32::new(0),
            captures: AtomicU32::new(0),
            streams: zeroed(STREAM_SLOTS),
            contexts: zeroed(CONTEXT_SLOTS),
        }
    }

    /// The simulated time in nanoseconds.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.clock.load(Acquire)
    }

    pub(super) fn advance(&self, ns: u64) {
        if ns > 0 {
            self.clock.fetch_add(ns, Release);
        }
    }

    /// Moves the clock forward to `time`, never back.
    pub(super) fn advance_to(&self, time: u64) {
        self.clock.fetch_max(time, Release);
    }

    /// The handle for index `n` of `kind`.
    #[inline]
    pub(super) fn handle(&self, kind: ObjectKind, n: usize) -> usize {
        self.tag << 48 | (kind as usize) << 44 | (n + 1) << 4
    }

    /// The index in a handle, if the handle is of this machine and of that kind.
    #[inline]
    pub(super) fn place(&self, kind: ObjectKind, handle: usize) -> Option<usize> {
        let n = (handle & ((1 << 44) - 1)) >> 4;
        (handle >> 44 == (self.tag << 4 | kind as usize) && handle & 15 == 0 && n > 0).then(|| n - 1)
    }

    pub(super) fn set_flag(&self, flag: u32, on: bool) {
        if on {
            self.flags.fetch_or(flag, Relaxed);
        } else {
            self.flags.fetch_and(!flag, Relaxed);
        }
    }
}
