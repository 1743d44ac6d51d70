//! Step 10 of the slow path: a bounded wait for pending memory.

use std::time::{Duration, Instant};

use crate::driver::Context;
use crate::pool::reclaim::Awaited;
use crate::pool::reclaim::synchronization::Synchronization;
use crate::pool::{Core, Home, Pool};
use crate::support::error::Result;
use crate::sync::MutexGuard;

impl Pool {
    /// Destroys the events, once no request waits for one. Without ids, it leaves the events of a context that the pool
    /// does not hold: the handle may belong to another context by now, and the events to the application.
    pub(in crate::pool) fn destroy_events(&self, core: &mut Core) {
        if core.waiting > 0 {
            return;
        }
        let ids = self.driver().features().stream_ids;
        let Home { context, primary, .. } = core.home;
        let ours = |of: Context| ids || primary && of == context;
        core.grace.destroy_events(&self.calls, ours);
    }

    /// Step 10 of the slow path: waits, with the lock released, for the oldest event that makes memory reusable. What
    /// no event covers yet is covered first, once. False where there is nothing to wait for or no time left; an error
    /// where all memory was returned to the driver meanwhile.
    pub(in crate::pool) fn wait(
        &self,
        core: &mut MutexGuard<'_, Core>,
        deadline: &mut Option<Instant>,
        covered: &mut bool,
    ) -> Result<bool> {
        let deadline = *deadline.get_or_insert_with(|| Instant::now() + self.options.wait);
        if !std::mem::replace(covered, true) && self.cover_all(core) {
            return Ok(true);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let Some(awaited) = core.grace.awaited().filter(|_| left > Duration::ZERO) else {
            return Ok(false);
        };
        let (context, outcome) = match awaited {
            Awaited::Event(context, event) => {
                let wait = || self.calls.submit(|driver| driver.event_wait(event, left));
                core.waiting += 1;
                let outcome = MutexGuard::unlocked(core, wait);
                core.waiting -= 1;
                (context, outcome)
            }
            Awaited::Synchronization(context, batch) => {
                let known = core.grace.synchronization.take().filter(|of| of.context == context);
                let begun = known.unwrap_or_else(|| Synchronization::begin(&self.calls, context, batch));
                let outcome = MutexGuard::unlocked(core, || begun.wait(left));
                match outcome {
                    Some(Ok(())) => core.grace.synchronized(context, begun.batch),
                    Some(Err(_)) => {}
                    None => core.grace.synchronization = Some(begun),
                }
                (context, outcome.map_or(Ok(false), |outcome| outcome.map(|()| true)))
            }
        };
        if core.closed {
            self.destroy_events(core);
        }
        core.still_open()?;
        match outcome {
            Ok(came) => Ok(came),
            Err(error) => {
                self.context_failed(core, context, error)?;
                Ok(true)
            }
        }
    }
}
