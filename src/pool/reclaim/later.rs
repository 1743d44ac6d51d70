//! What the helper thread does for frees that were pending when their allocator was destroyed.

use crate::pool::reclaim::Reclaimer;
use crate::pool::reclaim::pending::Awaited;
use crate::pool::reclaim::synchronization::Synchronization;
use crate::pool::{Memory, Pool};

impl Reclaimer {
    /// Covers what the close could not cover because of a capture, and what graphs have left since, and begins a
    /// synchronization that is owed. It waits for nothing, and does nothing while the pool sees a capture. Each event and each
    /// synchronization may end a capture that the pool does not see. So neither comes again where the driver refused one.
    pub(in crate::pool) fn cover_later(&mut self, pool: &Pool, memory: &mut Memory) {
        if self.refused_for_capture || self.sees_capture(pool) {
            return;
        }
        // What was covered before is complete first, so that work that never ends does not take more and more events.
        if !self.pending.has_batches() {
            self.cover_all(pool, memory);
        }
        let owed = self.pending.awaited();
        let Some(Awaited::Synchronization(context, batch)) = owed else {
            return;
        };
        if self.pending.synchronization.is_none() && self.synchronized_later != owed {
            self.pending.synchronization = Synchronization::begin(&pool.calls, context, batch);
            self.synchronized_later = owed.filter(|_| self.pending.synchronization.is_some());
        }
    }
}
