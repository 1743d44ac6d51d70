//! Polls completion events and returns finished frees to the common free space.

use crate::history::Action;
use crate::pool::free_space::{COMMON, FreeSpace, Owner};
use crate::pool::reclaim::Reclaimer;
use crate::pool::reclaim::pending::{Asks, PendingFrees, Polled};
use crate::pool::reclaim::sets::{Freed, Held};
use crate::pool::stream_cache::block::{Block, BlockState};
use crate::pool::{Memory, Pool};
use crate::support::config::ReleaseThreshold;
use crate::support::error::Result;
use crate::sync::broken;

impl Reclaimer {
    /// Collects what has completed. A pool whose context was found reset, by a cover just before, has no events any more:
    /// their handles may be the application's.
    pub(in crate::pool) fn poll(&mut self, pool: &Pool, memory: &mut Memory) -> Result<()> {
        self.poll_some(pool, memory, &mut Asks::All)
    }

    /// As [`Reclaimer::poll`], but asks only what `asks` allows.
    pub(in crate::pool) fn poll_some(&mut self, pool: &Pool, memory: &mut Memory, asks: &mut Asks) -> Result<()> {
        if !broken("a closed pool is left alone") {
            pool.alive()?;
        }
        let Reclaimer { pending, contexts, .. } = self;
        let is_there = |context| contexts.is_there(&pool.calls, context);
        let mut polled = pending.poll(&pool.calls, &memory.free_space, asks, is_there);
        let everything = pool.options.pinned || memory.physical.is_short() || self.is_over_threshold(pool, memory);
        match everything {
            true => self.share_completed(memory, None),
            false => {
                self.share(memory, |pending, _| pending.orphans().collect());
                self.send_guests_home(memory);
            }
        }
        self.end_waits(pool, memory, &mut polled);
        if memory.physical.has_deferred() {
            memory.physical.note_retry();
        }
        self.keep_to_threshold(pool, memory);
        if !polled.gone.is_empty() {
            self.check_context(pool)?;
        }
        for context in polled.gone {
            if context != self.contexts.own.context {
                self.drop_context(&pool.calls, context);
            }
        }
        match polled.failed {
            Some((context, error)) => self.context_failed(pool, context, error),
            None => Ok(()),
        }
    }

    /// Does with each set whose wait is over, or whose event is lost, what comes then.
    pub(in crate::pool) fn end_waits(&mut self, pool: &Pool, memory: &mut Memory, polled: &mut Polled) {
        for set in polled.complete.drain(..) {
            match set.held {
                Held::Pieces(pieces) => pieces
                    .into_iter()
                    .for_each(|freed| self.return_freed(pool, memory, freed)),
                Held::Space(owner) => {
                    memory.free_space.transfer(owner, COMMON, u64::MAX, 0);
                    memory.free_space.remove_owner(owner);
                }
            }
        }
        for set in polled.lost.drain(..) {
            self.file_all(memory, set.held);
        }
    }

    /// Files what a set held: it waits for all contexts from now on.
    pub(in crate::pool) fn file_all(&mut self, memory: &mut Memory, held: Held) {
        let sets = &mut self.pending.sets;
        match held {
            Held::Pieces(pieces) => pieces
                .into_iter()
                .for_each(|freed| sets.file(freed, &memory.free_space)),
            Held::Space(owner) => {
                for id in memory.free_space.take_all(owner) {
                    sets.file(Freed::Block { id, give_back: false }, &memory.free_space);
                }
                memory.free_space.remove_owner(owner);
            }
        }
    }

    /// Gives guests whose work has completed back to the arenas that they were handed out from.
    pub(in crate::pool) fn send_guests_home(&mut self, memory: &mut Memory) {
        let free_space = &mut memory.free_space;
        let hosts: Vec<Owner> = free_space
            .hosts()
            .filter(|owner| self.pending.is_owner(*owner))
            .collect();
        for owner in hosts {
            free_space.send_guests_home(owner, self.pending.complete(owner));
        }
    }

    /// Makes what other streams than `keep` have freed common free space, as far as it has completed.
    pub(in crate::pool) fn share_completed(&mut self, memory: &mut Memory, keep: Option<Owner>) {
        if let Some(keep) = keep {
            memory.free_space.send_guests_home(keep, self.pending.complete(keep));
        }
        self.share(memory, |pending, free_space| {
            let occupied = free_space.occupied().filter(|owner| pending.is_owner(*owner));
            let others = occupied.chain(pending.orphans()).filter(|owner| Some(*owner) != keep);
            others.collect()
        });
    }

    /// Takes from silent streams what is free for them, where all of it has completed. What others have freed becomes
    /// common free space. What the stream itself has freed is an arena in one piece, and stays one: a requester without
    /// an arena gets that of one stream, for a request of `size` bytes. Returns whether that was anything.
    pub(in crate::pool) fn share_silent(&mut self, memory: &mut Memory, requester: Owner, size: u64) -> bool {
        let free_space = &mut memory.free_space;
        let is_new = free_space.is_new(requester);
        let (mut shared, mut arena) = (0, None);
        let silent: Vec<Owner> = free_space
            .silent()
            .filter(|owner| self.pending.is_owner(*owner))
            .collect();
        for owner in silent {
            let early = broken("only what is complete is bequeathed");
            if !free_space.is_left(owner, if early { u64::MAX } else { self.pending.complete(owner) }) {
                continue;
            }
            if !free_space.has_own_frees(owner) {
                free_space.lower_peak(owner);
                shared += free_space.transfer(owner, COMMON, u64::MAX, 0);
            } else if is_new {
                // The smallest that suffices, or the largest.
                let bytes = free_space.free_bytes(owner);
                let fit = (bytes >= size, if bytes >= size { u64::MAX - bytes } else { bytes });
                arena = arena.max(Some((fit, owner)));
            }
        }
        if let Some((_, owner)) = arena {
            free_space.bequeath(owner, requester);
        }
        arena.is_some() || shared > 0
    }

    /// Makes what these owners have common free space, as far as it has completed. Orphans that have nothing are forgotten.
    fn share(&mut self, memory: &mut Memory, of: impl Fn(&PendingFrees, &FreeSpace) -> Vec<Owner>) {
        for owner in of(&self.pending, &memory.free_space) {
            let complete = self.pending.complete(owner);
            memory.free_space.transfer(owner, COMMON, complete, 0);
            self.forget_orphan(&mut memory.free_space, owner);
        }
    }

    /// Forgets an orphan that has nothing and that nothing waits for. Its number serves again.
    pub(in crate::pool::reclaim) fn forget_orphan(&mut self, free_space: &mut FreeSpace, owner: Owner) {
        if free_space.free_bytes(owner) == 0 && self.pending.remove(owner) {
            free_space.remove_owner(owner);
        }
    }

    /// Moves freed memory that is reusable now to where every stream may take it.
    pub(in crate::pool) fn return_freed(&mut self, pool: &Pool, memory: &mut Memory, freed: Freed) {
        match freed {
            Freed::Block { id, give_back } => {
                let (offset, size) = memory.free_space.span(id);
                match pool.blocks.find(id).map(Block::state) {
                    Some(BlockState::Pending) => pool.record_freed(Action::FreeCompleted, id, None),
                    // It was free space already, of a graph or behind an event.
                    _ => pool.record_range_completed(offset, size),
                }
                pool.end_block(&memory.free_space, id);
                if !give_back && !pool.options.pinned {
                    return memory.free_space.give_home(id);
                }
                let range = memory.free_space.give_common(id);
                if give_back && !memory.physical.is_external {
                    memory.physical.note_due(range, (offset, size));
                }
            }
            Freed::Tail { block, number } => self.due_tails.push((block, number)),
            Freed::Dedicated(block) => {
                pool.record_dedicated_gone(&block);
                let give_back = block.give_back;
                match block.resizable && !give_back && !block.is_malloc() {
                    true => memory.physical.cache_range(*block),
                    false => memory.physical.note_due_block(*block, give_back),
                }
            }
        }
    }

    /// See [`threshold`].
    pub(in crate::pool) fn threshold(&self, pool: &Pool, memory: &Memory) -> u64 {
        threshold(pool, memory)
    }

    pub(super) fn is_over_threshold(&self, pool: &Pool, memory: &Memory) -> bool {
        memory.physical.reserved() > threshold(pool, memory) && !memory.physical.is_external
    }

    fn keep_to_threshold(&self, pool: &Pool, memory: &mut Memory) {
        if self.is_over_threshold(pool, memory) {
            memory.physical.note_excess();
        }
    }
}

/// The most bytes that stay reserved once they are free.
fn threshold(pool: &Pool, memory: &Memory) -> u64 {
    let threshold = match pool.options.release_threshold {
        ReleaseThreshold::Bytes(bytes) => bytes,
        _ => u64::MAX,
    };
    // Memory beyond the limit does not stay, whatever the threshold keeps otherwise.
    match memory.physical.limit {
        0 => threshold,
        limit => threshold.min(limit),
    }
}
