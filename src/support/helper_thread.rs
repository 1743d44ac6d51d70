//! The library's helper thread: it runs tasks at their times, serves a descriptor, and exists only while there is one of
//! these.
//!
//! A process that has neither has no such thread. The thread blocks all signals, since these are for the application's
//! threads. A forked child has no threads and schedules none. When the process exits, the thread ends, or is left alone if
//! a task does not end soon.

use std::os::fd::RawFd;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::support::own_descriptor::{WAKE_READ, WAKE_WRITE, pipe};
use crate::support::{own_descriptor, process};

/// How long an exiting process waits for the task that runs.
const LAST: Duration = Duration::from_millis(200);

/// The longest wait for a descriptor. The application may have closed the pipe that ends the wait.
const LONGEST: Duration = Duration::from_secs(60);

/// Writing a snapshot resolves symbols, which takes more than the decay of memory. Unused pages of a stack are not there.
const STACK: usize = 2 << 20;

/// What the thread does again and again.
pub trait Task: Send + Sync {
    /// Does it once. Returns the time until it is to be done again; none if it need not be.
    fn run(&self) -> Option<Duration>;

    /// The process exits, and [`Task::run`] is not called any more.
    fn last(&self) {}
}

/// What the thread serves between the tasks.
pub trait Source: Send + Sync {
    /// The descriptor to wait for; none where it is gone.
    fn descriptor(&self) -> Option<RawFd>;
    /// The descriptor may be readable. Tasks that become due meanwhile wait.
    fn serve(&self);
    /// The process exits, or the descriptor is gone.
    fn end(&self);
}

struct Scheduled {
    due: Instant,
    task: Weak<dyn Task>,
}

#[derive(Default)]
struct State {
    tasks: Vec<Scheduled>,
    source: Option<&'static dyn Source>,
    running: bool,
}

static STATE: Mutex<State> = Mutex::new(State {
    tasks: Vec::new(),
    source: None,
    running: false,
});
static CHANGED: Condvar = Condvar::new();
static ENDING: AtomicBool = AtomicBool::new(false);

/// Runs the task after that time, and then whenever it wants. It is dropped once nothing else holds it. A task that is
/// scheduled already stays as it is. False where no thread can be started, or the process exits or was forked.
pub fn schedule(task: Weak<dyn Task>, after: Duration) -> bool {
    if process::usable().is_err() || ENDING.load(Ordering::Acquire) {
        return false;
    }
    let mut state = STATE.lock();
    state.add(task.clone(), after);
    let runs = run_thread(state);
    if !runs {
        let mut state = STATE.lock();
        state.tasks.retain(|scheduled| !scheduled.task.ptr_eq(&task));
    }
    runs
}

/// Serves the descriptor of `source` until it is gone or the process exits. There is at most one source. False where
/// that is not possible.
pub fn serve(source: &'static dyn Source) -> bool {
    if process::usable().is_err() || ENDING.load(Ordering::Acquire) {
        return false;
    }
    let pipe = own_descriptor::unseen(|| {
        let (read, write) = pipe()?;
        WAKE_READ.put(read).and_then(|()| WAKE_WRITE.put(write))
    });
    if pipe.is_err() {
        return false;
    }
    let mut state = STATE.lock();
    state.source = Some(source);
    let runs = run_thread(state);
    if !runs {
        STATE.lock().source = None;
    }
    runs
}

/// Starts the thread, or wakes it where it runs.
fn run_thread(mut state: MutexGuard<'_, State>) -> bool {
    if state.running {
        drop(state);
        wake();
        return true;
    }
    state.running = start();
    state.running
}

fn wake() {
    CHANGED.notify_one();
    if let Some(descriptor) = WAKE_WRITE.get() {
        // SAFETY: the end of the pipe, which does not block. Where it is full, the thread will wake anyway.
        unsafe { libc::write(descriptor, [0u8].as_ptr().cast(), 1) };
    }
}

impl State {
    fn add(&mut self, task: Weak<dyn Task>, after: Duration) {
        if !self.tasks.iter().any(|scheduled| scheduled.task.ptr_eq(&task)) {
            let due = Instant::now() + after;
            self.tasks.push(Scheduled { due, task });
        }
    }

    /// The time until the next task is due.
    fn left(&self) -> Option<Duration> {
        let due = self.tasks.iter().map(|scheduled| scheduled.due).min()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// Takes the task that has been due for longest.
    fn take_due(&mut self) -> Option<Weak<dyn Task>> {
        let tasks = self.tasks.iter().enumerate();
        let (at, next) = tasks.min_by_key(|(_, scheduled)| scheduled.due)?;
        (next.due <= Instant::now()).then(|| self.tasks.swap_remove(at).task)
    }
}

/// Starts the thread.
fn start() -> bool {
    static AT_EXIT: std::sync::Once = std::sync::Once::new();
    // SAFETY: a plain function that may be called at any time.
    AT_EXIT.call_once(|| _ = unsafe { libc::atexit(at_exit) });
    process::without_signals(|| {
        let thread = std::thread::Builder::new().name("trtalloc".into());
        thread.stack_size(STACK).spawn(work).is_ok()
    })
}

fn work() {
    let mut state = STATE.lock();
    loop {
        state.tasks.retain(|scheduled| scheduled.task.strong_count() > 0);
        if ENDING.load(Ordering::Acquire) {
            break;
        }
        let due = state.take_due();
        let worked = due.is_some();
        if let Some(task) = due {
            let again = MutexGuard::unlocked(&mut state, || {
                let strong = task.upgrade()?;
                caught(|| strong.run())?
            });
            if let Some(after) = again {
                state.add(task, after);
            }
        }
        // A wait for a time from now, not until a point in time: a test may shift the clock that the latter uses.
        let left = if worked { Some(Duration::ZERO) } else { state.left() };
        match (state.source, left) {
            (None, None) => break,
            (None, Some(left)) => {
                if !left.is_zero() {
                    CHANGED.wait_for(&mut state, left);
                }
            }
            (Some(source), left) => {
                let patience = left.unwrap_or(LONGEST).min(LONGEST);
                let stays = MutexGuard::unlocked(&mut state, || {
                    let stays = attend(source, patience);
                    if !stays {
                        caught(|| source.end());
                    }
                    stays
                });
                if !stays {
                    state.source = None;
                }
            }
        }
    }
    if let Some(source) = state.source.take() {
        MutexGuard::unlocked(&mut state, || caught(|| source.end()));
    }
    for scheduled in std::mem::take(&mut state.tasks) {
        MutexGuard::unlocked(&mut state, || {
            scheduled.task.upgrade().and_then(|task| caught(|| task.last()))
        });
    }
    state.running = false;
}

/// A panic ends what runs, not the process.
fn caught<T>(run: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).ok()
}

/// Waits for the source's descriptor and serves it. False where it is gone.
fn attend(source: &dyn Source, patience: Duration) -> bool {
    let Some(descriptor) = source.descriptor() else {
        return false;
    };
    if poll(descriptor, libc::POLLIN, patience) {
        caught(|| source.serve());
    }
    true
}

/// Waits on the helper thread until `descriptor` is ready for `events`, for at most `patience`. False where it is not, or
/// the process exits.
pub fn wait_for(descriptor: RawFd, events: i16, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    while !ENDING.load(Ordering::Acquire) {
        let left = deadline.saturating_duration_since(Instant::now());
        if poll(descriptor, events, left) {
            return true;
        }
        if left.is_zero() {
            break;
        }
    }
    false
}

/// As [`wait_for`]; false also where something woke the thread.
fn poll(descriptor: RawFd, events: i16, patience: Duration) -> bool {
    let wake = WAKE_READ.get();
    let patience = if wake.is_some() {
        patience
    } else {
        patience.min(LAST / 2)
    };
    let of = |descriptor, events| libc::pollfd {
        fd: descriptor,
        events,
        revents: 0,
    };
    // A negative number is left out.
    let mut both = [of(descriptor, events), of(wake.unwrap_or(-1), libc::POLLIN)];
    let time = libc::timespec {
        tv_sec: patience.as_secs() as libc::time_t,
        tv_nsec: patience.subsec_nanos().into(),
    };
    // SAFETY: two entries and a time on this frame. The thread's mask of signals stays.
    let ready = unsafe { libc::ppoll(both.as_mut_ptr(), 2, &time, std::ptr::null()) };
    if ready > 0 && both[1].revents != 0 {
        let mut bytes = [0u8; 64];
        // SAFETY: the pipe's end, which does not block, and the buffer's own size.
        let read = unsafe { libc::read(both[1].fd, bytes.as_mut_ptr().cast(), bytes.len()) };
        if read == 0 {
            // The application closed the other end.
            WAKE_READ.close();
        }
    }
    ready > 0 && both[0].revents != 0
}

extern "C" fn at_exit() {
    ENDING.store(true, Ordering::Release);
    if process::forked() {
        return;
    }
    let step = Duration::from_micros(100);
    let mut waited = Duration::ZERO;
    while waited < LAST {
        wake();
        // The thread that a signal interrupted may hold the lock.
        if STATE.try_lock().is_some_and(|state| !state.running) {
            return;
        }
        std::thread::sleep(step);
        waited += step;
    }
    if let Some(source) = STATE.try_lock().and_then(|mut state| state.source.take()) {
        source.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    struct Countdown(AtomicU32);

    impl Task for Countdown {
        fn run(&self) -> Option<Duration> {
            let left = self.0.fetch_sub(1, Ordering::Relaxed) - 1;
            (left > 0).then_some(Duration::from_millis(1))
        }
    }

    fn wait(mut until: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !until() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn task_runs_until_it_needs_no_more() {
        let task = Arc::new(Countdown(AtomicU32::new(3)));
        let weak: Weak<dyn Task> = Arc::downgrade(&task) as _;
        for _ in 0..2 {
            assert!(schedule(weak.clone(), Duration::ZERO));
            assert!(schedule(weak.clone(), Duration::ZERO), "a second time changes nothing");
            wait(|| task.0.load(Ordering::Relaxed) == 0);
            wait(|| !STATE.lock().tasks.iter().any(|scheduled| scheduled.task.ptr_eq(&weak)));
            task.0.store(2, Ordering::Relaxed);
        }
    }

    #[test]
    fn task_that_panics_or_is_gone_ends_alone() {
        struct Panics;
        impl Task for Panics {
            fn run(&self) -> Option<Duration> {
                panic!("a task's panic, which the test wants");
            }
        }
        let (panics, gone): (Arc<dyn Task>, Arc<dyn Task>) = (Arc::new(Panics), Arc::new(Countdown(AtomicU32::new(9))));
        assert!(schedule(Arc::downgrade(&panics), Duration::ZERO));
        assert!(schedule(Arc::downgrade(&gone), Duration::from_millis(1)));
        drop(gone);
        let task = Arc::new(Countdown(AtomicU32::new(1)));
        let weak: Weak<dyn Task> = Arc::downgrade(&task) as _;
        assert!(schedule(weak, Duration::from_millis(2)));
        wait(|| task.0.load(Ordering::Relaxed) == 0);
    }
}
