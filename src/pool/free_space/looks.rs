//! Counts the nodes and owners that calls look at, for tests of how much work one call is, and one hold of the pool's lock.

use std::cell::Cell;

/// How many nodes and owners were looked at.
#[derive(Default)]
pub struct Looks {
    total: Cell<u64>,
    /// When the lock was given up last.
    before: Cell<u64>,
    longest: Cell<u64>,
}

impl Looks {
    pub fn count(&self) {
        self.total.set(self.total.get() + 1);
    }

    /// The lock is given up for a moment.
    pub fn pause(&self) {
        let hold = self.total.get() - self.before.get();
        self.longest.set(self.longest.get().max(hold));
        self.before.set(self.total.get());
    }

    /// How many nodes were looked at since the last call, and the most without a pause.
    pub fn take(&self) -> (u64, u64) {
        self.pause();
        self.before.set(0);
        (self.total.take(), self.longest.take())
    }
}
