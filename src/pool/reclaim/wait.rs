//! A bounded wait for pending memory: after the last resort of a request, and part of trimming and closing.

use std::time::{Duration, Instant};

use crate::driver::{Context, Event, Failure};
use crate::pool::reclaim::pending::Awaited;
use crate::pool::reclaim::synchronization::Synchronization;
use crate::pool::reclaim::{OwnContext, Reclaimer};
use crate::pool::{Core, Pool, sharing};
use crate::support::error::Result;
use crate::sync::MutexGuard;

/// The pause between two looks at captures that run.
const CAPTURE_PAUSE: Duration = Duration::from_millis(1);

/// One call's waits: together they take no longer than the option `wait_ms` allows.
#[derive(Default)]
pub(in crate::pool) struct Wait {
    /// Set by the first wait.
    deadline: Option<Instant>,
    /// Everything that was freed has been covered by events once.
    covered: bool,
    /// It ends where it would wait for a capture.
    yields_to_captures: bool,
}

impl Wait {
    /// Waits until `deadline`.
    pub(in crate::pool) fn until(deadline: Instant) -> Wait {
        Wait {
            deadline: Some(deadline),
            ..Wait::default()
        }
    }

    /// Waits for nothing, and covers nothing.
    pub(in crate::pool) fn over() -> Wait {
        Wait {
            covered: true,
            ..Wait::until(Instant::now()).yielding_to_captures()
        }
    }

    /// The same wait, but it ends where it would wait for a capture.
    pub(in crate::pool) fn yielding_to_captures(self) -> Wait {
        Wait {
            yields_to_captures: true,
            ..self
        }
    }

    /// When it ends, if it has begun.
    pub(in crate::pool) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Covers everything that was freed by events, unless that was done before. Where a capture runs that the pool can
    /// see, the next call tries again.
    pub(in crate::pool) fn cover(&mut self, pool: &Pool, core: &mut Core) -> bool {
        if self.covered {
            return false;
        }
        let covered = core.reclaimer.cover_all(pool, &mut core.memory);
        self.covered = !core.reclaimer.prevented_by_capture;
        covered
    }

    /// Waits, with the lock released, for the oldest event that makes memory reusable. What no event covers yet is
    /// covered first: everything once, and then what was freed without a stream meanwhile. While a capture prevents that,
    /// it waits for the capture. False where there is nothing to wait for or no time left; an error where all memory was
    /// returned to the driver meanwhile.
    pub(in crate::pool) fn wait(&mut self, pool: &Pool, core: &mut MutexGuard<'_, Core>) -> Result<bool> {
        let begin = || sharing::deadline().unwrap_or_else(|| Instant::now() + pool.options.wait);
        let deadline = *self.deadline.get_or_insert_with(begin);
        core.reclaimer.prevented_by_capture = false;
        if self.cover(pool, core) {
            return Ok(true);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        if core.reclaimer.cover_filed(pool) {
            return Ok(true);
        }
        let seen = core.reclaimer.prevented_by_capture;
        let awaited = core.reclaimer.pending.awaited();
        // A synchronization ends captures, too.
        let synchronizes = matches!(awaited, Some(Awaited::Synchronization(..)));
        if seen && awaited.is_none() || synchronizes && (seen || core.reclaimer.sees_capture(pool)) {
            return match self.yields_to_captures {
                true => Ok(false),
                false => wait_for_captures(pool, core, deadline),
            };
        }
        let Some(awaited) = awaited else { return Ok(false) };
        let (context, outcome) = match awaited {
            Awaited::Event(context, event) => return self.wait_for_event(pool, core, context, event),
            Awaited::Synchronization(context, batch) => {
                let known = core.reclaimer.pending.synchronization.take();
                let known = known.filter(|of| of.context == context);
                let Some(begun) = known.or_else(|| Synchronization::begin(&pool.calls, context, batch)) else {
                    return Ok(false);
                };
                let outcome = MutexGuard::unlocked(core, || pool.counters.waits.time(|| begun.wait(left)));
                let pending = &mut core.reclaimer.pending;
                match outcome {
                    Some(Ok(())) => pending.synchronized(context, begun.batch),
                    Some(Err(_)) => {}
                    None => pending.synchronization = Some(begun),
                }
                (context, outcome.map_or(Ok(false), |outcome| outcome.map(|()| true)))
            }
        };
        waited(pool, core, context, outcome)
    }

    /// Waits, with the lock released, for an event of `context` until the deadline. As [`Wait::wait`] otherwise.
    pub(in crate::pool) fn wait_for_event(
        &self,
        pool: &Pool,
        core: &mut MutexGuard<'_, Core>,
        context: Context,
        event: Event,
    ) -> Result<bool> {
        let now = Instant::now();
        let left = self
            .deadline
            .map_or(pool.options.wait, |deadline| deadline.saturating_duration_since(now));
        let wait = || pool.calls.submit(|driver| driver.event_wait(event, left));
        core.reclaimer.waiting += 1;
        let outcome = MutexGuard::unlocked(core, || pool.counters.waits.time(wait));
        core.reclaimer.waiting -= 1;
        waited(pool, core, context, outcome)
    }
}

/// What a wait for work of `context` means for the call that waited.
fn waited(
    pool: &Pool,
    core: &mut MutexGuard<'_, Core>,
    context: Context,
    outcome: crate::driver::Result<bool>,
) -> Result<bool> {
    if core.closed {
        core.reclaimer.destroy_events(pool);
    }
    core.still_open()?;
    match outcome {
        Ok(came) => Ok(came),
        // A synchronization may be refused because of a capture that the pool cannot see.
        Err(error) if error.failure == Failure::Capture => {
            pool.driver().note_capture();
            Ok(false)
        }
        Err(error) => {
            core.reclaimer.context_failed(pool, context, error)?;
            Ok(true)
        }
    }
}

/// Waits until the captures that the pool sees now are known to have ended. False where the deadline comes first, also if a
/// capture that was waited for counts as over by then, only because no request was made inside it for long.
fn wait_for_captures(pool: &Pool, core: &mut MutexGuard<'_, Core>, deadline: Instant) -> Result<bool> {
    let seen = core.reclaimer.seen_captures(pool);
    while seen.iter().any(|capture| !capture.is_over()) || core.reclaimer.is_blocking_captured(pool) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        MutexGuard::unlocked(core, || std::thread::sleep(left.min(CAPTURE_PAUSE)));
        core.still_open()?;
    }
    Ok(true)
}

impl Reclaimer {
    /// Destroys the events, once no request waits for one. Without ids, it leaves the events of a context that the pool
    /// does not hold: the handle may belong to another context by now, and the events to the application.
    pub(in crate::pool) fn destroy_events(&mut self, pool: &Pool) {
        if self.waiting > 0 {
            return;
        }
        let ids = pool.driver().features().stream_ids;
        let OwnContext { context, primary, .. } = self.contexts.own;
        let ours = |of: Context| ids || primary && of == context;
        self.pending.destroy_events(&pool.calls, ours);
    }
}
