//! The slow path: a request that missed its stream's cache looks for memory.
//!
//! Most of them find a fit in their stream's arena or in common free space at once (`arena.rs`). The others go through
//! four phases (`phases.rs`), whose steps are in `steps.rs`, `growing.rs` and `behind.rs`. Where none finds memory, the request waits for pending
//! memory, at most `wait_ms`, and begins again with the first phase. Where there is no more to wait for, idle handles
//! are unmapped, and mapped where the request fits. Then the out-of-memory handlers run (`allocator`), and null is
//! returned with a reason.
//!
//! [`SlowPath`] is one request on its way.
//!
//! Uses: free_space, physical, reclaim, stream_cache.

use crate::driver::{Capture, DriverError};
use crate::pool::free_space::{Cut, FreeSpace, NodeId};
use crate::pool::give_back::Others;
use crate::pool::physical::Ahead;
use crate::pool::reclaim::pending::Asks;
use crate::pool::reclaim::per_free_events::Scope;
use crate::pool::reclaim::wait::Wait;
use crate::pool::stream_cache::block::Blocks;
use crate::pool::{Core, Pool, StreamView, Want};
use crate::support::error::{Error, Result};
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;

mod arena;
mod behind;
pub mod dedicated;
pub mod dedicated_fallback;
mod growing;
pub mod growth_allowance;
mod phases;
mod refusal;
mod requester;
pub mod rise;
mod steps;

use phases::Step;
use refusal::capture_invalidated;
use requester::Requester;

impl Pool {
    /// Finds memory for a request that missed its stream's cache.
    pub fn allocate(&self, want: Want, view: Option<&StreamView>) -> Result<u64> {
        self.allocate_with(want, view, Wait::default())
    }

    /// As [`Pool::allocate`], with this wait for pending memory.
    fn allocate_with(&self, want: Want, view: Option<&StreamView>, wait: Wait) -> Result<u64> {
        let mut core = self.admit()?;
        self.obtain_reserve(&mut core)?;
        let remaps = core.memory.physical.remaps;
        core.allowance.request(remaps, want.size);
        core.rise.request(want.size);
        if let Some(view) = view
            && let Some(found) = self.take_from_arena(&mut core, &want, view)?
        {
            let _ = self.give_due_back(&mut core);
            drop(core);
            self.note_memory();
            if found.charge > 0 {
                self.charge(found.charge);
            }
            return Ok(found.address);
        }
        let requester = self.requester(&mut core, view)?;
        // The request may wait without the lock. Its stream's cache is the block's origin, and keeps its key from now on.
        let origin = view.map(|view| self.caches.begin_use(view.key));
        let found = SlowPath {
            pool: self,
            core: &mut core,
            want: &want,
            requester,
            wait,
            refusal: None,
            ahead: None,
            asks: Asks::few(),
        }
        .find();
        let id = found.inspect_err(|_| {
            origin.inspect(|origin| origin.end_use());
        })?;
        if id > Blocks::MAX {
            origin.inspect(|origin| origin.end_use());
            core.memory
                .free_space
                .put_back(id, requester.owner(self.options.pinned));
            self.count_refused();
            return Err(Error::OutOfMemory(format!("more than {} blocks at once", Blocks::MAX)));
        }
        let address = self.make_block(&core.memory.free_space, id, &want)?;
        self.blocks.get(id).hand_out(origin);
        self.addresses.index.set(core.memory.free_space.span(id).0, id);
        core.memory.free_space.hold(id, requester.arena(self.options.pinned));
        let charge = match requester {
            // As a hit does.
            Requester::Stream(view, _) => self.caches.lock(view.key).1.count(self.blocks.get(id), &want),
            Requester::Capture(..) | Requester::NoStream | Requester::PerFreeEvents(_) => {
                core.memory.counts.allocated(want.requested);
                want.size
            }
        };
        if let Requester::Capture(_, number) = requester {
            self.blocks.get(id).capture.store(number, Ordering::Relaxed);
            core.reclaimer.graphs.allocated(number, id);
        }
        let _ = self.give_due_back(&mut core);
        drop(core);
        self.note_memory();
        if charge > 0 {
            self.charge(charge);
        }
        Ok(address)
    }

    /// Obtains the reserve, if this is the pool's first request.
    #[inline]
    fn obtain_reserve(&self, core: &mut Core) -> Result<()> {
        if core.memory.physical.reserve.is_due() {
            let _entered = self.enter(&core.reclaimer.contexts)?;
            core.memory.obtain_reserve();
        }
        Ok(())
    }

    #[inline]
    fn requester<'a>(&self, core: &mut Core, view: Option<&'a StreamView>) -> Result<Requester<'a>> {
        let Core { memory, reclaimer, .. } = core;
        let free_space = &mut memory.free_space;
        Ok(match view {
            None => {
                let noted = reclaimer.note_current(&self.calls);
                noted.map_err(|error| self.failed(error))?;
                Requester::NoStream
            }
            Some(view) if view.capture == Capture::Active => {
                let (owner, number) = reclaimer.join_capture(self, free_space, view)?;
                Requester::Capture(owner, number)
            }
            Some(view) if view.capture == Capture::Invalidated => return Err(capture_invalidated()),
            Some(view) if view.id == 0 => {
                self.caches.lock(view.key).1.capture = 0;
                match self.options.pinned {
                    // The host must not write yet to memory that a stream only waits for.
                    true => Requester::NoStream,
                    false => Requester::PerFreeEvents(view),
                }
            }
            Some(view) => Requester::Stream(view, reclaimer.join_stream(self, free_space, view)?),
        })
    }

    /// Prepares a block of a taken node, which the caller hands out and enters into the index. Returns its address.
    fn make_block(&self, free_space: &FreeSpace, id: NodeId, want: &Want) -> Result<u64> {
        let (offset, _) = free_space.span(id);
        let address = self
            .addresses
            .address(offset)
            .ok_or_else(|| Error::Unsupported("an offset without memory".into()))?;
        let block = self.blocks.get(id);
        block.address.store(address, Ordering::Relaxed);
        block.size.store(want.size, Ordering::Relaxed);
        block.requested.store(want.requested, Ordering::Relaxed);
        block.capture.store(0, Ordering::Relaxed);
        block.stream_uses.store(0, Ordering::Relaxed);
        block.resizable.store(0, Ordering::Relaxed);
        Ok(address)
    }
}

/// One request in the slow path.
struct SlowPath<'a, 'c> {
    pool: &'a Pool,
    core: &'a mut MutexGuard<'c, Core>,
    want: &'a Want,
    requester: Requester<'a>,
    wait: Wait,
    /// The driver's last refusal to create memory.
    refusal: Option<DriverError>,
    /// How far a growth goes ahead of the request.
    ahead: Option<Ahead>,
    /// Which events it may still ask whether they have completed.
    asks: Asks,
}

impl SlowPath<'_, '_> {
    /// Goes through the steps until there is memory, or no more to wait for.
    #[inline]
    fn find(&mut self) -> Result<NodeId> {
        self.record_due_event();
        self.cover_early();
        if let Some(id) = self.take_behind_event(Scope::Exact) {
            return Ok(id);
        }
        if let Some(id) = self.take_fit(Cut::Fair) {
            return Ok(id);
        }
        let physical = &self.core.memory.physical;
        if physical.is_external && self.want.size > physical.reserved() {
            return Err(self.out_of_memory());
        }
        let pool = self.pool;
        let _entered = pool.enter(&self.core.reclaimer.contexts)?;
        let mut others = Others::default();
        loop {
            others.look(self.core);
            if let Step::Break(found) = self.attempt() {
                return found;
            }
            // The memory that the request lacks may be on its way back to the driver.
            if pool.give_due_back(self.core)? || pool.wait_for_leaving(self.core, &mut others)? {
                continue;
            }
            if self.requester.is_capture() || !self.wait.wait(pool, self.core)? {
                return self.take_gathered()?.ok_or_else(|| self.out_of_memory());
            }
        }
    }

    fn out_of_memory(&self) -> Error {
        let (pool, refusal) = (self.pool, self.refusal);
        pool.note_refusal(refusal.as_ref(), self.wait.deadline());
        pool.out_of_memory(self.core, self.want, refusal)
    }
}
