//! Events for whole contexts: they cover everything that was freed before them, with or without a stream.

use std::sync::Arc;

use crate::driver::{Capture, Context, Failure, RunningCapture, Stream};
use crate::pool::decide::{Covers, Facts, Trigger, of_contexts};
use crate::pool::free_space::Owner;
use crate::pool::reclaim::Reclaimer;
use crate::pool::{Memory, Pool};
use crate::sync::atomic::Ordering;
use crate::sync::broken;

impl Reclaimer {
    /// Whether context events may be recorded although no request lacks memory: no capture is known. Each event ends
    /// every capture in its context, also those that the pool cannot see.
    pub(in crate::pool) fn may_cover(&self, pool: &Pool) -> bool {
        pool.driver().features().context_events && !pool.is_capture_known()
    }

    /// What context events that are recorded now cover, for that trigger.
    pub(in crate::pool) fn decide(&self, trigger: Trigger, pool: &Pool, memory: &Memory) -> Covers {
        let physical = &memory.physical;
        // With a headroom, each look whether memory is short may ask the driver.
        let looks = physical.headroom == 0 || !matches!(trigger, Trigger::Miss);
        let facts = Facts {
            context_events: pool.driver().features().context_events,
            capture_known: pool.is_capture_known(),
            pinned: pool.options.pinned,
            reserved: physical.reserved(),
            page: physical.page,
            filed: self.pending.sets.account().filed,
            filed_blocks: self.pending.sets.filed_pieces(),
            is_short: &|| looks && physical.is_short(),
        };
        of_contexts(trigger, &facts)
    }

    /// Whether any request that missed its cache covers what was freed without a stream.
    #[inline]
    pub(in crate::pool) fn is_early_cover_due(&self, pool: &Pool, memory: &Memory) -> bool {
        self.pending.sets.account().filed > 0 && self.decide(Trigger::Miss, pool, memory) != Covers::Nothing
    }

    /// Covers what was left behind, if it is worth that before the pool grows. Returns whether anything was covered.
    pub(in crate::pool) fn cover_before_growth(&mut self, pool: &Pool, memory: &mut Memory) -> bool {
        let left = self.pending.left_behind(&memory.free_space);
        self.cover(Trigger::Growth { left }, pool, memory)
    }

    /// Bytes that streams have freed and that are not common free space.
    pub(in crate::pool) fn bytes_of_streams(&self, memory: &Memory) -> u64 {
        let owners = memory
            .free_space
            .occupied()
            .filter(|owner| self.pending.is_owner(*owner));
        owners.map(|owner| memory.free_space.free_bytes(owner)).sum()
    }

    /// Records the context events that the trigger is worth, unless that would end a capture that the pool can see. If the
    /// pressure epoch has changed since the last time, they also cover what was freed on streams: these may be idle now and
    /// make no more calls. Returns whether anything was covered.
    pub(in crate::pool) fn cover(&mut self, trigger: Trigger, pool: &Pool, memory: &mut Memory) -> bool {
        let pressed = self.covered_epoch != pool.pressure_epoch.load(Ordering::Relaxed);
        match self.decide(trigger, pool, memory) {
            Covers::Nothing => false,
            Covers::Filed if !pressed => self.pending.sets.filed_pieces() > 0 && self.cover_owners(pool, Vec::new()),
            Covers::Filed | Covers::All => self.cover_all(pool, memory),
        }
    }

    /// Covers everything freed in any way. Returns whether anything was covered.
    pub(in crate::pool) fn cover_all(&mut self, pool: &Pool, memory: &mut Memory) -> bool {
        self.prevented_by_capture = false;
        self.covered_epoch = pool.pressure_epoch.load(Ordering::Relaxed);
        let (mut owners, mut uncovered) = (Vec::new(), Vec::new());
        for cache in pool.caches.all() {
            let mut inner = cache.inner.lock();
            if let Some(owner) = inner.owner_on(pool.device) {
                pool.flush(&mut memory.free_space, &mut inner, owner);
                owners.push((owner, inner.next_event));
                inner.next_event += u64::from(!broken("what is freed after a context event is not covered"));
                uncovered.push((cache, std::mem::take(&mut inner.uncovered)));
            }
        }
        owners.extend(self.pending.orphans().map(|owner| (owner, u64::MAX)));
        owners.retain(|(owner, _)| memory.free_space.free_bytes(*owner) > 0 || self.pending.has_uncovered(*owner));
        let something = self.pending.sets.filed_pieces() > 0 || !owners.is_empty();
        let covered = something && self.cover_owners(pool, owners);
        if !covered {
            for (cache, bytes) in uncovered {
                cache.inner.lock().uncovered += bytes;
            }
        }
        covered
    }

    /// Covers everything freed without a stream, and these owners' frees. Returns whether it did.
    pub(in crate::pool::reclaim) fn cover_owners(&mut self, pool: &Pool, owners: Vec<(Owner, u64)>) -> bool {
        let Ok(_entered) = pool.enter(&self.contexts) else {
            return false;
        };
        // Another context at the handle of one that is gone has other events. Without ids it cannot be distinguished.
        let checked = match pool.driver().features().stream_ids {
            true => self.drop_dead_contexts(pool),
            false => self.check_context(pool),
        };
        if checked.is_err() || self.note_primaries(&pool.calls).is_err() {
            return false;
        }
        self.prevented_by_capture = self.sees_capture(pool);
        if self.prevented_by_capture {
            tracing::debug!(device = pool.device, "a capture runs: what was freed is covered later");
            return false;
        }
        loop {
            let contexts = self.contexts.handles();
            match self.pending.cover(&pool.calls, &contexts, owners.clone()) {
                Ok(()) => {
                    self.refused_for_capture = false;
                    return true;
                }
                Err(error) => {
                    self.refused_for_capture = error.failure == Failure::Capture;
                    let before = self.contexts.all().to_vec();
                    let dropped = self.drop_dead_contexts(pool);
                    if dropped.is_err() || self.contexts.all() == before || pool.dead.get().is_some() {
                        tracing::debug!(%error, "what was freed could not be covered");
                        return false;
                    }
                }
            }
        }
    }
}

impl Reclaimer {
    /// Covers what was freed without a stream. Returns whether there was something.
    pub(in crate::pool) fn cover_filed(&mut self, pool: &Pool) -> bool {
        self.pending.sets.account().filed > 0 && self.cover_owners(pool, Vec::new())
    }

    /// Whether a capture runs that the pool can see: one on a blocking stream of a known context, or one in which an
    /// allocator of the process has memory.
    pub(in crate::pool) fn sees_capture(&self, pool: &Pool) -> bool {
        !self.seen_captures(pool).is_empty() || self.is_blocking_captured(pool)
    }

    /// The captures in which an allocator of the process has memory, and that this pool's calls may end.
    pub(in crate::pool) fn seen_captures(&self, pool: &Pool) -> Vec<Arc<RunningCapture>> {
        let captures = pool.driver().running_captures();
        captures.seen(pool.device, pool.options.wait, |context| {
            self.contexts.is_known(context)
        })
    }

    /// Whether a blocking stream of a known context captures.
    pub(in crate::pool) fn is_blocking_captured(&self, pool: &Pool) -> bool {
        self.contexts.identified().any(|context| pool.is_capturing(context))
    }
}

impl Pool {
    /// Whether this process is known to capture: see [`Driver::capture_known`](crate::driver::Driver::capture_known).
    pub(in crate::pool) fn is_capture_known(&self) -> bool {
        self.driver().capture_known().load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Whether a blocking stream of `context` captures. A query of the legacy stream shows it without harm to the
    /// capture. Captures on non-blocking streams cannot be seen.
    fn is_capturing(&self, context: Context) -> bool {
        let Ok(_entered) = self.calls.enter(context) else {
            return false;
        };
        let capture = self.calls.query(|driver| driver.look_for_capture(Stream::LEGACY));
        matches!(capture, Ok(Capture::Active | Capture::Invalidated | Capture::Implicit))
    }
}
