//! Requests for blocks with a range of their own, and their growth.

use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::MutexGuard;

use super::ladder::capture_invalidated;
use super::standalone::{Grown, Standalone};
use super::{Core, Pool, Turn, Want};
use crate::driver::{self, Capture, Failure};
use crate::error::{Error, Result};

/// Why a block has a range of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// It may be resized.
    Resizable,
    /// An unmapped page lies behind it.
    Guarded,
    /// Each request is one driver allocation.
    Passthrough,
}

impl Pool {
    /// Which special kind requests get under the options in force; `resizable` is the request's own flag.
    pub fn special(&self, resizable: bool) -> Option<Special> {
        let mapped = self.space.base().is_some();
        match () {
            () if self.options.passthrough => Some(Special::Passthrough),
            () if resizable && mapped => Some(Special::Resizable),
            () if self.options.guard && mapped => Some(Special::Guarded),
            () => None,
        }
    }

    /// A block with a range of its own. On a capturing stream it belongs to the graph, like any other.
    pub fn allocate_special(&self, want: Want, special: Special, turn: Option<&Turn<'_>>) -> Result<u64> {
        self.alive()?;
        let mut core = self.core.lock();
        core.still_open()?;
        self.check_context(&mut core)?;
        self.bury_graphs(&mut core);
        self.note_current(&mut core).map_err(|error| self.failed(error))?;
        let _entered = self.enter(&core)?;
        let capture = match turn {
            Some(turn) if turn.capture == Capture::None => self.join_stream(&mut core, turn).map(|_| 0)?,
            Some(_) if special == Special::Passthrough => {
                return Err(Error::Unsupported("passthrough would end the stream's capture".into()));
            }
            Some(turn) if turn.capture == Capture::Active => self.join_capture(&mut core, turn)?.1,
            Some(turn) if turn.capture == Capture::Invalidated => return Err(capture_invalidated()),
            _ => 0,
        };
        let mut block = self.with_room(&mut core, &want, capture == 0, |pool, core, create| {
            let Core { mapping, .. } = core;
            let (size, requested) = (want.size, want.requested);
            match special {
                Special::Resizable => Standalone::resizable(&pool.calls, mapping, size, requested, create),
                Special::Guarded => Standalone::guarded(&pool.calls, mapping, size, requested, want.align, create),
                Special::Passthrough if size > create => Ok(None),
                Special::Passthrough => Standalone::malloc(&pool.calls, mapping, size, requested).map(Some),
            }
        })?;
        block.capture = capture;
        let address = block.address;
        if address & (want.align - 1) != 0 {
            core.grace.free(super::grace::Freed::Standalone(Box::new(block)));
            self.counters.pending.fetch_add(want.size, Ordering::Relaxed);
            return Err(Error::Unsupported(format!("alignment {} with passthrough", want.align)));
        }
        self.standalones.write().insert(address, Box::new(block));
        drop(core);
        self.charge(want.size);
        self.counters.allocations.fetch_add(1, Ordering::Relaxed);
        self.counters.requested.fetch_add(want.requested, Ordering::Relaxed);
        Ok(address)
    }

    /// Resizes a resizable block; see `Allocator::reallocate`. None where `address` is no block with a range of its own.
    pub fn resize(&self, address: u64, want: Want) -> Option<Result<u64>> {
        // Out of the table while it is worked on: a racing free of the same block finds nothing.
        let mut block = self.standalones.write().remove(&address)?;
        let (tag, growth) = (block.tag, want.size.saturating_sub(block.size));
        let outcome = self.tag_grows(tag, growth).and_then(|()| {
            let old = block.size;
            let outcome = self.resize_block(&mut block, want);
            let surplus = (old + growth).saturating_sub(block.size);
            self.tag_shrinks(tag, surplus);
            outcome
        });
        let address = block.address;
        self.standalones.write().insert(address, block);
        Some(outcome.map(|()| address))
    }

    fn resize_block(&self, block: &mut Standalone, want: Want) -> Result<()> {
        if !block.resizable {
            return Err(Error::InvalidArgument("the block was not allocated resizable".into()));
        }
        self.alive()?;
        let (old, old_requested) = (block.size, block.requested);
        let mut grown = Grown::InPlace;
        if want.size <= block.committed() {
            (block.size, block.requested) = (want.size, want.requested);
        } else {
            let mut core = self.core.lock();
            let _entered = self.enter(&core)?;
            self.check_context(&mut core)?;
            grown = self.with_room(&mut core, &want, block.capture == 0, |pool, core, create| {
                let Core { mapping, .. } = core;
                match block.resize(&pool.calls, mapping, want.size, want.requested, create)? {
                    Grown::Short => Ok(None),
                    grown => Ok(Some(grown)),
                }
            })?;
        }
        if want.size >= old {
            self.charge(want.size - old);
        } else {
            self.taken_back(old - want.size);
        }
        self.counters
            .requested
            .fetch_add(want.requested.wrapping_sub(old_requested), Ordering::Relaxed);
        self.counters.reallocations.fetch_add(1, Ordering::Relaxed);
        if grown == Grown::InPlace {
            self.counters.reallocations_in_place.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Tries `build` with ever more room made for it: the ladder of blocks that have no use for the window's free space.
    fn with_room<T>(
        &self,
        core: &mut MutexGuard<'_, Core>,
        want: &Want,
        may_wait: bool,
        mut build: impl FnMut(&Pool, &mut Core, u64) -> driver::Result<Option<T>>,
    ) -> Result<T> {
        let mut refusal = None;
        let (mut deadline, mut covered): (Option<Instant>, bool) = (None, false);
        loop {
            for (give_back, within_budget) in [(false, true), (true, true), (true, false)] {
                if give_back {
                    self.settle(core)?;
                    self.release_for(core, want.size);
                }
                let room = if within_budget {
                    self.budget(core, want)
                } else {
                    self.room(core)
                };
                let built = build(self, core, room);
                core.reserved_peak = core.reserved_peak.max(core.mapping.reserved());
                match built {
                    Ok(Some(built)) => return Ok(built),
                    Ok(None) => {}
                    Err(error) if error.failure == Failure::OutOfMemory => refusal = Some(error),
                    Err(error) => return Err(self.failed(error)),
                }
            }
            if !may_wait || !self.wait(core, &mut deadline, &mut covered)? {
                return Err(self.out_of_memory(core, want, refusal));
            }
        }
    }

    /// Gives free memory of the window back, so that `bytes` fit beside it.
    fn release_for(&self, core: &mut Core, bytes: u64) {
        let reserved = core.mapping.reserved();
        // With virtual memory, what is released is at least as large as what is to be created.
        let keep = reserved.saturating_sub(bytes.saturating_add(bytes / 16).saturating_add(2 * core.mapping.page));
        if !core.fixed {
            let Core { heap, mapping, .. } = core;
            mapping.release(heap, keep);
        }
    }
}
