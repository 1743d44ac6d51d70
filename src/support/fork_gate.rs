//! Holds forks back while a descriptor is open and not yet noted where a forked child looks for what it has to close.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::process;

/// How long an opening waits for a fork. The fork may wait for a lock of the application that this thread holds.
const LONGEST_FORK: Duration = Duration::from_secs(1);

/// A thread opens a descriptor, or forks. A fork waits for an opening, and an opening waits for a fork.
static BUSY: AtomicBool = AtomicBool::new(false);

/// Runs `open`, which opens a descriptor and notes it. No other thread forks meanwhile. It must be short, and must not
/// call this function.
pub fn unseen<T>(open: impl FnOnce() -> T) -> T {
    static AT_FORK: Once = Once::new();
    // SAFETY: functions that may be called at any fork.
    AT_FORK.call_once(|| _ = unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) });
    // A signal handler of this thread that forks would wait for ever.
    process::without_signals(|| {
        let _open = enter(Some(LONGEST_FORK)).then_some(Leave);
        open()
    })
}

struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        after_fork();
    }
}

/// Waits until no other thread is here. False where that took longer than `most`.
fn enter(most: Option<Duration>) -> bool {
    let begun = Instant::now();
    while BUSY.swap(true, Ordering::Acquire) {
        if most.is_some_and(|most| begun.elapsed() >= most) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

extern "C" fn before_fork() {
    enter(None);
}

extern "C" fn after_fork() {
    BUSY.store(false, Ordering::Release);
}
