//! Frees on streams without ids: an event is recorded for each.

use super::MAX_WAITING;
use crate::driver::{Capture, Context, Event, Stream};
use crate::history::Action;
use crate::pool::counters::FreedBytes;
use crate::pool::free_space::{NodeId, Owner};
use crate::pool::reclaim::Reclaimer;
use crate::pool::reclaim::free::FreedOn;
use crate::pool::reclaim::sets::Freed;
use crate::pool::stream_cache::Key;
use crate::pool::stream_cache::block::Block;
use crate::pool::{Core, Memory, Pool};
use crate::sync::atomic::Ordering;

impl Pool {
    /// Takes back a claimed block that is freed on a stream without an id. Where no event can be recorded there, the
    /// block counts as freed without a stream.
    pub fn free_with_event(&self, id: NodeId, block: &Block, stream: Stream, key: Key) {
        if self.is_dead() {
            return self.free(id, block, FreedOn::Uncached);
        }
        let mut core = self.core.lock();
        let Core { memory, reclaimer, .. } = &mut *core;
        reclaimer.reclaim_graphs(self, memory);
        let number = block.capture.load(Ordering::Relaxed);
        let owner = match number {
            0 if block.stream_uses.load(Ordering::Relaxed) == 0 => {
                let recorded = reclaimer.record_event_behind(self, memory, stream);
                recorded.map(|at| {
                    let owner = memory.free_space.add_owner();
                    reclaimer.wait_for_event(key, at, owner);
                    owner
                })
            }
            0 => None,
            // Host memory that a graph reads is not used twice: see `Reclaimer::free`.
            _ if self.options.pinned => None,
            _ => reclaimer.freed_inside(self, stream, key, number, id),
        };
        let Some(owner) = owner else {
            reclaimer.note_stream_of_free(self, stream);
            drop(core);
            return self.free(id, block, FreedOn::Uncached);
        };
        let bytes = FreedBytes {
            allocated: block.size(),
            requested: block.requested.load(Ordering::Relaxed),
            resizes: 0,
        };
        self.count_free(&mut memory.counts, bytes);
        // Memory of a capture stays pending for every other stream.
        let action = match number {
            0 => Action::Freed,
            _ => Action::FreeRequested,
        };
        self.record_freed(action, id, Some(stream));
        self.end_block(&memory.free_space, id);
        memory.free_space.give(id, owner, 0);
    }

    /// As [`Pool::free_with_event`], for a dedicated allocation; false where none starts at `address`.
    pub fn free_dedicated_with_event(&self, address: u64, stream: Stream, key: Key) -> bool {
        let Some(claimed) = self.dedicated.claim(address) else {
            return false;
        };
        let plain = claimed.stream_uses.load(Ordering::Relaxed) == 0
            && claimed.block().as_ref().is_some_and(|block| block.capture == 0);
        if self.is_dead() {
            self.free_claimed(claimed, FreedOn::Uncached);
            return true;
        }
        let mut core = self.core.lock();
        let Core { memory, reclaimer, .. } = &mut *core;
        let recorded = plain.then(|| reclaimer.record_event_behind(self, memory, stream));
        let Some((context, event)) = recorded.flatten() else {
            reclaimer.note_stream_of_free(self, stream);
            drop(core);
            self.free_claimed(claimed, FreedOn::Uncached);
            return true;
        };
        let resizes = claimed.resizes.load(Ordering::Relaxed);
        self.untag_dedicated(&claimed);
        let used = self.usable(claimed.requested.load(Ordering::Relaxed));
        let Some(mut block) = self.dedicated.remove(claimed, used) else {
            reclaimer.pending.keep_event(context, event);
            return true;
        };
        let bytes = FreedBytes {
            allocated: block.size,
            requested: 0,
            resizes,
        };
        self.count_free(&mut memory.counts, bytes);
        block.origin.take().inspect(|origin| self.caches.end_use(*origin));
        self.record_dedicated_free(&block, Some(stream));
        reclaimer.wait_for_event_of_range(key, (context, event), Freed::Dedicated(block), memory);
        true
    }
}

impl Reclaimer {
    /// Notes the context of a free's stream. The stream exists, and another context may be current.
    fn note_stream_of_free(&mut self, pool: &Pool, stream: Stream) {
        if let Ok(context) = pool.calls.query(|driver| driver.context_of(stream)) {
            self.note_context_of_free(&pool.calls, context);
        }
    }

    /// Records an event behind everything queued on `stream` so far; none where the stream captures, the driver
    /// refuses, or too many frees wait already.
    pub(super) fn record_event_behind(
        &mut self,
        pool: &Pool,
        memory: &mut Memory,
        stream: Stream,
    ) -> Option<(Context, Event)> {
        let context = pool.calls.query(|driver| driver.context_of(stream)).ok()?;
        self.note_live_context(&pool.calls, context).ok()?;
        // Calls of this pool are not made in another device's context, where a default stream would be another one.
        if stream.is_default() && pool.calls.query(|driver| driver.current_device()) != Ok(Some(pool.device)) {
            return None;
        }
        let _entered = pool.calls.enter(context).ok()?;
        if pool.calls.query(|driver| driver.look_for_capture(stream)) != Ok(Capture::None) {
            return None;
        }
        if self.pending.sets.events() >= MAX_WAITING {
            self.poll_own_events(pool, memory).ok()?;
        }
        if self.pending.sets.events() >= MAX_WAITING {
            return None;
        }
        let record = |event| pool.calls.submit(|driver| driver.event_record(event, stream));
        let used = self.pending.unused_event(context);
        if let Some(event) = used.filter(|event| record(*event).is_ok()) {
            return Some((context, event));
        }
        let fresh = self.pending.new_event(&pool.calls, context);
        if let Some(event) = fresh.ok().filter(|event| record(*event).is_ok()) {
            // The refusal concerned the spare event only. That event is left alone, as in `poll_events`.
            return Some((context, event));
        }
        if let Ok(event) = fresh {
            let _ = pool.calls.submit(|driver| driver.event_destroy(event));
        }
        if let Some(event) = used {
            self.pending.keep_event(context, event);
        }
        None
    }

    /// The owner whose free space a block of capture `number` becomes that is freed on a stream of the capture.
    fn freed_inside(&mut self, pool: &Pool, stream: Stream, key: Key, number: u32, id: NodeId) -> Option<Owner> {
        let info = pool.calls.query(|driver| driver.stream_capture_info(stream)).ok()??;
        if self.graphs.number_of(info.id) != Some(number) {
            return None;
        }
        let owner = self.graphs.owner_of(number, key)?;
        self.graphs.freed_inside(number, id);
        Some(owner)
    }
}
