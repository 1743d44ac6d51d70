//! `share_budget`: requests that wait for other processes, and looks for other processes' requests.

use std::sync::Weak;
use std::time::{Duration, Instant};

use super::*;
use crate::pool::{counters, sharing};
use crate::support::helper_thread::{self, Task};
use crate::support::shared_budget::{SharedBudget, jitter};

/// The time from one look for other processes' requests to the next: so much, and up to as much as `JITTER` more, so that
/// not all of them give back for the same request.
const LOOK: Duration = Duration::from_millis(75);
const JITTER: Duration = Duration::from_millis(50);

/// The longest time from one look at what is free of the budget to the next, for a request that waits.
const POLL: Duration = Duration::from_millis(4);
/// A request that waits is attempted again after so long, also where the budget has too little: other threads of this
/// process may have freed a block.
const ATTEMPT: Duration = Duration::from_millis(50);

/// Looks for other processes that are short.
pub(super) struct Looks(pub(super) Weak<Allocator>);

impl Task for Looks {
    fn run(&self) -> Option<Duration> {
        let allocator = self.0.upgrade()?;
        let usable = process::usable().is_ok();
        // Each pool has a budget of its own, and is asked in any case.
        let again = usable && allocator.all_pools().filter(|pool| pool.look_for_waiters()).count() > 0;
        again.then(next_look)
    }
}

fn next_look() -> Duration {
    LOOK + Duration::from_micros(jitter(JITTER.as_micros() as u64))
}

impl Allocator {
    /// The budget of a device that is to have a pool.
    pub(super) fn open_budget(&self, device: i32) -> Result<Option<Arc<SharedBudget>>> {
        let Some(option) = &self.config.share_budget else {
            return Ok(None);
        };
        if let MemorySource::External(..) = self.memory {
            return Ok(None);
        }
        let uuid = self.driver.device_uuid(device).map_err(|error| {
            Error::Unsupported(format!(
                "share_budget {option}: the device's UUID is not known: {error}"
            ))
        })?;
        let budget = SharedBudget::open(option, uuid);
        budget
            .map(Some)
            .map_err(|reason| Error::Io(format!("share_budget {option}: {reason}")))
    }

    /// Has the free memory of a new pool given back where other processes wait for it, from its first memory on.
    pub(super) fn begin_looking(&self, pool: &Pool) {
        if pool.shared_budget().is_none() {
            return;
        }
        let looks = self.looks.clone();
        pool.on_shared_memory(Box::new(move || {
            let task: Weak<dyn Task> = Arc::downgrade(&looks) as _;
            helper_thread::schedule(task, next_look())
        }));
    }

    /// Attempts a request that the budget refused again and again, until other processes have given back enough or `wait_ms`
    /// has passed. The pool gives back its own free memory first. No lock is held meanwhile, and only the first attempt
    /// counts as out of memory.
    pub(super) fn wait_for_budget<T>(
        &self,
        outcome: &mut Result<T>,
        (device, size): (i32, u64),
        again: &impl Fn() -> Result<T>,
    ) {
        let Some(deadline) = sharing::lacked_budget() else {
            return;
        };
        let Some(pool) = self.existing_pool(device) else { return };
        let Some(budget) = pool.shared_budget() else { return };
        let hopeless = |size: u64| size > budget.option().bytes || !pool.may_ever_hold(size);
        let wait = Duration::from_millis(self.config.wait_ms);
        let deadline = deadline.unwrap_or_else(|| Instant::now() + wait);
        let (mut waiting, mut first) = (None, true);
        while matches!(outcome, Err(Error::OutOfMemory(_))) && !hopeless(size) {
            let before = budget.free();
            // A budget that cannot be read does not become readable by waiting.
            if before.is_err() || pool.give_back_completed().is_err() {
                return;
            }
            let gave_back = budget.free() > before;
            let left = deadline.saturating_duration_since(Instant::now());
            let first = std::mem::replace(&mut first, false);
            if left.is_zero() && !(first && gave_back) {
                return;
            }
            if !gave_back {
                waiting.get_or_insert_with(|| budget.wait());
                wait_for_free(budget, size, left.min(ATTEMPT));
            }
            let _trying = out_of_memory::Retrying::begin();
            *outcome = counters::uncounted(|| sharing::until(deadline, again));
            // Something else is missing now.
            if outcome.is_err() && sharing::lacked_budget().is_none() {
                return;
            }
        }
    }
}

/// Waits until so many bytes of the budget are free, or the time has passed.
fn wait_for_free(budget: &SharedBudget, bytes: u64, most: Duration) {
    let begun = Instant::now();
    while budget.free().is_ok_and(|free| free < bytes) {
        let left = most.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return;
        }
        let pause = POLL / 2 + Duration::from_micros(jitter(POLL.as_micros() as u64 / 2));
        std::thread::sleep(pause.min(left));
    }
}
