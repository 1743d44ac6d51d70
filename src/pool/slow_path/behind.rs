//! Steps that take memory behind an event of the work that may still use it.

use super::SlowPath;
use super::requester::Requester;
use crate::driver::Context;
use crate::pool::Core;
use crate::pool::free_space::{NodeId, Owner};
use crate::pool::reclaim::per_free_events::Scope;
use crate::pool::stream_cache::block::Blocks;
use crate::sync::broken;

impl SlowPath<'_, '_> {
    /// Takes a range of another stream of the same context, behind that stream's completion event. The contexts
    /// must be the same. Otherwise the taker's context can be destroyed, and its wait with it, while the awaited work
    /// goes on. The block may then be freed on a third stream, which has waited for nothing.
    pub(super) fn take_from_other_stream(&mut self) -> Option<NodeId> {
        let (pool, want) = (self.pool, self.want);
        let Requester::Stream(view, owner) = self.requester else {
            return None;
        };
        if pool.options.pinned {
            return None;
        }
        let Core { memory, reclaimer, .. } = &mut **self.core;
        let free_space = &mut memory.free_space;
        let here = pool.caches.lock(view.key).1.served().map(|of| of.context);
        let others: Vec<Owner> = reclaimer.pending.outstanding().collect();
        for other in others {
            let near = |(context, _): &(Context, _)| other != owner && Some(*context) == here;
            let Some((context, event)) = reclaimer.pending.last_event(other).filter(near) else {
                continue;
            };
            let through = match broken("another stream's memory is taken behind its event") {
                true => u64::MAX,
                false => reclaimer.pending.last_event_number(other),
            };
            let Some(id) = free_space.take_covered(other, want.size, want.align, through) else {
                continue;
            };
            if broken("another stream's memory is taken behind its event") {
                return Some(id);
            }
            // No block can have that number.
            if id > Blocks::MAX {
                free_space.put_back(id, other);
                return None;
            }
            // A green context may be destroyed while the primary context goes on.
            let stays = pool.calls.query(|driver| driver.is_of_green_context(view.stream)) == Ok(false);
            if !stays && !broken("a green context takes nothing behind an event") {
                free_space.give(id, other, through);
                return None;
            }
            let waits = pool.calls.submit(|driver| driver.stream_wait_event(view.stream, event));
            match waits {
                Ok(()) if reclaimer.contexts.is_there(&pool.calls, context) == Some(true) => return Some(id),
                // The context is gone, so the event is not the pool's.
                Ok(()) => {}
                Err(error) => tracing::debug!(%error, "a stream could not be made to wait for another"),
            }
            free_space.give(id, other, through);
        }
        None
    }

    /// For a stream without an id: takes what was freed behind an event.
    #[inline]
    pub(super) fn take_behind_event(&mut self, scope: Scope) -> Option<NodeId> {
        let Requester::PerFreeEvents(view) = self.requester else {
            return None;
        };
        let Core { memory, reclaimer, .. } = &mut **self.core;
        reclaimer.take_behind_free(self.pool, memory, self.want, view, scope)
    }

    /// For a stream without an id: takes several ranges together, each behind its event.
    pub(super) fn take_joined_behind_events(&mut self) -> Option<NodeId> {
        let Requester::PerFreeEvents(view) = self.requester else {
            return None;
        };
        let Core { memory, reclaimer, .. } = &mut **self.core;
        reclaimer.take_joined_behind_frees(self.pool, memory, self.want, view)
    }
}
