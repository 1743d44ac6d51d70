//! Trimming, limits, and the end of a pool.

use std::time::{Duration, Instant};

use crate::pool::decide::Trigger;
use crate::pool::free_space::COMMON;
use crate::pool::give_back::{Others, without_lock};
use crate::pool::reclaim::wait::Wait;
use crate::pool::{Core, Pool};
use crate::support::error::Result;
use crate::support::process;
use crate::sync::atomic::Ordering;
use crate::sync::{broken, holds};

impl Pool {
    /// Returns memory to the driver until at most `keep` bytes are reserved. It waits for pending memory, at most as
    /// long as a request may. Returns the bytes.
    pub fn trim(&self, keep: u64) -> Result<u64> {
        let mut wait = Wait::default().yielding_to_captures();
        self.counters.trims.time(|| self.release_down_to(keep, &mut wait))
    }

    fn release_down_to(&self, keep: u64, wait: &mut Wait) -> Result<u64> {
        let mut core = self.admit()?;
        let mut others = Others::seen_by(&core);
        self.wait_for_leaving(&mut core, &mut others)?;
        let _entered = self.enter(&core.reclaimer.contexts)?;
        core.allowance.reset();
        let keep = keep.max(core.memory.physical.floor());
        let mut released = 0;
        loop {
            others.look(&core);
            let Core { memory, reclaimer, .. } = &mut *core;
            self.flush_all(&mut memory.free_space);
            // What the caches held counts as in use before.
            memory.free_space.lower_peaks();
            reclaimer.poll(self, memory)?;
            reclaimer.share_completed(memory, None);
            self.shrink_unused(&mut memory.free_space);
            if broken("what is in use is not unmapped") {
                for owner in memory.free_space.occupied().collect::<Vec<_>>() {
                    memory.free_space.transfer(owner, COMMON, u64::MAX, 0);
                }
            }
            let _ = self.give_due_back(&mut core)?;
            released += self.give_free_back(&mut core, keep)?;
            // Another thread may give memory back, too. Handles of its ranges are cached then.
            let more = self.wait_for_leaving(&mut core, &mut others)?;
            let Core { memory, reclaimer, .. } = &mut *core;
            // External memory stays. What was freed in it without a stream is covered.
            let stays = memory.physical.is_external && reclaimer.pending.sets.account().filed == 0;
            let done = stays || memory.physical.reserved() <= keep && !memory.physical.is_external;
            if done || !more && !wait.wait(self, &mut core)? {
                return Ok(released);
            }
        }
    }

    /// As [`Pool::trim`], for a request from outside the process, which comes at any moment: it waits for nothing and ends
    /// no capture. Only memory goes back whose work is known to have completed, and without the lock, since the driver may
    /// wait before it unmaps. With `confirms`, context events are recorded for what no event covers yet, unless a capture
    /// is known: each event ends captures that the pool cannot see.
    pub fn trim_completed(&self, keep: u64, confirms: bool) -> Result<u64> {
        self.counters.trims.time(|| self.release_completed(keep, confirms))
    }

    pub(in crate::pool) fn release_completed(&self, keep: u64, confirms: bool) -> Result<u64> {
        let mut core = self.admit()?;
        let _entered = self.enter(&core.reclaimer.contexts)?;
        core.allowance.reset();
        let Core { memory, reclaimer, .. } = &mut *core;
        self.flush_all(&mut memory.free_space);
        memory.free_space.lower_peaks();
        if confirms {
            reclaimer.cover(Trigger::GiveBack { all: true }, self, memory);
        }
        reclaimer.poll(self, memory)?;
        reclaimer.share_completed(memory, None);
        let of_streams = |owner| reclaimer.pending.is_owner(owner);
        if memory.physical.reserved() > keep && memory.free_space.occupied().any(of_streams) {
            // Streams that are active record an event at their next request.
            self.pressure_epoch.fetch_add(1, Ordering::Relaxed);
        }
        self.give_due_back(&mut core)?;
        self.give_free_back(&mut core, keep)
    }

    /// As [`Pool::set_limit`], for a request from outside the process: see [`Pool::trim_completed`].
    pub fn set_limit_without_wait(&self, bytes: u64) -> Result<()> {
        match self.lower_limit(bytes) {
            true => self.trim_completed(bytes, false).map(|_| ()),
            false => Ok(()),
        }
    }

    /// Sets the limit. Returns whether more is reserved.
    fn lower_limit(&self, bytes: u64) -> bool {
        let mut core = self.core.lock();
        core.memory.physical.limit = bytes;
        bytes != 0 && core.memory.physical.reserved() > bytes
    }

    /// Limits reserved memory; 0 means no limit. Free memory beyond the limit goes back at once, the rest when it is
    /// freed.
    pub fn set_limit(&self, bytes: u64) -> Result<()> {
        match self.lower_limit(bytes) {
            true => self.trim(bytes).map(|_| ()),
            false => Ok(()),
        }
    }

    /// Whether so many bytes are at most the limit and the device's memory.
    pub fn may_ever_hold(&self, bytes: u64) -> bool {
        let limit = self.core.lock().memory.physical.limit;
        let (_, total) = self.device_memory();
        [limit, total].iter().all(|most| *most == 0 || bytes <= *most)
    }

    /// Whether no block is in use, and every freed block is filed.
    pub fn is_idle(&self) -> bool {
        if broken("a close judges under the lock") {
            return self.in_use() == 0;
        }
        self.is_unused(&self.core.lock())
    }

    /// As [`Pool::is_idle`]. A free counts and files its block under the pool's lock, or under its cache's. So this
    /// misses neither a block between the two nor a free that came too late to see the end of the allocator. A
    /// dedicated allocation counts as in use only after the call that made it has released the lock, but is in the
    /// table before.
    fn is_unused(&self, _core: &Core) -> bool {
        let dedicated = || {
            holds(
                "a close checks dedicated allocations",
                self.dedicated.all().next().is_none(),
            )
        };
        self.in_use() == 0 && dedicated()
    }

    /// Returns everything to the driver once no block is in use. What has not completed within the longest wait of a
    /// request stays, and a later call goes on. It looks once without such a wait. Returns whether nothing is left.
    pub fn shut_down(&self) -> bool {
        let deadline = Instant::now() + self.options.wait.max(Duration::from_millis(1));
        let wait = Wait::until(deadline).yielding_to_captures();
        self.counters.trims.time(|| self.shut_down_within(wait))
    }

    /// Goes on with a close that left something, for the helper thread: it waits for nothing and ends no capture that the
    /// pool sees. Returns whether nothing is left.
    pub fn shut_down_later(&self) -> bool {
        if self.shut_down_within(Wait::over()) {
            return true;
        }
        if let Ok(mut core) = self.admit()
            && let Ok(_entered) = self.enter(&core.reclaimer.contexts)
        {
            let Core { memory, reclaimer, .. } = &mut *core;
            reclaimer.cover_later(self, memory);
        }
        false
    }

    fn shut_down_within(&self, mut wait: Wait) -> bool {
        if process::usable().is_err() || self.is_dead() {
            self.core.lock().memory.physical.forget();
            return true;
        }
        self.core.lock().memory.physical.reserve.bytes = 0;
        if self.release_down_to(0, &mut wait).is_err() {
            // Another call may have returned everything meanwhile.
            return self.core.lock().closed;
        }
        if !self.is_idle() {
            return false;
        }
        let mut core = self.core.lock();
        let mut others = Others::seen_by(&core);
        if self.wait_for_leaving(&mut core, &mut others).is_err() {
            return true;
        }
        let Ok(entered) = self.enter(&core.reclaimer.contexts) else {
            return false;
        };
        while !core.reclaimer.pending.sets.is_empty() && matches!(wait.wait(self, &mut core), Ok(true)) {
            let Core { memory, reclaimer, .. } = &mut *core;
            if reclaimer.poll(self, memory).is_err() {
                return false;
            }
            if self.give_due_back(&mut core).is_err() {
                return true;
            }
        }
        let empty = core.reclaimer.is_empty() && core.memory.physical.is_empty();
        // This comes last, because a request that came before the end may have been satisfied while the lock was
        // released.
        if !empty || !self.is_unused(&core) {
            return false;
        }
        // The events of a context that is gone went with it. Their handles may be the application's by now.
        let _ = core.reclaimer.drop_dead_contexts(self);
        core.reclaimer.destroy_events(self);
        if !std::mem::replace(&mut core.closed, true) {
            // Requests are refused from here on, so the addresses may go without the lock.
            let unreserve = |base| self.calls.submit(|driver| driver.unreserve(base, self.addresses.size));
            let returned = without_lock(&mut core, || self.addresses.base().map_or(Ok(()), unreserve));
            if let Err(error) = returned {
                core.closed = false;
                tracing::warn!(%error, "the address range could not be returned, and a later close tries again");
                return false;
            }
            self.addresses.gone();
            drop(entered);
            core.reclaimer.contexts.own.release(&self.calls, self.device);
        }
        drop(core);
        if let Some(budget) = self.shared_budget() {
            budget.close();
        }
        let _ = self.dead.set("the allocator was destroyed".into());
        true
    }
}
