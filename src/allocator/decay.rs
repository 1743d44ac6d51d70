//! Gives idle memory back at regular times: `decay_ms`.

use std::sync::Weak;
use std::time::Duration;

use super::*;
use crate::support::config::ReleaseThreshold;
use crate::support::helper_thread::{self, Task};

impl Allocator {
    /// Has idle memory of a new pool given back from its first memory on, as the options want it.
    pub(super) fn begin_decay(&self, pool: &Pool) {
        let keeps_all = self.config.release_threshold == ReleaseThreshold::All;
        if self.config.decay_ms == 0 || keeps_all || matches!(self.memory, MemorySource::External(..)) {
            return;
        }
        let (this, window) = (self.this.clone(), self.window());
        pool.on_memory(Box::new(move || {
            let task: Weak<dyn Task> = this.clone();
            helper_thread::schedule(task, window)
        }));
    }

    /// Ends a window of time: gives back what was idle throughout the last ones (see [`Pool::decay`]). Returns whether there
    /// is memory that may become idle later. The helper thread calls it, unless `decay_ms` is 0.
    pub fn end_window(&self) -> bool {
        process::usable().is_ok() && self.all_pools().filter(|pool| pool.decay()).count() > 0
    }

    /// The time from one look for idle memory to the next.
    fn window(&self) -> Duration {
        Duration::from_millis((self.config.decay_ms / crate::pool::WINDOWS).max(1))
    }
}

impl Task for Allocator {
    fn run(&self) -> Option<Duration> {
        self.end_window().then(|| self.window())
    }
}
