//! Memory goes back to the driver without the pool's lock, because the driver may wait before it unmaps or frees.
//!
//! A call takes memory out of the pool under the lock, lets it go without the lock, and notes under the lock what became of
//! it. What a poll found reusable and must go back is only noted there ([`Reclaimer::poll`] has no lock to give up); each
//! call that may have polled gives it back before it waits or returns ([`Pool::give_due_back`]).
//!
//! [`Reclaimer::poll`]: crate::pool::reclaim::Reclaimer
//!
//! Uses: free_space, physical, reclaim.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::pool::free_space::{COMMON, FreeSpace};
use crate::pool::physical::{Candidates, Leaving, Locked, PhysicalMemory, Quota};
use crate::pool::{Core, Pool, sharing};
use crate::support::error::Result;
#[cfg(loom)]
use crate::sync::thread_local;
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

thread_local! {
    /// How many batches of memory this thread has let go.
    static OWN: Cell<u64> = const { Cell::new(0) };
}

impl Locked for MutexGuard<'_, Core> {
    fn parts(&mut self) -> (&mut PhysicalMemory, &mut FreeSpace) {
        let Core { memory, .. } = &mut **self;
        (&mut memory.physical, &mut memory.free_space)
    }

    fn unlocked<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let done = without_lock(self, work);
        OWN.with(|own| own.set(own.get() + 1));
        done
    }
}

/// One call's waits for memory that other calls let go: together they take no longer than one request may wait.
#[derive(Default)]
pub(in crate::pool) struct Others {
    /// How many batches others had let go when the call last began to look for memory.
    seen: u64,
    /// Set by the first wait.
    deadline: Option<Instant>,
    /// The call has looked again after that.
    over: bool,
}

impl Others {
    /// The call begins to look for memory.
    pub(in crate::pool) fn look(&mut self, core: &Core) {
        self.seen = Others::ended(core);
    }

    /// As [`Others::look`].
    pub(in crate::pool) fn seen_by(core: &Core) -> Others {
        Others {
            seen: Others::ended(core),
            ..Others::default()
        }
    }

    /// How many batches have come to their end, but for those of this thread. Only the difference of two numbers means
    /// something.
    fn ended(core: &Core) -> u64 {
        let all = core.memory.physical.ended_batches();
        OWN.with(|own| all.wrapping_sub(own.get()))
    }
}

impl Pool {
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
        let (mut released, refused) = give_cached_back(core, |physical, gone| Quota::AtLeast(left(physical, gone)));
        if refused {
            return Ok(released);
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
            match core.let_go(leaving).gone {
                0 => return released,
                gone => released += gone,
            }
        }
    }

    /// Gives back what a poll found reusable and must go back: with the lock given up meanwhile, so before the caller looks
    /// for memory, waits or returns. Returns whether anything went; an error where all memory was returned meanwhile.
    #[inline]
    pub(in crate::pool) fn give_due_back(&self, core: &mut MutexGuard<'_, Core>) -> Result<bool> {
        match core.memory.physical.has_due() || core.reclaimer.has_due_tails() {
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
        let leaving = core.memory.physical.begin_leaving_again();
        let mut went = core.let_go(leaving).bytes() > 0;
        core.still_open()?;
        went |= self.return_due_tails(core);
        core.still_open()?;
        loop {
            let leaving = core.memory.physical.begin_leaving_due(BATCH);
            if leaving.is_empty() {
                break;
            }
            core.let_go(leaving);
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

    /// Where memory leaves, this waits until other calls have let some go, so that the caller finds it gone or free. It waits
    /// as long as a request may, since the driver may wait for work. Returns whether others have let memory go since the
    /// caller last began to look; after the deadline, only once. An error where all memory was returned meanwhile.
    pub(in crate::pool) fn wait_for_leaving(
        &self,
        core: &mut MutexGuard<'_, Core>,
        others: &mut Others,
    ) -> Result<bool> {
        let begin = || {
            let now = Instant::now();
            let deadline = sharing::deadline().unwrap_or_else(|| now + self.options.wait);
            deadline.max(now + LEAST_WAIT)
        };
        while Others::ended(core) == others.seen && core.memory.physical.is_leaving() {
            // A model has no time: what leaves there comes to its end once its thread runs on.
            if !cfg!(loom) && Instant::now() >= *others.deadline.get_or_insert_with(begin) {
                break;
            }
            without_lock(core, || match cfg!(loom) {
                true => thread::yield_now(),
                false => std::thread::sleep(PAUSE),
            });
        }
        core.still_open()?;
        if others.over {
            return Ok(false);
        }
        others.over = !cfg!(loom) && others.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        Ok(Others::ended(core) != others.seen)
    }
}

/// Gives cached handles back, and once those are gone, cached ranges, for as many bytes as `quota` returns, which is passed
/// what has gone. Returns the bytes, and whether it ended because the driver takes nothing back.
pub(in crate::pool) fn give_cached_back(
    core: &mut MutexGuard<'_, Core>,
    quota: impl Fn(&PhysicalMemory, u64) -> Quota,
) -> (u64, bool) {
    let mut released = 0;
    loop {
        let physical = &mut core.memory.physical;
        let quota = quota(physical, released);
        let leaving = physical.begin_leaving_cached(quota, BATCH);
        if leaving.is_empty() {
            return (released, false);
        }
        let ranges = leaving.iter().any(Leaving::is_range);
        let gone = core.let_go(leaving).gone;
        released += gone;
        // The driver takes nothing back, or a close took everything. Ranges become cached handles.
        if gone == 0 && !ranges {
            return (released, true);
        }
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
