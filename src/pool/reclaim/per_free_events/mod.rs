//! Per-free events, for streams without ids (before CUDA 12.0): each block that is freed on such a stream waits for an
//! event of its own.
//!
//! A handle may come back as another stream unnoticed, so no memory belongs to a handle, and no event covers two frees.
//! Any stream that is made to wait for a free's event may have its memory. Every caller may have it once the event has
//! completed. The handle only decides which frees are tried first: mostly it still names the stream that did the work,
//! and then the wait costs nothing.

use crate::driver::{Context, Event};
use crate::pool::free_space::Owner;
use crate::pool::reclaim::Reclaimer;
use crate::pool::reclaim::sets::{Asker, SetId, Wait};
use crate::pool::stream_cache::Key;
use crate::pool::{Memory, Pool};
use crate::support::error::Result;

mod free;
mod take;

pub(in crate::pool) use take::Scope;

/// The most frees that wait at once; further ones are treated as if they were made without a stream. Some Ascend
/// devices have 1023 events in all, and recording one more waits until one has completed.
const MAX_WAITING: usize = 512;

/// The free space of one free, or of several: its set, its owner, and the event that it waits for.
struct Space {
    set: SetId,
    owner: Owner,
    event: Event,
}

impl Reclaimer {
    /// What was freed on the handle of `key` and has `context`, as far as it is free space of the pool. A stream may wait
    /// for these: another context's work may outlive the stream's own, and the wait would end with that. See
    /// [`SlowPath::take_from_other_stream`](crate::pool::slow_path).
    fn spaces(&self, key: &Key, context: Context) -> impl Iterator<Item = Space> {
        self.pending
            .sets
            .of_handle(key)
            .filter_map(move |(set, of)| match (of.space(), &of.wait) {
                (Some(owner), Wait::Event(at, Some(event))) if *at == context => Some(Space {
                    set,
                    owner,
                    event: *event,
                }),
                _ => None,
            })
    }

    /// Adds what was freed on the handle of `key`.
    fn wait_for_event(&mut self, key: Key, (context, event): (Context, Event), owner: Owner) {
        let wait = Wait::Event(context, Some(event));
        self.pending.sets.insert_space(Asker::Handle(key), wait, owner);
    }

    /// Collects what has completed of what was freed on streams without ids.
    fn poll_own_events(&mut self, pool: &Pool, memory: &mut Memory) -> Result<()> {
        let mut polled = self.pending.poll_own_events(&pool.calls);
        self.end_waits(pool, memory, &mut polled);
        match polled.failed {
            Some((context, error)) => self.context_failed(pool, context, error),
            None => Ok(()),
        }
    }
}
