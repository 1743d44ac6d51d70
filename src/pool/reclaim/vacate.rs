//! Streams that are gone silently leave their owner of free space and their cache to others.
//!
//! The pool learns that a stream is gone where its handle comes back with another id, or where the application says so. A
//! handle may never come back. So once there are many owners, those are looked for that have nothing any more, and whose
//! streams make no calls: silent ones (`free_space/silence`), and those whose stream has made no call since the last look.
//! What is found is forgotten, but for the streams that made a request last. A stream that comes back all the same is new.
//!
//! A look costs a look at each cache. Between two looks there are a quarter as many new owners as were left, and at
//! least `KEPT`. With as many new ones as were left, what no look has seen before would become ever more.

use crate::pool::Pool;
use crate::pool::free_space::{FreeSpace, Owner};
use crate::pool::reclaim::Reclaimer;
use crate::pool::stream_cache::{Inner, Key, Service};
use crate::support::sort;

/// So many streams that have nothing, and may be gone, keep their owner and their cache: one that comes back after another
/// stream got its arena takes turns with others.
const KEPT: usize = if cfg!(test) { 64 } else { 1024 };

/// With how many owners there is a first look.
pub(super) const FIRST_LOOK: usize = 2 * KEPT;

impl Reclaimer {
    /// Looks for streams that are gone, if there are many owners. The caller holds no cache's lock.
    #[inline]
    pub(super) fn vacate_if_many(&mut self, pool: &Pool, free_space: &mut FreeSpace) {
        if self.pending.count_owners() >= self.look_at {
            self.vacate(pool, free_space);
        }
    }

    #[cold]
    fn vacate(&mut self, pool: &Pool, free_space: &mut FreeSpace) {
        let mut left: Vec<(u64, Key, Owner)> = Vec::new();
        for cache in pool.caches.all() {
            let mut inner = cache.inner.lock();
            let calls = inner.allocations + inner.frees;
            let Some(owner) = inner.owner_on(pool.device) else {
                continue;
            };
            let made_none = inner.calls_looked_at.replace(calls) == Some(calls);
            if (made_none || free_space.is_silent(owner)) && self.has_nothing(free_space, &inner, owner) {
                left.push((free_space.heard(owner), cache.key(), owner));
            }
        }
        sort::by_key(&mut left, |(heard, ..)| (*heard, 0));
        left.truncate(left.len().saturating_sub(KEPT));
        for (_, key, owner) in left {
            // The stream may have made a call meanwhile.
            if let Some((_, mut inner)) = pool.caches.lock_known(key)
                && inner.owner_on(pool.device) == Some(owner)
                && self.has_nothing(free_space, &inner, owner)
            {
                self.retire(pool, free_space, &mut inner, Service::Unused);
            }
        }
        let orphans: Vec<Owner> = self.pending.orphans().collect();
        for owner in orphans {
            self.forget_orphan(free_space, owner);
        }
        let left = self.pending.count_owners();
        self.look_at = FIRST_LOOK.max(left + KEPT.max(left / 4));
    }

    /// Whether the stream of a cache has no block in use or free, and nothing waits for its work.
    fn has_nothing(&self, free_space: &FreeSpace, inner: &Inner, owner: Owner) -> bool {
        let cached = inner.ready.bytes() > 0 || inner.uncovered > 0 || inner.awaited;
        let named = inner.in_use > 0 || inner.capture != 0;
        !cached && !named && free_space.free_bytes(owner) == 0 && self.pending.is_idle(owner)
    }
}
