//! Decay: memory that was free for `decay_ms` goes back to the driver, also while the process is idle.
//!
//! Time is divided into windows of a quarter of `decay_ms`. At the end of each one, a thread of the library
//! (`support/helper_thread`) calls [`Pool::decay`]. What the requests of the last four windows left free throughout
//! ([`IdleBytes`]) goes back. So a shape that comes back within `decay_ms` finds its memory mapped.
//!
//! Only memory goes back whose work is known to have completed. Where what is idle is not covered by an event yet,
//! streams that are active record one at their next request. Context events cover the others, unless a capture is known.
//!
//! [`IdleBytes`]: crate::pool::free_space::IdleBytes
//!
//! Uses: free_space, physical, reclaim, stream_cache.

use crate::pool::decide::Trigger;
use crate::pool::free_space::{self, COMMON, FreeRange, OwnerSet};
use crate::pool::give_back::{BATCH, SLICE, give_way, without_lock};
use crate::pool::physical::{Candidates, Leaving, Locked, Quota};
use crate::pool::{Core, Pool, StartTimer};
use crate::support::config::ReleaseThreshold;
use crate::support::error::Result;
use crate::support::sort;
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;

/// How many windows make up `decay_ms`.
pub const WINDOWS: u64 = free_space::WINDOWS as u64;

/// What a pool remembers from one window to the next.
#[derive(Default)]
pub(in crate::pool) struct Decay {
    /// At the end of the last window, something was freed that no event covered.
    uncovered: bool,
}

impl Pool {
    /// How idle memory begins to be looked for, once there is memory. Without it, it is looked for only where the caller
    /// calls [`Pool::decay`].
    pub fn on_memory(&self, start: StartTimer) {
        let _ = self.start_decay.set(start);
    }

    /// The pool may have obtained memory.
    #[inline]
    pub(in crate::pool) fn note_memory(&self) {
        if !self.decaying.load(Ordering::Relaxed) {
            self.begin_decay();
        }
        self.note_shared_memory();
    }

    #[cold]
    fn begin_decay(&self) {
        if let Some(start) = self.start_decay.get()
            && !self.decaying.swap(true, Ordering::AcqRel)
            && !start()
        {
            self.decaying.store(false, Ordering::Release);
        }
    }

    /// Ends a window of time, and gives back what was idle throughout the last ones. Returns whether the pool has memory
    /// that may become idle later. If not, `decaying` is cleared.
    pub fn decay(&self) -> bool {
        let Ok(mut core) = self.admit() else {
            self.decaying.store(false, Ordering::Release);
            return false;
        };
        if core.memory.physical.reserved() == 0 || core.memory.physical.is_external {
            // The lock is held, so a request that finds the flag set has not grown the pool yet.
            self.decaying.store(false, Ordering::Release);
            return false;
        }
        let Ok(_entered) = self.enter(&core.reclaimer.contexts) else {
            return true;
        };
        self.flush_all(&mut core.memory.free_space);
        let Core { memory, reclaimer, .. } = &mut *core;
        if reclaimer.poll(self, memory).is_err() {
            return true;
        }
        if self.give_due_back(&mut core).is_err() {
            return true;
        }
        let Core { memory, .. } = &mut *core;
        memory.free_space.end_window();
        self.shrink_unused(&mut memory.free_space);
        memory.physical.end_window();
        // All memory may be returned while the lock is given up. The next call notices that.
        let _ = self.give_idle_back(&mut core);
        true
    }

    fn give_idle_back(&self, core: &mut MutexGuard<'_, Core>) -> Result<()> {
        self.set_idle_apart(core)?;
        self.cover_idle(core);
        self.cut_unneeded(core)?;
        let keep = match self.options.release_threshold {
            ReleaseThreshold::Bytes(bytes) => bytes,
            ReleaseThreshold::All => u64::MAX,
            ReleaseThreshold::Auto => 0,
        };
        let mut candidates = None;
        // A request that waits for its budget gives back already.
        while !core.memory.physical.is_leaving() {
            let mut leaving = core.begin_leaving_cached(keep);
            if leaving.is_empty() && core.idle(keep) > 0 {
                let candidates = match &mut candidates {
                    Some(candidates) => candidates,
                    // Other threads may give memory back meanwhile.
                    none => {
                        *none = Some(self.candidates(core)?);
                        continue;
                    }
                };
                leaving = core.begin_leaving(keep, candidates);
            }
            if leaving.is_empty() {
                return Ok(());
            }
            core.let_go(leaving);
        }
        Ok(())
    }

    /// Sets apart what streams did not need in the last windows. It becomes common free space once its work has completed.
    /// Other threads have the lock now and then meanwhile. An error where all memory was returned by them.
    fn set_idle_apart(&self, core: &mut MutexGuard<'_, Core>) -> Result<()> {
        let page = core.memory.physical.page;
        let free_space = &core.memory.free_space;
        let owners = core.reclaimer.pending.owners();
        let mut idle = OwnerSet::default();
        owners
            .filter(|owner| free_space.idle(*owner) >= page)
            .for_each(|owner| idle.set(owner, true));
        if idle.count() == 0 {
            return Ok(());
        }
        let (mut ranges, mut from): (Vec<FreeRange>, _) = (Vec::new(), Some(1));
        while let Some(at) = from {
            from = core.memory.free_space.look(at, SLICE, |range| {
                if idle.has(range.owner) {
                    ranges.push(range);
                }
            });
            give_way(core)?;
        }
        // The smallest ones go first, as a whole.
        without_lock(core, || sort::by_key(&mut ranges, |range| (range.size, 0)));
        for ranges in ranges.chunks(SLICE) {
            core.still_open()?;
            let Core { memory, reclaimer, .. } = &mut **core;
            for range in ranges {
                let complete = reclaimer.pending.complete(range.owner);
                memory.physical.set_apart(&mut memory.free_space, *range, complete);
            }
            give_way(core)?;
        }
        Ok(())
    }

    /// Where no event covers yet what is idle, this sees to it that one does.
    fn cover_idle(&self, core: &mut Core) {
        let Core {
            memory,
            reclaimer,
            decay,
            ..
        } = core;
        let free_space = &memory.free_space;
        let waiting = || free_space.hosts().filter(|owner| reclaimer.pending.is_owner(*owner));
        if waiting().next().is_some() {
            self.pressure_epoch.fetch_add(1, Ordering::Relaxed);
        }
        // A stream that requested nothing throughout a window may have ended, or have no more work.
        let inactive = waiting().any(|owner| !free_space.requested(owner));
        let uncovered = reclaimer.pending.sets.filed_pieces() > 0 || reclaimer.pending.has_uncovered_ranges();
        let was_uncovered = std::mem::replace(&mut decay.uncovered, uncovered);
        let wanted = (inactive || uncovered && was_uncovered) && !reclaimer.pending.has_batches();
        if wanted {
            reclaimer.cover(Trigger::GiveBack { all: true }, self, memory);
        }
    }

    /// Takes from live blocks what they have at their ends and no block of their range needed in the last windows. The
    /// handles are cached, and go back to the driver as such. Other threads have the lock now and then meanwhile.
    fn cut_unneeded(&self, core: &mut MutexGuard<'_, Core>) -> Result<()> {
        for (looked, block) in self.dedicated.all().enumerate() {
            let page = core.memory.physical.page;
            let cut = self.cut_end(core, block, |block, used| {
                let unneeded = block.end_window(used);
                block.cut_for(block.committed() - unneeded, page)
            });
            core.memory.physical.add_idle_cached(cut);
            core.still_open()?;
            if looked % SLICE == SLICE - 1 {
                give_way(core)?;
            }
        }
        Ok(())
    }
}

impl Core {
    /// Bytes of common free space that no request needed in the last windows, while more than `keep` bytes and the reserve
    /// are held.
    fn idle(&self, keep: u64) -> u64 {
        self.memory.free_space.idle(COMMON).min(self.beyond(keep))
    }

    /// Bytes that are held beyond `keep` bytes and the reserve.
    pub(in crate::pool) fn beyond(&self, keep: u64) -> u64 {
        let physical = &self.memory.physical;
        physical.held().saturating_sub(keep.max(physical.floor()))
    }

    /// Takes the next idle cached memory out of the pool, to go back to the driver, while more than `keep` bytes and the
    /// reserve are held. Nothing is left if that is none.
    fn begin_leaving_cached(&mut self, keep: u64) -> Vec<Leaving> {
        let at_most = self.beyond(keep);
        let physical = &mut self.memory.physical;
        let cached = physical.begin_leaving_cached(Quota::AtMost(physical.idle_cached().min(at_most)), BATCH);
        physical.take_idle_cached(cached.iter().map(Leaving::size).sum());
        cached
    }

    /// As [`Core::begin_leaving_cached`], for idle common free space.
    fn begin_leaving(&mut self, keep: u64, candidates: &mut Candidates) -> Vec<Leaving> {
        let quota = Quota::AtMost(self.idle(keep));
        let (free_space, physical) = (&mut self.memory.free_space, &mut self.memory.physical);
        let leaving = physical.begin_leaving(free_space, candidates, quota, BATCH);
        free_space.take_idle(COMMON, leaving.iter().map(Leaving::size).sum());
        leaving
    }
}
