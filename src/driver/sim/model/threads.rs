//! A machine's data on each thread: its context, its capture mode, its counters. Access takes no lock.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;

use super::abort;
use super::functions::Call;
// The only name from outside this folder: a model's threads need loom's thread-locals.
#[cfg(loom)]
use crate::sync::thread_local;

/// One thread as one machine sees it. Only the thread itself writes here, except that `counts` may be reset.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct ThreadState {
    /// Unique for the process's life.
    pub(super) number: u64,
    /// Index + 1 of the current context; 0: none.
    pub(super) context: AtomicUsize,
    /// The thread's capture mode: 0 global, 1 thread-local, 2 relaxed.
    pub(super) mode: AtomicU32,
    /// Above 0, calls are not counted and do not fail.
    pub(super) exempt: AtomicU32,
    /// The context's id, and the slot of this thread's default stream in that context.
    pub(super) own_stream: (AtomicU64, AtomicU32),
    /// Calls made, by `Call`.
    pub(super) counts: [AtomicU64; Call::COUNT],
    /// The stack of current contexts (index + 1), the topmost last.
    pub(super) stack: Mutex<Vec<usize>>,
}

impl ThreadState {
    fn new(number: u64) -> ThreadState {
        ThreadState {
            number,
            context: AtomicUsize::new(0),
            mode: AtomicU32::new(0),
            exempt: AtomicU32::new(0),
            own_stream: (AtomicU64::new(0), AtomicU32::new(0)),
            counts: [const { AtomicU64::new(0) }; Call::COUNT],
            stack: Mutex::new(Vec::new()),
        }
    }

    /// Counts one call. Each thread has its own counters, so a plain addition loses nothing.
    #[inline]
    pub(super) fn count(&self, call: Call) {
        let counter = &self.counts[call as usize];
        counter.store(counter.load(Relaxed) + 1, Relaxed);
    }
}

/// All threads that used a machine.
#[derive(Debug)]
pub(super) struct Threads {
    /// Unique for the process's life, never 0.
    machine: u64,
    all: Mutex<HashMap<u64, Box<ThreadState>>>,
}

static NUMBERS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    // None of these has a destructor, so they can be read while a thread ends.
    static CACHED: Cell<(u64, *const ThreadState)> = const { Cell::new((0, std::ptr::null())) };
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as running a user object's destructor, in which no driver call is allowed.
pub(super) fn set_in_callback(on: bool) {
    CACHED.with(|cached| cached.set((0, std::ptr::null())));
    IN_CALLBACK.with(|flag| flag.set(on));
}

impl Threads {
    pub(super) fn new(machine: u64) -> Threads {
        Threads {
            machine,
            all: Mutex::new(HashMap::new()),
        }
    }

    /// The calling thread.
    #[inline]
    pub(super) fn here(&self) -> &ThreadState {
        let (machine, state) = CACHED.with(Cell::get);
        if machine == self.machine {
            // SAFETY: the box belongs to `self.all` and is removed only when `self` is dropped. Machine numbers are
            // never reused, so a cached pointer with this machine's number belongs to this machine.
            return unsafe { &*state };
        }
        self.look_up()
    }

    #[cold]
    fn look_up(&self) -> &ThreadState {
        if IN_CALLBACK.with(Cell::get) {
            abort("a driver call inside a user object's destructor");
        }
        let mut number = NUMBER.with(Cell::get);
        if number == 0 {
            number = NUMBERS.fetch_add(1, Relaxed);
            NUMBER.with(|own| own.set(number));
        }
        let mut all = self.all.lock();
        let state: *const ThreadState = &**all.entry(number).or_insert_with(|| Box::new(ThreadState::new(number)));
        CACHED.with(|cached| cached.set((self.machine, state)));
        // SAFETY: as in `here`: boxes do not move and live as long as `self`.
        unsafe { &*state }
    }

    /// Whether a context (its index + 1) is on some thread's stack.
    pub(super) fn has_current(&self, context: usize) -> bool {
        let all = self.all.lock();
        all.values().any(|thread| thread.stack.lock().contains(&context))
    }

    /// Whether a context (its index + 1) is current to another thread than `here`.
    pub(super) fn is_current_elsewhere(&self, here: &ThreadState, context: usize) -> bool {
        let all = self.all.lock();
        let mut others = all.values().filter(|thread| thread.number != here.number);
        others.any(|thread| thread.context.load(Relaxed) == context)
    }

    /// Sums a counter over all threads.
    pub(super) fn total(&self, call: Call) -> u64 {
        self.all
            .lock()
            .values()
            .map(|t| t.counts[call as usize].load(Relaxed))
            .sum()
    }
}
