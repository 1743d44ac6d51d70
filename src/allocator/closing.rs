//! Goes on with the end of an allocator that was destroyed while work still used its memory.

use std::sync::Weak;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::*;
use crate::support::helper_thread::{self, Task};

/// The milliseconds to the first look after a close, and the most from one look to the next. Each takes twice as long as
/// the one before.
const FIRST: u64 = 10;
const LONGEST: u64 = 1000;

/// Looks whether a destroyed allocator can give more back, until it has nothing left.
pub(super) struct Closing {
    of: Weak<Allocator>,
    /// The milliseconds until the next look.
    pause: AtomicU64,
}

impl Closing {
    pub(super) fn new(of: Weak<Allocator>) -> Closing {
        let pause = AtomicU64::new(FIRST);
        Closing { of, pause }
    }

    fn next(&self) -> Duration {
        let pause = self.pause.load(Ordering::Relaxed);
        self.pause.store((pause * 2).min(LONGEST), Ordering::Relaxed);
        Duration::from_millis(pause)
    }
}

impl Task for Closing {
    fn run(&self) -> Option<Duration> {
        let allocator = self.of.upgrade()?;
        process::usable().ok()?;
        // Where blocks are left, the free of the last one begins anew.
        let idle = allocator.all_pools().filter(|pool| pool.is_idle());
        let left = idle.filter(|pool| !pool.shut_down_later()).count();
        let unbuilt = !allocator.return_unbuilt();
        (left > 0 || unbuilt).then(|| self.next())
    }
}

impl Allocator {
    /// Has the helper thread go on with a close.
    pub(super) fn close_later(&self) {
        // A task keeps no allocator, and without a driver that knows work nothing comes back by itself.
        if self.this.strong_count() == 0 || !self.driver.knows_work() {
            return;
        }
        self.closing.pause.store(FIRST, Ordering::Relaxed);
        let task = Arc::downgrade(&self.closing);
        helper_thread::schedule(task, self.closing.next());
    }
}
