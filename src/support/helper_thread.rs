//! The library's helper thread: it runs tasks at their times, and exists only while there are tasks.
//!
//! A process that schedules none has no such thread. The thread blocks all signals, since these are for the application's
//! threads. A forked child has no threads and schedules none. When the process exits, the thread ends, or is left alone if
//! a task does not end soon.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::support::process;

/// How long an exiting process waits for the task that runs.
const LAST: Duration = Duration::from_millis(200);

/// What the thread does again and again.
pub trait Task: Send + Sync {
    /// Does it once. Returns the time until it is to be done again; none if it need not be.
    fn run(&self) -> Option<Duration>;
}

struct Scheduled {
    due: Instant,
    task: Weak<dyn Task>,
}

#[derive(Default)]
struct State {
    tasks: Vec<Scheduled>,
    running: bool,
}

static STATE: Mutex<State> = Mutex::new(State {
    tasks: Vec::new(),
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
    if state.running {
        drop(state);
        CHANGED.notify_one();
        return true;
    }
    state.running = start();
    if !state.running {
        state.tasks.retain(|scheduled| !scheduled.task.ptr_eq(&task));
    }
    state.running
}

impl State {
    fn add(&mut self, task: Weak<dyn Task>, after: Duration) {
        if !self.tasks.iter().any(|scheduled| scheduled.task.ptr_eq(&task)) {
            let due = Instant::now() + after;
            self.tasks.push(Scheduled { due, task });
        }
    }
}

/// Starts the thread.
fn start() -> bool {
    static AT_EXIT: std::sync::Once = std::sync::Once::new();
    // SAFETY: a plain function that may be called at any time.
    AT_EXIT.call_once(|| _ = unsafe { libc::atexit(at_exit) });
    process::without_signals(|| {
        let thread = std::thread::Builder::new().name("trtalloc".into());
        thread.stack_size(256 << 10).spawn(serve).is_ok()
    })
}

fn serve() {
    let mut state = STATE.lock();
    loop {
        state.tasks.retain(|scheduled| scheduled.task.strong_count() > 0);
        let next = state
            .tasks
            .iter()
            .enumerate()
            .min_by_key(|(_, scheduled)| scheduled.due);
        let Some((at, due)) = next.map(|(at, scheduled)| (at, scheduled.due)) else {
            break;
        };
        if ENDING.load(Ordering::Acquire) {
            break;
        }
        // A wait for a time from now, not until a point in time: a test may shift the clock that the latter uses.
        let left = due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            CHANGED.wait_for(&mut state, left);
            continue;
        }
        let task = state.tasks.swap_remove(at).task;
        let again = parking_lot::MutexGuard::unlocked(&mut state, || {
            let strong = task.upgrade()?;
            // A panic ends the task, not the process.
            let run = std::panic::AssertUnwindSafe(|| strong.run());
            std::panic::catch_unwind(run).unwrap_or(None)
        });
        if let Some(after) = again {
            state.add(task, after);
        }
    }
    state.running = false;
}

extern "C" fn at_exit() {
    ENDING.store(true, Ordering::Release);
    if process::forked() {
        return;
    }
    let step = Duration::from_micros(100);
    let mut waited = Duration::ZERO;
    while waited < LAST {
        CHANGED.notify_one();
        // The thread that a signal interrupted may hold the lock.
        if STATE.try_lock().is_some_and(|state| !state.running) {
            return;
        }
        std::thread::sleep(step);
        waited += step;
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
