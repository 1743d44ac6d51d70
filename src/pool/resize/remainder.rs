//! Growth into the remainder of a range: memory that the work on the block before may still use.

use std::time::Instant;

use crate::pool::physical::dedicated_memory::Remainder;
use crate::pool::reclaim::wait::Wait;
use crate::pool::{Core, Pool};
use crate::support::error::{Error, Result};
use crate::sync::{MutexGuard, broken};

impl Pool {
    /// Waits, with the lock released, until the work has completed that may use the remainder: no longer than `wait_ms`.
    /// After a wait that was too short, no block of the pool gets such a range any more.
    pub(super) fn wait_for_remainder(&self, core: &mut MutexGuard<'_, Core>, remainder: Remainder) -> Result<()> {
        if broken("a block grows into its remainder once that is complete") {
            return Ok(());
        }
        let _entered = self.enter(&core.reclaimer.contexts)?;
        let mut wait = Wait::until(Instant::now() + self.options.wait);
        loop {
            let Core { memory, reclaimer, .. } = &mut **core;
            reclaimer.poll(self, memory)?;
            self.give_due_back(core)?;
            if !core.reclaimer.pending.has_remainder(remainder.number) {
                return Ok(());
            }
            let waited = match core.reclaimer.pending.event_of_remainder(remainder.number) {
                Some((context, event)) => wait.wait_for_event(self, core, context, event)?,
                None => wait.wait(self, core)?,
            };
            if !waited {
                core.reclaimer.growth_waited_in_vain = true;
                self.count_refused();
                return Err(Error::OutOfMemory(
                    "the work that used the memory behind the block did not end within wait_ms".into(),
                ));
            }
        }
    }
}
