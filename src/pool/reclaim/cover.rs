//! Events for whole contexts: they cover everything that was freed before them, with or without a stream.

use std::sync::Arc;

use crate::driver::{Capture, Context, Failure, RunningCapture, Stream};
use crate::pool::free_space::Owner;
use crate::pool::reclaim::Reclaimer;
use crate::pool::{Memory, Pool};
use crate::sync::atomic::Ordering;
use crate::sync::broken;

/// What was freed is covered before a pool grows, once it is this much and this part of reserved memory.
const MIN_FILED: u64 = 32 << 20;
const FILED_PART: u64 = 16;

/// Where memory is short, it is covered once it is this part of reserved memory.
const EARLY_PART: u64 = 256;

/// As many filed blocks count as a shortage: a pool has a number of blocks that is limited, and each takes host memory.
const MAX_FILED_BLOCKS: usize = 1 << 22;

/// How much freed memory is worth context events.
fn much(memory: &Memory) -> u64 {
    (memory.physical.reserved() / FILED_PART).max(MIN_FILED)
}

impl Reclaimer {
    /// Whether context events may be recorded although no request lacks memory: no capture is known. Each event ends
    /// every capture in its context, also those that the pool cannot see.
    pub(in crate::pool) fn may_cover(&self, pool: &Pool) -> bool {
        pool.driver().features().context_events && !pool.is_capture_known()
    }

    /// Covers what was left behind before the pool grows, for a request that found nothing free: if it is much and no capture
    /// is known. What was freed without a stream is covered also where memory is short. Pinned memory counts as short: it is
    /// not worth more of it. Returns whether something may be complete since.
    pub(in crate::pool) fn cover_before_growth(&mut self, pool: &Pool, memory: &mut Memory) -> bool {
        if !pool.driver().features().context_events {
            return false;
        }
        let (filed, left) = (self.pending.filed(), self.pending.left_behind(&memory.free_space));
        let is_much = filed + left >= much(memory) && self.may_cover(pool);
        let short =
            || pool.options.pinned || memory.physical.is_short() || self.pending.open_count() >= MAX_FILED_BLOCKS;
        match (filed, left) {
            (_, 1..) if is_much => self.cover_all(pool, memory),
            (1.., _) if is_much || short() => {
                self.cover(pool, memory);
                true
            }
            _ => false,
        }
    }

    /// Whether any request that missed its cache covers what was freed without a stream, although it may not need it: it is
    /// much and no capture is known, or memory is short and it is a part of that. An event that comes early has mostly
    /// completed once its memory is needed. Otherwise the pool would grow whenever its common free space is used up. With a
    /// headroom, each look whether memory is short would ask the driver.
    #[inline]
    pub(in crate::pool) fn is_early_cover_due(&self, pool: &Pool, memory: &Memory) -> bool {
        let (filed, physical) = (self.pending.filed(), &memory.physical);
        if filed == 0 || filed < (physical.reserved() / EARLY_PART).max(physical.page) {
            return false;
        }
        let short = || physical.headroom == 0 && physical.is_short() && pool.driver().features().context_events;
        filed >= much(memory) && self.may_cover(pool) || short()
    }

    /// Whether a request without a stream covers everything that was freed before the pool grows: it is much and no
    /// capture is known, or memory is short.
    pub(in crate::pool) fn is_cover_of_all_due(&self, pool: &Pool, memory: &Memory) -> bool {
        if memory.physical.is_short() {
            return true;
        }
        let owners = self.pending.owners().into_iter();
        let bytes = owners.map(|owner| memory.free_space.free_bytes(owner)).sum::<u64>();
        !pool.is_capture_known() && self.pending.filed() + bytes >= much(memory)
    }

    /// Covers everything freed without a stream by context events, unless that would end a capture that the pool can
    /// see. If the pressure epoch has changed since the last time, it also covers what was freed on streams: these may
    /// be idle now and make no more calls.
    pub(in crate::pool) fn cover(&mut self, pool: &Pool, memory: &mut Memory) {
        if self.covered_epoch != pool.pressure_epoch.load(Ordering::Relaxed) {
            self.cover_all(pool, memory);
        } else if self.pending.has_open() {
            self.cover_owners(pool, Vec::new());
        }
    }

    /// Covers everything freed in any way. Returns whether anything was covered.
    pub(in crate::pool) fn cover_all(&mut self, pool: &Pool, memory: &mut Memory) -> bool {
        self.put_off = false;
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
        owners.extend(self.pending.orphans().into_iter().map(|owner| (owner, u64::MAX)));
        owners.retain(|(owner, _)| memory.free_space.free_bytes(*owner) > 0 || self.pending.has_uncovered(*owner));
        let something = self.pending.has_open() || !owners.is_empty();
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
        self.put_off = self.sees_capture(pool);
        if self.put_off {
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
    /// As [`Reclaimer::cover`], only for what was freed without a stream. Returns whether there was something.
    pub(in crate::pool) fn cover_filed(&mut self, pool: &Pool) -> bool {
        self.pending.filed() > 0 && self.cover_owners(pool, Vec::new())
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
        let mut contexts = self.contexts.handles().into_iter();
        contexts.any(|context| pool.is_capturing(context))
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
