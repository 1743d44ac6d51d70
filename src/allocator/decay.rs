//! Gives idle memory back at regular times: `decay_ms`.

use std::sync::Weak;
use std::time::Duration;

use super::*;
use crate::support::config::ReleaseThreshold;
use crate::support::helper_thread::{self, Task};

impl Allocator {
    /// Has a new pool's first memory begin what the helper thread does, as the options want it: idle memory is given back,
    /// and the control socket is served.
    pub(super) fn begin_help(&self, pool: &Pool) {
        let keeps_all = self.config.release_threshold == ReleaseThreshold::All;
        let is_external = matches!(self.memory, MemorySource::External(..));
        let decays = self.config.decay_ms != 0 && !keeps_all && !is_external;
        let controlled = self.config.control;
        if !decays && !controlled {
            return;
        }
        let (this, window) = (self.this.clone(), self.window());
        pool.on_memory(Box::new(move || {
            if controlled {
                super::commands::begin();
            }
            let task: Weak<dyn Task> = this.clone();
            !decays || helper_thread::schedule(task, window)
        }));
    }

    /// Ends a window of time: gives back what was idle throughout the last ones (see [`Pool::decay`]). Returns whether there
    /// is memory that may become idle later. The helper thread calls it, unless `decay_ms` is 0.
    #[doc(hidden)]
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
