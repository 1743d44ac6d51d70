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

use std::time::{Duration, Instant};

use crate::pool::free_space::{self, COMMON};
use crate::pool::physical::Leaving;
use crate::pool::{Core, Pool};
use crate::support::config::ReleaseThreshold;
use crate::support::error::Result;
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;

/// How many handles go back together, before other threads may find them gone.
const BATCH: usize = 16;

/// How long a call that needs memory on its way back waits before it looks again.
const PAUSE: Duration = Duration::from_micros(50);
/// How long it waits at least, also with `wait_ms=0`: a batch takes about a millisecond.
const LEAST_WAIT: Duration = Duration::from_millis(10);

/// How many windows make up `decay_ms`.
pub const WINDOWS: u64 = free_space::WINDOWS as u64;

/// Arranges for [`Pool::decay`] to be called from now on; false where that is not possible.
pub type StartDecay = Box<dyn Fn() -> bool + Send + Sync>;

/// What a pool remembers from one window to the next.
#[derive(Default)]
pub(in crate::pool) struct Decay {
    /// At the end of the last window, something was freed that no event covered.
    uncovered: bool,
}

impl Pool {
    /// How idle memory begins to be looked for, once there is memory. Without it, it is looked for only where the caller
    /// calls [`Pool::decay`].
    pub fn on_memory(&self, start: StartDecay) {
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
        memory.free_space.end_window();
        self.shrink_unused(&mut memory.free_space);
        memory.physical.end_window();
        self.set_idle_apart(&mut core);
        self.cut_unneeded(&mut core);
        let keep = match self.options.release_threshold {
            ReleaseThreshold::Bytes(bytes) => bytes,
            ReleaseThreshold::All => u64::MAX,
            ReleaseThreshold::Auto => 0,
        };
        // A request that waits for its budget gives back already.
        while !core.memory.physical.is_leaving() {
            let mut leaving = core.begin_leaving(keep);
            if leaving.is_empty() {
                return true;
            }
            MutexGuard::unlocked(&mut core, || {
                leaving.iter_mut().for_each(|memory| memory.go(&self.calls))
            });
            let Core { memory, .. } = &mut *core;
            memory.physical.end_leaving(&mut memory.free_space, leaving);
        }
        true
    }

    /// Sets apart what streams did not need in the last windows. It becomes common free space once its work has completed;
    /// where no event covers that yet, this sees to it that one does.
    fn set_idle_apart(&self, core: &mut Core) {
        let Core {
            memory,
            reclaimer,
            decay,
            ..
        } = core;
        let (free_space, physical) = (&mut memory.free_space, &memory.physical);
        let owners = reclaimer.pending.owners();
        for owner in owners.iter().copied() {
            let idle = free_space.idle(owner);
            if idle >= physical.page {
                let apart = physical.set_apart(free_space, owner, idle);
                free_space.take_idle(owner, apart);
            }
        }
        reclaimer.send_guests_home(memory);
        let free_space = &memory.free_space;
        let waiting = || owners.iter().filter(|owner| free_space.has_guests(**owner));
        if waiting().next().is_some() {
            self.pressure_epoch.fetch_add(1, Ordering::Relaxed);
        }
        // A stream that requested nothing throughout a window may have ended, or have no more work.
        let inactive = waiting().any(|owner| !free_space.requested(*owner));
        let uncovered = reclaimer.pending.has_open() || reclaimer.pending.has_uncovered_ranges();
        let was_uncovered = std::mem::replace(&mut decay.uncovered, uncovered);
        let wanted = (inactive || uncovered && was_uncovered) && !reclaimer.pending.has_batches();
        if wanted && reclaimer.may_cover(self) {
            reclaimer.cover_all(self, memory);
        }
    }

    /// Takes from live blocks what they have at their ends and no block of their range needed in the last windows. The
    /// handles are cached, and go back to the driver as such.
    fn cut_unneeded(&self, core: &mut Core) {
        let Core { memory, reclaimer, .. } = core;
        let before = memory.physical.cached_bytes();
        self.cut_ends(&reclaimer.pending, &mut memory.physical, |physical, block, used| {
            let unneeded = block.end_window(used);
            block.cut_for(block.committed() - unneeded, physical.page)
        });
        memory.physical.add_idle_cached(memory.physical.cached_bytes() - before);
    }

    /// Waits until no memory is on its way back to the driver, so that the caller finds it gone or free. It waits as long
    /// as a request may, since the driver may wait for work. Returns whether something came to its end; an error where
    /// all memory was returned meanwhile.
    pub(in crate::pool) fn wait_for_leaving(&self, core: &mut MutexGuard<'_, Core>) -> Result<bool> {
        if !core.memory.physical.is_leaving() {
            return Ok(false);
        }
        let deadline = Instant::now() + self.options.wait.max(LEAST_WAIT);
        while core.memory.physical.is_leaving() && Instant::now() < deadline {
            MutexGuard::unlocked(core, || std::thread::sleep(PAUSE));
        }
        core.still_open()?;
        Ok(!core.memory.physical.is_leaving())
    }
}

impl Core {
    /// Takes the next idle memory out of the pool, to go back to the driver, while more than `keep` bytes and the reserve are held.
    /// Nothing is left if that is none.
    fn begin_leaving(&mut self, keep: u64) -> Vec<Leaving> {
        let (free_space, physical) = (&mut self.memory.free_space, &mut self.memory.physical);
        let most = physical.reserved().saturating_sub(keep.max(physical.floor()));
        let cached = physical.begin_leaving_cached(physical.idle_cached().min(most), BATCH);
        if !cached.is_empty() {
            physical.take_idle_cached(cached.iter().map(Leaving::size).sum());
            return cached;
        }
        let leaving = physical.begin_leaving(free_space, free_space.idle(COMMON).min(most), BATCH);
        free_space.take_idle(COMMON, leaving.iter().map(Leaving::size).sum());
        leaving
    }

    /// As [`Core::begin_leaving`], for all memory that is free for every stream, however long it has been free.
    pub(in crate::pool) fn begin_leaving_free(&mut self, keep: u64) -> Vec<Leaving> {
        let (free_space, physical) = (&mut self.memory.free_space, &mut self.memory.physical);
        let most = physical.reserved().saturating_sub(keep.max(physical.floor()));
        let cached = physical.begin_leaving_cached(most, BATCH);
        match cached.is_empty() {
            true => physical.begin_leaving(free_space, most, BATCH),
            false => cached,
        }
    }
}
