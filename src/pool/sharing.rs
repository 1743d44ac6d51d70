//! `share_budget`: what a pool does while it, or another process, is short.
//!
//! A request that the budget refuses gives back the free memory of its own pool, shows that it waits, and is tried again
//! for as long as `wait_ms` allows; it holds no lock meanwhile (`src/allocator/sharing.rs`). The other processes look for
//! such a request every 100 ms while they hold free memory ([`Pool::look_for_waiters`]), and give back what has completed,
//! above their reserve. That waits for no work and ends no capture. While another process waits, no pool obtains more than
//! its requests need.
//!
//! Uses: free_space, physical, reclaim, stream_cache.

use std::cell::Cell;
use std::time::Instant;

use crate::driver::DriverError;
use crate::pool::budgeted_driver::is_of_budget;
use crate::pool::{Pool, StartTimer};
use crate::support::error::Result;
use crate::support::shared_budget::SharedBudget;
use crate::sync::atomic::Ordering;

thread_local! {
    /// This thread's last refusal, where it was the budget's: until when the request may wait, where it has begun to.
    static REFUSED: Cell<Option<Option<Instant>>> = const { Cell::new(None) };
    /// Until when this thread's request waits, where an attempt before has begun to wait.
    static UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Whether the last request of this thread that was refused lacked a part of the budget, and until when it may wait, where
/// it has begun to. The question clears the answer.
pub fn lacked_budget() -> Option<Option<Instant>> {
    REFUSED.try_with(Cell::take).unwrap_or_default()
}

/// Runs an attempt whose waits end at `deadline`.
pub fn until<T>(deadline: Instant, attempt: impl FnOnce() -> T) -> T {
    let before = UNTIL
        .try_with(|until| until.replace(Some(deadline)))
        .unwrap_or_default();
    let outcome = attempt();
    let _ = UNTIL.try_with(|until| until.set(before));
    outcome
}

/// When an attempt of this thread ends to wait, if that is set.
pub(in crate::pool) fn deadline() -> Option<Instant> {
    UNTIL.try_with(Cell::get).unwrap_or_default()
}

impl Pool {
    /// The budget that the pool shares with other processes.
    pub fn shared_budget(&self) -> Option<&SharedBudget> {
        self.calls.shared_budget()
    }

    /// Notes whether a request is refused for the budget, and until when it waits.
    pub(in crate::pool) fn note_refusal(&self, refusal: Option<&DriverError>, deadline: Option<Instant>) {
        if self.shared_budget().is_some() {
            let lacked = refusal.is_some_and(is_of_budget).then_some(deadline);
            let _ = REFUSED.try_with(|refused| refused.set(lacked));
        }
    }

    /// The budget in words, where it refused the memory.
    pub(in crate::pool) fn describe_budget(&self, refusal: &DriverError) -> Option<String> {
        let budget = self.shared_budget().filter(|_| is_of_budget(refusal))?;
        let option = budget.option();
        Some(match budget.free() {
            Ok(free) => format!(
                "share_budget {option}: {free} bytes of it are free, and this process holds {}",
                budget.held()
            ),
            Err(reason) => format!("share_budget {option}: {reason}"),
        })
    }

    /// How a look at the budget at regular times begins, once there is memory.
    pub fn on_shared_memory(&self, start: StartTimer) {
        let _ = self.start_looking.set(start);
    }

    /// The pool may have obtained memory.
    #[inline]
    pub(in crate::pool) fn note_shared_memory(&self) {
        if let Some(start) = self.start_looking.get()
            && !self.looking.load(Ordering::Relaxed)
            && !self.looking.swap(true, Ordering::AcqRel)
            && !start()
        {
            self.looking.store(false, Ordering::Release);
        }
    }

    /// Gives free memory back if another process waits for a part of the budget, and locks what it holds again if the locks
    /// were lost. Returns whether the pool has memory, so that it should look again.
    pub fn look_for_waiters(&self) -> bool {
        let reserved = {
            let core = self.core.lock();
            let reserved = core.memory.physical.reserved();
            if reserved == 0 {
                // The lock is held, so a request that finds the flag set has not grown the pool yet.
                self.looking.store(false, Ordering::Release);
                return false;
            }
            reserved
        };
        if let Some(budget) = self.shared_budget() {
            budget.refresh();
        }
        if reserved > self.in_use()
            && self.calls.others_wait()
            && let Err(error) = self.give_back_completed()
        {
            tracing::debug!(device = self.device, %error, "nothing was given back for share_budget");
        }
        true
    }

    /// Gives back all memory whose work has completed, above the reserve. It waits for nothing. What no event covers yet is
    /// covered, so that a later call finds it, unless that could end a capture.
    pub fn give_back_completed(&self) -> Result<()> {
        let (leaves, covered) = {
            let core = self.core.lock();
            (core.memory.physical.is_leaving(), core.reclaimer.pending.has_batches())
        };
        // Another thread gives back already, or decay does.
        if leaves {
            return Ok(());
        }
        self.release_completed(0, !covered).map(|_| ())
    }
}
