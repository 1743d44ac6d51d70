//! Frees on streams without ids: an event is recorded for each.

use super::MAX_WAITING;
use crate::driver::{Capture, Context, Event, Stream};
use crate::history::Action;
use crate::pool::reclaim::Reclaimer;
use crate::pool::reclaim::sets::{Asker, Freed, Wait};
use crate::pool::stream_cache::Key;
use crate::pool::{Memory, Pool};

impl Reclaimer {
    /// Records an event behind everything queued on `stream` so far; none where the stream captures, the driver
    /// refuses, or too many frees wait already.
    pub(in crate::pool::reclaim) fn record_event_behind(
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

    /// Adds memory that waits for its event. A block becomes the free space of an owner of its own, which streams may be cut
    /// from behind the event.
    pub(in crate::pool::reclaim) fn free_behind_event(
        &mut self,
        pool: &Pool,
        memory: &mut Memory,
        freed: Freed,
        (key, (context, event)): (Key, (Context, Event)),
    ) {
        let free_space = &mut memory.free_space;
        match freed {
            Freed::Block { id, .. } => {
                let owner = free_space.add_owner();
                self.wait_for_event(key, (context, event), owner);
                pool.record_freed(Action::FreeCompleted, id, Some(key.stream));
                pool.end_block(free_space, id);
                free_space.give(id, owner, 0);
            }
            freed => {
                let wait = Wait::Event(context, Some(event));
                self.pending.sets.insert(Asker::Handle(key), wait, freed, free_space);
            }
        }
    }
}
