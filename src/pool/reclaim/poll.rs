//! Polls completion events and returns finished frees to the common free space.

use crate::history::Action;
use crate::pool::free_space::{COMMON, Owner};
use crate::pool::reclaim::Reclaimer;
use crate::pool::reclaim::pending::Freed;
use crate::pool::stream_cache::block::State;
use crate::pool::{Memory, Pool};
use crate::support::config::ReleaseThreshold;
use crate::support::error::Result;
use crate::sync::atomic::Ordering;

impl Reclaimer {
    /// Collects what has completed.
    pub(in crate::pool) fn poll(&mut self, pool: &Pool, memory: &mut Memory) -> Result<()> {
        let Reclaimer { pending, contexts, .. } = self;
        let polled = pending.poll(&pool.calls, |context| contexts.is_there(&pool.calls, context));
        for (owner, complete) in polled.owners {
            if memory.free_space.transfer(owner, COMMON, complete, 0) > 0 || memory.free_space.free_bytes(owner) == 0 {
                self.forget_orphan(memory, owner);
            }
        }
        for freed in polled.freed {
            self.return_freed(pool, memory, freed);
        }
        if memory.physical.has_deferred()
            && let Ok(_entered) = pool.enter(&self.contexts)
        {
            memory.physical.retry(&mut memory.free_space);
        }
        self.poll_per_free_events(pool, memory)?;
        self.keep_to_threshold(pool, memory);
        if !polled.gone.is_empty() {
            self.check_context(pool)?;
        }
        for context in polled.gone {
            if context != self.contexts.home.context {
                self.drop_context(&pool.calls, context);
            }
        }
        match polled.failed {
            Some((context, error)) => self.context_failed(pool, context, error),
            None => Ok(()),
        }
    }

    fn forget_orphan(&mut self, memory: &mut Memory, owner: Owner) {
        if memory.free_space.free_bytes(owner) == 0 && self.pending.remove(owner) {
            memory.free_space.remove_owner(owner);
        }
    }

    /// Moves freed memory that is reusable now to where every stream may take it.
    pub(in crate::pool) fn return_freed(&mut self, pool: &Pool, memory: &mut Memory, freed: Freed) {
        match freed {
            Freed::Block { id, give_back } => {
                let (offset, size) = memory.free_space.span(id);
                pool.counters.pending.fetch_sub(size, Ordering::Relaxed);
                match pool.blocks.get(id).state() {
                    State::Pending => pool.record_freed(Action::FreeCompleted, id, None),
                    // It was free space already, of a graph or behind an event.
                    _ => pool.record_range_completed(offset, size),
                }
                pool.end_block(&memory.free_space, id);
                memory.free_space.give(id, COMMON, 0);
                if give_back
                    && !memory.physical.is_external
                    && let Ok(_entered) = pool.enter(&self.contexts)
                {
                    // Returns as many bytes as were freed, though not the same pages. All pages are alike, and
                    // scattered ones go first.
                    let page = memory.physical.page;
                    let keep = memory.physical.reserved().saturating_sub(size / page * page);
                    memory.release(keep);
                }
            }
            Freed::Tail { block, number } => self.return_tail(pool, memory, block, number),
            Freed::Dedicated(block) => {
                let Ok(_entered) = pool.enter(&self.contexts) else {
                    // No driver call is possible now, so this is tried again later.
                    return self.pending.free(Freed::Dedicated(block));
                };
                pool.counters.pending.fetch_sub(block.size, Ordering::Relaxed);
                pool.record_dedicated_gone(&block);
                let (give_back, bytes) = (block.give_back, block.committed());
                if block.resizable && !give_back && !block.is_malloc() {
                    memory.physical.cache_range(*block);
                } else {
                    block.destroy(&mut memory.physical);
                }
                if give_back {
                    let keep = memory.physical.reserved().saturating_sub(bytes);
                    memory.physical.release_cached(keep);
                }
            }
        }
    }

    fn keep_to_threshold(&self, pool: &Pool, memory: &mut Memory) {
        let threshold = match pool.options.release_threshold {
            ReleaseThreshold::Bytes(bytes) => bytes,
            _ => u64::MAX,
        };
        // Memory beyond the limit does not stay, whatever the threshold keeps otherwise.
        let threshold = match memory.physical.limit {
            0 => threshold,
            limit => threshold.min(limit),
        };
        if memory.physical.reserved() > threshold
            && !memory.physical.is_external
            && let Ok(_entered) = pool.enter(&self.contexts)
        {
            memory.release(threshold);
        }
    }
}
