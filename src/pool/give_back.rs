//! Memory goes back to the driver without the pool's lock, because the driver may wait before it unmaps or frees.
//!
//! A call takes memory out of the pool under the lock, lets it go without the lock, and notes under the lock what became of
//! it. What a poll found reusable and must go back is only noted there ([`Reclaimer::poll`] has no lock to give up); each
//! call that may have polled gives it back before it waits or returns ([`Pool::give_due_back`]).
//!
//! [`Reclaimer::poll`]: crate::pool::reclaim::Reclaimer
//!
//! Uses: free_space, physical, reclaim.

use std::time::{Duration, Instant};

use crate::pool::free_space::COMMON;
use crate::pool::physical::{Candidates, Leaving, PhysicalMemory, Quota};
use crate::pool::{Core, Pool};
use crate::support::error::Result;
use crate::sync::{MutexGuard, thread};

/// How many handles go back together, before other threads may find them gone.
pub(in crate::pool) const BATCH: usize = 16;

/// How many nodes or blocks are looked at before other threads may have the lock.
pub(in crate::pool) const SLICE: usize = 256;

/// How often a call looks anew for what may go back, because other threads changed the free space meanwhile.
const LOOKS: usize = 4;

/// How long a call that needs memory on its way back waits before it looks again.
const PAUSE: Duration = Duration::from_micros(50);
/// How long it waits at least, also with `wait_ms=0`: a batch takes about a millisecond.
const LEAST_WAIT: Duration = Duration::from_millis(10);

impl Pool {
    /// Gives memory back that was taken out of the pool, without the lock. Returns the bytes that went.
    pub(in crate::pool) fn let_go(&self, core: &mut MutexGuard<'_, Core>, mut leaving: Vec<Leaving>) -> u64 {
        without_lock(core, || leaving.iter_mut().for_each(|memory| memory.go(&self.calls)));
        let Core { memory, .. } = &mut **core;
        memory.physical.end_leaving(&mut memory.free_space, leaving)
    }

    /// Returns all memory that is free for every stream to the driver, without the lock, until at most `keep` bytes or the
    /// reserve are held. Returns the bytes.
    pub(in crate::pool) fn give_free_back(&self, core: &mut MutexGuard<'_, Core>, keep: u64) -> Result<u64> {
        self.give_free_back_while(core, |physical, _| {
            physical.held().saturating_sub(keep.max(physical.floor()))
        })
    }

    /// As [`Pool::give_free_back`], for as many bytes as `left` returns, which is passed what has gone.
    fn give_free_back_while(
        &self,
        core: &mut MutexGuard<'_, Core>,
        left: impl Fn(&PhysicalMemory, u64) -> u64,
    ) -> Result<u64> {
        let mut released = 0;
        loop {
            let physical = &mut core.memory.physical;
            let quota = Quota::AtLeast(left(physical, released));
            let leaving = physical.begin_leaving_cached(quota, BATCH);
            if leaving.is_empty() {
                break;
            }
            let ranges = leaving.iter().any(Leaving::is_range);
            let gone = self.let_go(core, leaving);
            released += gone;
            // The driver takes nothing back, or a close took everything. Ranges become cached handles.
            if gone == 0 && !ranges {
                return Ok(released);
            }
        }
        for _ in 0..LOOKS {
            let (physical, free_space) = (&core.memory.physical, &core.memory.free_space);
            if left(physical, released) == 0 || free_space.free_bytes(COMMON) == 0 {
                break;
            }
            let mut candidates = self.candidates(core)?;
            let gone =
                self.give_candidates_back(core, &mut candidates, |physical, gone| left(physical, released + gone));
            released += gone;
            if gone == 0 || !candidates.changed {
                break;
            }
        }
        Ok(released)
    }

    /// Gives `candidates` back for as many bytes as `left` returns, which is passed what has gone. Returns the bytes.
    fn give_candidates_back(
        &self,
        core: &mut MutexGuard<'_, Core>,
        candidates: &mut Candidates,
        left: impl Fn(&PhysicalMemory, u64) -> u64,
    ) -> u64 {
        let mut released = 0;
        loop {
            let Core { memory, .. } = &mut **core;
            let quota = Quota::AtLeast(left(&memory.physical, released));
            let leaving = memory
                .physical
                .begin_leaving(&mut memory.free_space, candidates, quota, BATCH);
            if leaving.is_empty() {
                return released;
            }
            match self.let_go(core, leaving) {
                0 => return released,
                gone => released += gone,
            }
        }
    }

    /// Gives back what a poll found reusable and must go back: with the lock given up meanwhile, so before the caller looks
    /// for memory, waits or returns. Returns whether anything went; an error where all memory was returned meanwhile.
    #[inline]
    pub(in crate::pool) fn give_due_back(&self, core: &mut MutexGuard<'_, Core>) -> Result<bool> {
        match core.memory.physical.has_due() {
            true => self.give_back_what_is_due(core),
            false => Ok(false),
        }
    }

    #[cold]
    fn give_back_what_is_due(&self, core: &mut MutexGuard<'_, Core>) -> Result<bool> {
        // It stays due where no driver call is possible now.
        let Ok(_entered) = self.enter(&core.reclaimer.contexts) else {
            return Ok(false);
        };
        let mut went = false;
        loop {
            let leaving = core.memory.physical.begin_leaving_due(BATCH);
            if leaving.is_empty() {
                break;
            }
            self.let_go(core, leaving);
            core.still_open()?;
            went = true;
        }
        let Core { memory, .. } = &mut **core;
        let (mut candidates, bytes, excess) = memory.physical.take_due(&memory.free_space);
        if bytes > 0 {
            let left = |_: &PhysicalMemory, gone| bytes.saturating_sub(gone);
            let gone = self.give_candidates_back(core, &mut candidates, left);
            core.still_open()?;
            let more = self.give_free_back_while(core, |_, more| bytes.saturating_sub(gone + more))?;
            went |= gone + more > 0;
        }
        if excess {
            let keep = core.reclaimer.threshold(self, &core.memory);
            went |= self.give_free_back(core, keep)? > 0;
        }
        core.still_open()?;
        Ok(went)
    }

    /// Handles and segments in common free space, in the order in which they go back. Other threads have the lock now and
    /// then meanwhile. An error where all memory was returned by them.
    pub(in crate::pool) fn candidates(&self, core: &mut MutexGuard<'_, Core>) -> Result<Candidates> {
        let (mut candidates, mut from) = (Candidates::default(), Some(1));
        while let Some(at) = from {
            let Core { memory, .. } = &mut **core;
            let (physical, free_space) = (&memory.physical, &memory.free_space);
            from = physical.look_for_candidates(free_space, (at, SLICE), &mut candidates);
            give_way(core)?;
        }
        without_lock(core, || candidates.sort());
        core.still_open()?;
        Ok(candidates)
    }

    /// Waits until no memory is on its way back to the driver, so that the caller finds it gone or free. It waits as long
    /// as a request may, since the driver may wait for work. Returns whether something came to its end; an error where
    /// all memory was returned meanwhile.
    pub(in crate::pool) fn wait_for_leaving(&self, core: &mut MutexGuard<'_, Core>) -> Result<bool> {
        if !core.memory.physical.is_leaving() {
            return Ok(false);
        }
        let deadline = Instant::now() + self.options.wait.max(LEAST_WAIT);
        // A model has no time: what leaves there comes to its end once its thread runs on.
        let in_time = || cfg!(loom) || Instant::now() < deadline;
        while core.memory.physical.is_leaving() && in_time() {
            without_lock(core, || match cfg!(loom) {
                true => thread::yield_now(),
                false => std::thread::sleep(PAUSE),
            });
        }
        core.still_open()?;
        Ok(!core.memory.physical.is_leaving())
    }
}

/// Lets other threads have the lock. An error where all memory was returned meanwhile.
pub(in crate::pool) fn give_way(core: &mut MutexGuard<'_, Core>) -> Result<()> {
    without_lock(core, thread::yield_now);
    core.still_open()
}

/// Does `work` while other threads may have the lock.
pub(in crate::pool) fn without_lock<T>(core: &mut MutexGuard<'_, Core>, work: impl FnOnce() -> T) -> T {
    #[cfg(test)]
    core.memory.free_space.looks.pause();
    MutexGuard::unlocked(core, work)
}
