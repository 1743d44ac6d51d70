//! How a dedicated allocation comes back, and what a shrink of one left over.

use crate::pool::counters::FreedBytes;
use crate::pool::dedicated::{Cell, Claimed, Try};
use crate::pool::physical::Locked;
use crate::pool::physical::dedicated_memory::{DedicatedMemory, Remainder};
use crate::pool::reclaim::free::FreedOn;
use crate::pool::reclaim::sets::Freed;
use crate::pool::reclaim::stream_uses::Uses;
use crate::pool::{Core, Pool};
use crate::sync::atomic::Ordering;
use crate::sync::{MutexGuard, broken};

impl Pool {
    /// Takes back a dedicated allocation; false where none starts at `address`. One that was freed on a stream with a
    /// cache is reusable behind that stream's next completion event.
    pub fn free_dedicated(&self, address: u64, freed_on: FreedOn) -> bool {
        match self.dedicated.claim(address) {
            Some(block) => self.free_claimed(block, freed_on),
            None => return false,
        }
        true
    }

    /// As [`Pool::free_dedicated`].
    pub(in crate::pool) fn free_claimed(&self, claimed: Claimed<'_>, freed_on: FreedOn) {
        let shared = claimed.stream_uses.load(Ordering::Relaxed) != 0;
        let resizes = claimed.resizes.load(Ordering::Relaxed);
        self.untag_dedicated(&claimed);
        let used = self.usable(claimed.requested.load(Ordering::Relaxed));
        let Some(mut block) = self.dedicated.remove(claimed, used) else {
            return;
        };
        let origin = block.origin.take();
        let freed_on = match freed_on.key() {
            Some(key) => FreedOn::stream(key, origin),
            None => freed_on,
        };
        self.free_removed(block, (resizes, shared), freed_on);
        // The origin keeps its key until the block is filed.
        origin.inspect(|origin| self.caches.end_use(*origin));
    }

    /// As [`Pool::free_dedicated`], for a block that was taken from the table. Others may have been declared to use it.
    fn free_removed(&self, mut block: Box<DedicatedMemory>, (resizes, shared): (u64, bool), freed_on: FreedOn) {
        let bytes = FreedBytes {
            allocated: block.size,
            requested: 0,
            resizes,
        };
        self.record_dedicated_free(&block, freed_on.stream_named());
        if self.is_dead() {
            return self.count_free_in_dead_pool(bytes);
        }
        block.give_back = self.gives_back(block.size, freed_on);
        let mut core = self.core.lock();
        self.count_free(&mut core.memory.counts, bytes);
        if broken("a free counts its block under the lock that files it") {
            drop(core);
            core = self.core.lock();
        }
        let Core { memory, reclaimer, .. } = &mut *core;
        reclaimer.reclaim_graphs(self, memory);
        if let Some(owner) = block.owner {
            reclaimer.pending.count_dedicated(owner, -1);
        }
        let of = (block.capture, shared.then_some(Uses::Unknown));
        reclaimer.free(self, memory, Freed::Dedicated(block), of, freed_on);
        let _ = self.give_due_back(&mut core);
    }

    /// Takes all that live blocks have at their ends and do not use, until `lacking` bytes more are cached. Returns whether
    /// that was anything.
    pub(in crate::pool) fn cut_all_ends(&self, core: &mut MutexGuard<'_, Core>, lacking: u64) -> bool {
        self.cut_ends(core, lacking, |block, used| block.cut_at(used)) > 0
    }

    /// Takes whole handles from the ends of live blocks, each from the offset that `cut_at` returns, and caches them, until
    /// those are `lacking` bytes. `cut_at` is passed a block and the bytes of it that work may use. Blocks that a thread changes
    /// now, that belong to a graph, or whose end is pending stay as they are. Returns the bytes.
    pub(in crate::pool) fn cut_ends(
        &self,
        core: &mut MutexGuard<'_, Core>,
        lacking: u64,
        mut cut_at: impl FnMut(&mut DedicatedMemory, u64) -> Option<u64>,
    ) -> u64 {
        let mut cut = 0;
        for block in self.dedicated.all() {
            if cut >= lacking {
                break;
            }
            cut += self.cut_end(core, block, &mut cut_at);
        }
        cut
    }

    /// As [`Pool::cut_ends`], for one block. The lock is given up while its end leaves, but not the claim of the block: other
    /// calls that change it wait for that, and none that holds the lock does.
    pub(in crate::pool) fn cut_end(
        &self,
        core: &mut MutexGuard<'_, Core>,
        (id, cell): (u32, &Cell),
        cut_at: impl FnOnce(&mut DedicatedMemory, u64) -> Option<u64>,
    ) -> u64 {
        if cell.max_size.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let Try::Claimed(claimed) = self.dedicated.try_claim(id) else {
            return 0;
        };
        let [size, peak] = [&claimed.size, &claimed.peak].map(|bytes| bytes.load(Ordering::Relaxed));
        let mut block = claimed.block();
        let Some(block) = block.as_mut() else { return 0 };
        let pending = &core.reclaimer.pending;
        let is_known = |of: &Remainder| !of.limits() || pending.has_remainder(of.number);
        block.remainder = block.remainder.filter(is_known);
        let limits = block.remainder.as_ref().is_some_and(Remainder::limits);
        if block.capture != 0 || block.pending_tail.is_some() || limits {
            return 0;
        }
        let cut = cut_at(block, size.max(peak));
        let bytes = cut.map_or(0, |cut| self.cut_block(core, block, cut));
        claimed.update_limits(block);
        bytes
    }

    /// Caches the handles of a claimed block from `cut` on. Returns the bytes.
    fn cut_block(&self, core: &mut MutexGuard<'_, Core>, block: &mut DedicatedMemory, cut: u64) -> u64 {
        let before = block.committed();
        let left = core.release(block.cut(cut));
        self.record_cut(block, before);
        left.bytes()
    }

    /// Caches the handles that shrinks left over and that are reusable now, unless the block has grown again, has shrunk
    /// further, or is gone. As [`Pool::cut_end`] otherwise. Returns whether that was anything.
    pub(in crate::pool) fn return_due_tails(&self, core: &mut MutexGuard<'_, Core>) -> bool {
        let mut bytes = 0;
        while core.reclaimer.has_due_tails() {
            for (id, number) in std::mem::take(&mut core.reclaimer.due_tails) {
                bytes += self.return_tail(core, id, number);
            }
        }
        bytes > 0
    }

    fn return_tail(&self, core: &mut MutexGuard<'_, Core>, id: u32, number: u64) -> u64 {
        let again = Freed::Tail { block: id, number };
        let claimed = match self.dedicated.try_claim(id) {
            Try::Claimed(claimed) => claimed,
            Try::Busy => {
                core.file(again);
                return 0;
            }
            Try::None => return 0,
        };
        let mut block = claimed.block();
        let Some(block) = block.as_mut() else { return 0 };
        let Some(tail) = block.pending_tail.filter(|tail| tail.number == number) else {
            return 0;
        };
        let Ok(_entered) = self.enter(&core.reclaimer.contexts) else {
            core.file(again);
            return 0;
        };
        block.pending_tail = None;
        let bytes = self.cut_block(core, block, tail.cut);
        // What the block gets behind that later, nothing has used.
        let peak = claimed.peak.load(Ordering::Relaxed).min(tail.cut);
        claimed.peak.store(peak, Ordering::Relaxed);
        claimed.update_limits(block);
        bytes
    }
}
