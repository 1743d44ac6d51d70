//! Resizing: within the memory that the block has, in place with more memory, or with the same memory at a larger
//! range.
//!
//! Uses: dedicated, free_space, physical, reclaim, slow_path, stream_cache.

mod copy;
mod remainder;

use crate::pool::dedicated::{Cell, Claimed};
use crate::pool::physical::dedicated_memory::{DedicatedMemory, Grown, PendingTail, Remainder};
use crate::pool::reclaim::sets::Freed;
use crate::pool::reclaim::wait::Wait;
use crate::pool::slow_path::dedicated_fallback::DedicatedFallback;
use crate::pool::{Core, Pool, Want};
use crate::support::error::{Error, Result};
use crate::sync::atomic::Ordering::Relaxed;

impl Pool {
    /// Resizes a resizable dedicated allocation; see `Allocator::reallocate`. None where no dedicated allocation starts
    /// at `address`.
    #[inline]
    pub fn resize(&self, address: u64, want: Want) -> Option<Result<u64>> {
        let block = self.dedicated.claim(address)?;
        let tag = block.tag.load(Relaxed);
        if tag == 0 {
            return Some(self.resize_claimed(block, want));
        }
        let old = block.size.load(Relaxed);
        Some(self.resize_with_tag(tag, (old, want.size), || {
            let outcome = self.resize_claimed(block, want);
            let now = if outcome.is_ok() { want.size } else { old };
            (outcome, now)
        }))
    }

    #[inline]
    fn resize_claimed(&self, block: Claimed<'_>, want: Want) -> Result<u64> {
        self.alive()?;
        // Every block satisfies the smallest alignment.
        if want.align != self.options.rule.start && want.align != block.align.load(Relaxed) {
            return Err(another_alignment(want.align, block.align.load(Relaxed)));
        }
        let old = block.size.load(Relaxed);
        let had = block.requested.load(Relaxed);
        let gives_up_ordered = want.requested < block.ordered.load(Relaxed);
        if want.size > block.max_size.load(Relaxed) || leaves_handles(&block, want) || gives_up_ordered {
            if block.block().as_ref().is_some_and(|block| block.is_malloc()) {
                return self.resize_dedicated_by_copying(block, want);
            }
            self.change_memory(&block, want)?;
        }
        if want.requested < had {
            let peak = block.peak.load(Relaxed).max(self.usable(had));
            block.peak.store(peak, Relaxed);
        }
        block.size.store(want.size, Relaxed);
        block.requested.store(want.requested, Relaxed);
        block.resizes.store(block.resizes.load(Relaxed) + 1, Relaxed);
        if want.size > old {
            self.charge(want.size - old);
        } else if want.size < old {
            self.taken_back(old - want.size);
        }
        Ok(block.address.load(Relaxed))
    }

    /// The new size needs more memory than the block has, or frees whole handles, or gives up bytes that work on the block
    /// before it may use.
    #[cold]
    fn change_memory(&self, block: &Claimed<'_>, want: Want) -> Result<()> {
        let mut memory = block.block();
        let Some(memory) = memory.as_mut() else {
            return Err(Error::InvalidArgument("the block is no more".into()));
        };
        if !memory.resizable {
            return Err(Error::InvalidArgument("the block was not allocated resizable".into()));
        }
        let mut core = self.core.lock();
        let used = self.usable(want.requested);
        if let Some(remainder) = memory.remainder.filter(Remainder::limits)
            && used > remainder.start
        {
            self.wait_for_remainder(&mut core, remainder)?;
            memory.remainder = None;
            if want.size <= memory.max_size() {
                block.update_limits(memory);
                return Ok(());
            }
        }
        if want.size > memory.committed() {
            let _entered = self.enter(&core.reclaimer.contexts)?;
            core.reclaimer.check_context(self)?;
            let old = block.size.load(Relaxed);
            let more = Want {
                size: want.size - old,
                ..want
            };
            let fallback = DedicatedFallback {
                pool: self,
                core: &mut core,
                want: &more,
                stream: None,
                wait: (memory.capture == 0).then(Wait::default),
            };
            let grown = fallback.run(|core, budget| memory.grow(&self.calls, core, want.size, budget))?;
            memory.pending_tail = None;
            if grown == Grown::Moved {
                self.dedicated.move_to(block, memory.address);
                self.counters.moves.fetch_add(1, Relaxed);
            }
        } else if want.size > memory.max_mapped() {
            memory.take_back_tail(want.size, core.memory.physical.page);
        } else if leaves_handles(block, want) {
            self.defer_tail(&mut core, block.id, memory, want.size);
        }
        // What the block gives up now it gets back once no work on the block before it can use that.
        if let Some(remainder) = &mut memory.remainder {
            remainder.start = remainder.start.min(used);
        }
        block.update_limits(memory);
        Ok(())
    }

    /// Defers the return of whole handles that a shrink to `size` bytes leaves over, until no work queued so far can
    /// use them. They wait like all that is freed without a stream. But a resize must not end a capture, so another
    /// call's event covers them.
    fn defer_tail(&self, core: &mut Core, id: u32, memory: &mut DedicatedMemory, size: u64) {
        let Some(cut) = memory.cut_for(size, core.memory.physical.page) else {
            return;
        };
        let number = self.counters.tails.fetch_add(1, Relaxed) + 1;
        memory.pending_tail = Some(PendingTail { cut, number });
        let Core { memory, reclaimer, .. } = core;
        reclaimer
            .pending
            .sets
            .file(Freed::Tail { block: id, number }, &memory.free_space);
    }
}

/// Whether a resize is a shrink that frees whole handles.
#[inline]
fn leaves_handles(block: &Cell, want: Want) -> bool {
    want.size < block.size.load(Relaxed) && want.size + want.size / 16 <= block.shrinks_at.load(Relaxed)
}

#[cold]
fn another_alignment(requested: u64, has: u64) -> Error {
    Error::InvalidArgument(format!(
        "alignment {requested} of a block that was allocated with {has}"
    ))
}
