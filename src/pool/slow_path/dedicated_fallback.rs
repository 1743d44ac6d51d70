//! Where the memory of dedicated allocations comes from: the phases of a request for a range of its own, beside those of
//! [`phases`](super::phases).
//!
//! | phase | in the pool's range | in a range of its own |
//! |---|---|---|
//! | reuse | the arena and common free space; cached handles; what was left behind | a range that was freed (`dedicated.rs`); cached handles |
//! | grow within the allowance | new handles; then idle ones, moved or exchanged | new handles, in exchange for cached ones that do not fit |
//! | share | what other streams have finished with. A stream grows to the limit first | what blocks have given back, once its work has completed: the tails of shrinks, and cached ranges, oldest first; then pages that live blocks have ahead of their size and never used; then handles of the pool's range that are free throughout. Each is cached, and the request begins again |
//! | last resort | what other streams freed, behind their events; new handles to the limit, in exchange for idle ones; the ends of blocks | new handles up to the limit; then pages that live blocks have because the blocks before them in their range had grown to these |
//!
//! Then both wait for pending memory and begin again. A range shares before it grows to the limit, also for a stream:
//! what it takes are idle pages, and no stream has to request them anew. It is never handed out behind another stream's
//! event, since its pages come from several streams.

use crate::driver::{self, DriverError, Failure};
use crate::pool::decide::Trigger;
use crate::pool::free_space::{COMMON, Owner};
use crate::pool::give_back::{BATCH, Others};
use crate::pool::physical::Locked;
use crate::pool::physical::dedicated_memory::{Budget, Built};
use crate::pool::reclaim::wait::Wait;
use crate::pool::{Core, Pool, StreamView, Want};
use crate::support::error::Result;
use crate::sync::MutexGuard;

/// One request for memory of a dedicated allocation.
pub(in crate::pool) struct DedicatedFallback<'a, 'c> {
    pub(in crate::pool) pool: &'a Pool,
    pub(in crate::pool) core: &'a mut MutexGuard<'c, Core>,
    pub(in crate::pool) want: &'a Want,
    /// The requesting stream, and its free space.
    pub(in crate::pool) stream: Option<(&'a StreamView, Owner)>,
    /// None for a capture, which waits for nothing.
    pub(in crate::pool) wait: Option<Wait>,
}

impl DedicatedFallback<'_, '_> {
    /// Calls `build` with ever more room made for it.
    pub(in crate::pool) fn run<T>(
        self,
        mut build: impl FnMut(&mut MutexGuard<'_, Core>, Budget) -> driver::Result<Built<T>>,
    ) -> Result<T> {
        let DedicatedFallback {
            pool,
            core,
            want,
            mut wait,
            ..
        } = self;
        let (mut refusal, mut others) = (None, Others::default());
        loop {
            others.look(core);
            give_due_back(pool, core, self.stream)?;
            let mut attempt =
                |core: &mut MutexGuard<'_, Core>, within_allowance: bool, refusal: &mut Option<DriverError>| {
                    let budget = budget(pool, core, want, within_allowance, refusal.is_some());
                    let built = build(core, budget);
                    core.memory.physical.note_peak();
                    match built {
                        Err(error) if error.failure == Failure::OutOfMemory => {
                            *refusal = Some(error);
                            Ok(Built::Short(want.size))
                        }
                        Err(error) => Err(pool.failed(error)),
                        Ok(built) => Ok(built),
                    }
                };
            let mut built = attempt(core, true, &mut refusal)?;
            if matches!(built, Built::Short(_)) {
                // An attempt may have given the lock up.
                check_owner(pool, self.stream)?;
                reclaim(pool, core, self.stream, wait.is_some())?;
                give_due_back(pool, core, self.stream)?;
                built = attempt(core, true, &mut refusal)?;
            }
            while let Built::Short(lacking) = built
                && free_up(pool, core, lacking, refusal.is_some())?
            {
                give_due_back(pool, core, self.stream)?;
                built = attempt(core, true, &mut refusal)?;
            }
            if matches!(built, Built::Short(_)) {
                check_owner(pool, self.stream)?;
                built = attempt(core, false, &mut refusal)?;
            }
            if let Built::Short(lacking) = built
                && pool.cut_all_ends(core, lacking)
            {
                check_owner(pool, self.stream)?;
                built = attempt(core, false, &mut refusal)?;
            }
            if let Built::Done(built) = built {
                return Ok(built);
            }
            if pool.give_due_back(core)? || pool.wait_for_leaving(core, &mut others)? {
                continue;
            }
            let waited = wait.as_mut().map_or(Ok(false), |wait| wait.wait(pool, core));
            if !waited? {
                pool.note_refusal(refusal.as_ref(), wait.as_ref().and_then(Wait::deadline));
                return Err(pool.out_of_memory(core, want, refusal));
            }
        }
    }
}

/// What may be created.
fn budget(pool: &Pool, core: &Core, want: &Want, within_allowance: bool, refused: bool) -> Budget {
    let allowance = pool.growth_allowance(core, COMMON, want);
    let at_most = match within_allowance {
        // A driver that has refused memory has only what goes back to it.
        true if refused => 0,
        true => allowance,
        false => core.memory.physical.room_below_limit(),
    };
    // Nor may cached handles stay beside new ones then.
    Budget {
        keeping: if refused { 0 } else { allowance.min(at_most) },
        exchanging: at_most,
    }
}

/// Collects what has completed. It first covers what blocks have given back by events, like a request without a stream;
/// not for a capture, which an event would end.
fn reclaim(pool: &Pool, core: &mut Core, stream: Option<(&StreamView, Owner)>, covers: bool) -> Result<()> {
    let Core { memory, reclaimer, .. } = core;
    if let Some((view, _)) = stream {
        reclaimer.record_stream_event(pool, &mut pool.caches.lock(view.key).1, view.stream);
    }
    let range = Trigger::Range {
        of_streams: reclaimer.pending.has_uncovered_ranges(),
        filed: reclaimer.pending.sets.has_filed_ranges(),
    };
    if covers && !reclaimer.cover(range, pool, memory) {
        reclaimer.cover_before_growth(pool, memory);
    }
    reclaimer.poll(pool, memory)
}

/// Gives back what is due. The stream's free space may be another owner's afterwards.
fn give_due_back(pool: &Pool, core: &mut MutexGuard<'_, Core>, stream: Option<(&StreamView, Owner)>) -> Result<()> {
    pool.give_due_back(core)?;
    check_owner(pool, stream)
}

fn check_owner(pool: &Pool, stream: Option<(&StreamView, Owner)>) -> Result<()> {
    match stream {
        Some((view, owner)) => view.check_owner(pool, owner),
        None => Ok(()),
    }
}

/// Caches handles of at least `lacking` bytes that are free elsewhere, or some. False where there are none.
fn free_up(pool: &Pool, core: &mut MutexGuard<'_, Core>, lacking: u64, refused: bool) -> Result<bool> {
    let mut freed = 0;
    // Cached ranges also hold address space, of which the driver may have refused more.
    let mut destroyed = false;
    loop {
        let bytes = match refused {
            true => u64::MAX,
            false => lacking.saturating_sub(freed),
        };
        let leaving = core.memory.physical.begin_leaving_ranges(bytes, false, BATCH);
        if leaving.is_empty() {
            break;
        }
        destroyed = true;
        freed += core.let_go(leaving).bytes();
        core.still_open()?;
    }
    if destroyed {
        return Ok(true);
    }
    // The stream's next block most likely needs what the last ones had.
    if pool.cut_ends(core, lacking, |block, used| block.cut_behind_peak(used)) > 0 {
        return Ok(true);
    }
    // Small ranges that streams freed keep whole pages from being free, so they are coalesced first.
    let Core { memory, reclaimer, .. } = &mut **core;
    pool.flush_all(&mut memory.free_space);
    let polled = reclaimer.poll(pool, memory);
    pool.return_due_tails(core);
    let Core { memory, reclaimer, .. } = &mut **core;
    reclaimer.share_completed(memory, None);
    let leaving = memory.physical.begin_caching(&mut memory.free_space, lacking);
    let bytes = core.let_go(leaving).bytes();
    Ok(polled.is_ok() && bytes > 0)
}
