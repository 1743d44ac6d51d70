//! Per-free events, for streams without ids (before CUDA 12.0): each block that is freed on such a stream waits for an
//! event of its own.
//!
//! A handle may come back as another stream unnoticed, so no memory belongs to a handle, and no event covers two frees.
//! Any stream that is made to wait for a free's event may have its memory. Every caller may have it once the event has
//! completed. The handle only decides which frees are tried first: mostly it still names the stream that did the work,
//! and then the wait costs nothing.

use std::collections::VecDeque;

use crate::driver::{Context, DriverError, Event, Failure};
use crate::pool::driver_calls::DriverCalls;
use crate::pool::free_space::{COMMON, Owner};
use crate::pool::reclaim::Reclaimer;
use crate::pool::reclaim::pending::{Awaited, Freed, PendingFrees};
use crate::pool::stream_cache::Key;
use crate::pool::{Memory, Pool};
use crate::support::error::Result;
use crate::sync::HashMap;

mod free;
mod take;

pub(in crate::pool) use take::Reach;

/// The most frees that wait at once; further ones are treated as if they were made without a stream. Some Ascend
/// devices have 1023 events in all, and recording one more waits until one has completed.
const MAX_WAITING: usize = 512;

/// What was freed.
enum PendingMemory {
    /// Free space of the pool, which belongs to this owner alone.
    Space(Owner),
    /// A dedicated allocation.
    Dedicated(Freed),
}

/// One free.
struct Entry {
    number: u64,
    context: Context,
    /// None if the event went with its context.
    event: Option<Event>,
    memory: PendingMemory,
}

/// All frees that wait, by the handle on which they were made, oldest first.
#[derive(Default)]
pub(in crate::pool) struct PerFreeEvents {
    by: HashMap<Key, VecDeque<Entry>>,
    count: usize,
    numbers: u64,
}

impl PerFreeEvents {
    fn push(&mut self, key: Key, context: Context, event: Event, memory: PendingMemory) {
        self.numbers += 1;
        self.count += 1;
        self.by.entry(key).or_default().push_back(Entry {
            number: self.numbers,
            context,
            event: Some(event),
            memory,
        });
    }

    fn remove(&mut self, key: Key, number: u64) {
        if let Some(entries) = self.by.get_mut(&key) {
            entries.retain(|entry| entry.number != number);
            self.count -= 1;
            if entries.is_empty() {
                self.by.remove(&key);
            }
        }
    }

    /// The frees that a stream of `context` may wait for. Another context's work may outlive `context`, and the wait
    /// would end with `context`: see [`Pool::take_from_other_stream`].
    fn within(&self, context: Context) -> impl Iterator<Item = &Entry> {
        let entries = self.by.values().flatten();
        entries.filter(move |entry| entry.context == context)
    }

    /// Takes all entries of `context` that are free space of the pool.
    fn take_spaces(&mut self, context: Context) -> Vec<Entry> {
        let mut taken = Vec::new();
        for entries in self.by.values_mut() {
            let is_taken = |entry: &Entry| entry.context == context && matches!(entry.memory, PendingMemory::Space(_));
            let (spaces, others) = entries.drain(..).partition::<VecDeque<_>, _>(is_taken);
            taken.extend(spaces);
            *entries = others;
        }
        self.by.retain(|_, entries| !entries.is_empty());
        self.count -= taken.len();
        taken
    }

    /// Every dedicated allocation that waits.
    pub(in crate::pool) fn freed(&self) -> impl Iterator<Item = &Freed> {
        self.by.values().flatten().filter_map(|entry| match &entry.memory {
            PendingMemory::Dedicated(freed) => Some(freed),
            PendingMemory::Space(_) => None,
        })
    }

    pub(in crate::pool) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The oldest event.
    pub(in crate::pool) fn awaited(&self) -> Option<Awaited> {
        let oldest = self
            .by
            .values()
            .filter_map(VecDeque::front)
            .min_by_key(|entry| entry.number)?;
        oldest.event.map(|event| Awaited::Event(oldest.context, event))
    }

    /// Forgets an event that went with its context.
    pub(in crate::pool) fn forget_event(&mut self, event: Event) {
        let entries = self.by.values_mut().flatten();
        entries
            .filter(|entry| entry.event == Some(event))
            .for_each(|entry| entry.event = None);
    }

    pub(in crate::pool) fn context_gone(&mut self, context: Context) {
        let entries = self.by.values_mut().flatten();
        entries
            .filter(|entry| entry.context == context)
            .for_each(|entry| entry.event = None);
    }
}

/// The result of querying the events.
#[derive(Default)]
struct Queried {
    over: Vec<PendingMemory>,
    /// Their events do not answer or are gone: a wait for everything covers them too.
    unanswered: Vec<PendingMemory>,
    failed: Option<(Context, DriverError)>,
}

impl PendingFrees {
    /// Queries for each handle which of its frees have completed. Frees of one handle are queried in order, though
    /// behind a handle that came back they may complete in another order. An event that does not answer is left alone:
    /// its context may be gone, another context may have its handle, and the event may be that context's. A driver without
    /// ids cannot say so beforehand. So a query may meet the application's event, and end the capture that it is recorded in.
    fn query_per_free_events(&mut self, calls: &DriverCalls) -> Queried {
        let mut queried = Queried::default();
        let mut spare = Vec::new();
        for entries in self.per_free_events.by.values_mut() {
            while let Some(entry) = entries.front() {
                let (place, serves_again) =
                    match entry.event.map(|event| calls.query(|driver| driver.event_query(event))) {
                        Some(Ok(true)) => (&mut queried.over, true),
                        // The work in other contexts that its stream had waited for is not gone with its own context.
                        None => (&mut queried.unanswered, false),
                        Some(Ok(false)) => break,
                        // The event went with its context, whichever context has the handle now.
                        Some(Err(error)) if error.failure == Failure::ContextDestroyed => {
                            queried.failed = Some((entry.context, error));
                            (&mut queried.unanswered, false)
                        }
                        Some(Err(error)) if error.failure.is_dead() || error.failure == Failure::Capture => {
                            queried.failed = Some((entry.context, error)).filter(|_| error.failure.is_dead());
                            break;
                        }
                        Some(Err(_)) => (&mut queried.unanswered, false),
                    };
                if let Some(entry) = entries.pop_front() {
                    self.per_free_events.count -= 1;
                    spare.extend(entry.event.filter(|_| serves_again).map(|event| (entry.context, event)));
                    place.push(entry.memory);
                }
            }
        }
        self.per_free_events.by.retain(|_, entries| !entries.is_empty());
        spare
            .into_iter()
            .for_each(|(context, event)| self.keep_event(context, event));
        queried
    }
}

impl Reclaimer {
    /// Collects what has completed of what was freed on streams without ids.
    pub(in crate::pool) fn poll_per_free_events(&mut self, pool: &Pool, memory: &mut Memory) -> Result<()> {
        if self.pending.per_free_events.is_empty() {
            return Ok(());
        }
        let queried = self.pending.query_per_free_events(&pool.calls);
        for left in queried.over {
            match left {
                PendingMemory::Space(owner) => {
                    memory.free_space.transfer(owner, COMMON, u64::MAX, 0);
                    memory.free_space.remove_owner(owner);
                }
                PendingMemory::Dedicated(freed) => self.return_freed(pool, memory, freed),
            }
        }
        for left in queried.unanswered {
            match left {
                PendingMemory::Space(owner) => {
                    let bytes = memory.free_space.free_bytes(owner);
                    memory.counts.add_pending(bytes);
                    for id in memory.free_space.take_all(owner) {
                        let freed = Freed::Block { id, give_back: false };
                        self.pending.file(freed, &memory.free_space);
                    }
                    memory.free_space.remove_owner(owner);
                }
                PendingMemory::Dedicated(freed) => self.pending.file(freed, &memory.free_space),
            }
        }
        match queried.failed {
            Some((context, error)) => self.context_failed(pool, context, error),
            None => Ok(()),
        }
    }
}
