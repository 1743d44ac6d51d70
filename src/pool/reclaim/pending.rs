//! What is pending, and the events that end its waits.
//!
//! Two kinds of events decide. A *completion event* of a stream is recorded inside a call that
//! was given that stream, and covers all that was freed on it before. A *batch* is a set of context events, one for
//! each context that has used the pool. It covers everything freed before it, with or without a stream. Where the
//! driver has no context events (before CUDA 12.5), the batch owes a synchronization instead. What an event covers
//! becomes common free space once the event has completed.

use std::collections::VecDeque;

use crate::driver::{Context, Event, Result, Stream};
use crate::pool::driver_calls::DriverCalls;
use crate::pool::free_space::{FreeSpace, Owner, OwnerMap, OwnerSet};
use crate::pool::reclaim::sets::{Asker, Batch, Freed, SetId, Sets, Wait};
use crate::pool::reclaim::synchronization::Synchronization;
use crate::sync::HashMap;

mod events;
mod poll;
mod ranges;

pub use poll::{Asks, Polled};

/// The completion events of one owner of free space, that is, of one stream.
struct CompletionEvents {
    context: Context,
    /// Recorded and not known to be complete, oldest first.
    events: VecDeque<(u64, Event)>,
    /// The highest number whose completion event is complete.
    complete: u64,
    /// What a batch covers of its frees, up to this number, whether the batch is complete or not.
    covered: u64,
    /// How many batches that are not complete cover some of its frees.
    batches: usize,
    /// How many dedicated allocations its stream has that are not freed yet.
    dedicated: u64,
}

/// What a wait would wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// An event.
    Event(Context, Event),
    /// A synchronization of that context; the batch it is for.
    Synchronization(Context, SetId),
}

/// The deferred reclamation of one pool.
#[derive(Default)]
pub struct PendingFrees {
    /// What waits.
    pub sets: Sets,
    completion_events: OwnerMap<CompletionEvents>,
    /// The owners whose stream is gone.
    orphans: OwnerSet,
    /// The owners with events that are not known to be complete, and some that had such events.
    outstanding: OwnerSet,
    /// The owner among them that was asked last in its turn, and how many polls there were.
    turn: Option<Owner>,
    polls: u64,
    /// Events that were created and that nothing waits for.
    unused_events: HashMap<Context, Vec<Event>>,
    /// A synchronization that no request waits for any more, and that still runs.
    pub synchronization: Option<Synchronization>,
}

impl PendingFrees {
    /// Adds an owner whose completion events are recorded in `context`.
    pub fn add(&mut self, owner: Owner, context: Context) {
        self.completion_events.insert(
            owner,
            CompletionEvents {
                context,
                events: VecDeque::new(),
                complete: 0,
                covered: 0,
                batches: 0,
                dedicated: 0,
            },
        );
    }

    /// The stream of `owner` is gone, or may be.
    pub fn orphan(&mut self, owner: Owner) {
        let is_known = self.completion_events.get(owner).is_some();
        self.orphans.set(owner, is_known);
    }

    /// The owners that are orphans: those whose stream is gone.
    pub fn orphans(&self) -> impl Iterator<Item = Owner> {
        self.orphans.iter()
    }

    /// Every owner with completion events.
    pub fn owners(&self) -> impl Iterator<Item = Owner> {
        self.completion_events.owners()
    }

    /// Whether `owner` has completion events: it is that of a stream, and of no capture or single free.
    pub fn is_owner(&self, owner: Owner) -> bool {
        self.completion_events.get(owner).is_some()
    }

    /// The owners with events that are not known to be complete, and some that had such events.
    pub fn outstanding(&self) -> impl Iterator<Item = Owner> {
        self.outstanding.iter()
    }

    /// Forgets an orphan that nothing waits for; false where something does.
    pub fn remove(&mut self, owner: Owner) -> bool {
        let gone = self.is_idle(owner) && self.orphans.has(owner);
        if gone {
            self.completion_events.remove(owner);
            self.orphans.set(owner, false);
        }
        gone
    }

    /// Whether nothing waits for events of `owner`, and its stream has no dedicated allocation.
    pub fn is_idle(&self, owner: Owner) -> bool {
        let idle = |events: &CompletionEvents| events.events.is_empty() && events.batches == 0 && events.dedicated == 0;
        self.completion_events.get(owner).is_some_and(idle) && !self.sets.waits_for(owner, 0)
    }

    /// How many owners there are.
    pub fn count_owners(&self) -> usize {
        self.completion_events.count()
    }

    /// Bytes that no event covers yet, and that most likely no completion event will cover soon: what streams that are gone
    /// or silent have freed, and what is behind declared uses. A range of its own that a stream freed does not count: the
    /// stream takes it back, and growth does.
    pub fn left_behind(&self, free_space: &FreeSpace) -> u64 {
        let silent = free_space
            .silent()
            .filter(|owner| !self.orphans.has(*owner) && self.is_owner(*owner));
        let left = self.orphans().chain(silent);
        let left = left.map(|owner| free_space.bytes_beyond(owner, self.covered(owner)));
        let uncovered = |(owner, number): &(Owner, u64)| *number > self.covered(*owner);
        let shared = self.sets.shared();
        let shared = shared.filter(|set| set.streams().iter().any(uncovered));
        left.sum::<u64>() + shared.map(|set| set.bytes()).sum::<u64>()
    }

    /// The number up to which an event covers what `owner`'s stream has freed, complete or not.
    fn covered(&self, owner: Owner) -> u64 {
        let covered = self.completion_events.get(owner).map_or(0, |events| events.covered);
        covered.max(self.last_event_number(owner))
    }

    /// Adds a dedicated allocation that `owner`'s stream has freed: it is reusable for others once completion event `number`
    /// has completed.
    pub fn free_range(&mut self, owner: Owner, number: u64, freed: Freed, free_space: &FreeSpace) {
        let wait = Wait::Streams(vec![(owner, number)]);
        self.sets.insert(Asker::Stream(owner), wait, freed, free_space);
    }

    /// Whether context events are outstanding.
    pub fn has_batches(&self) -> bool {
        self.sets.batches().next().is_some()
    }

    /// Whether `owner` belongs to a stream that may still exist.
    pub fn is_streams(&self, owner: Owner) -> bool {
        self.is_owner(owner) && !self.orphans.has(owner)
    }

    /// Whether something waits for completion events of `owner` that are not recorded yet.
    pub fn has_uncovered(&self, owner: Owner) -> bool {
        self.sets.waits_for(owner, self.last_event_number(owner))
    }

    /// The last completion event that was recorded (or is known complete) for `owner`.
    pub fn last_event_number(&self, owner: Owner) -> u64 {
        self.completion_events.get(owner).map_or(0, |events| {
            events.events.back().map_or(events.complete, |(number, _)| *number)
        })
    }

    /// The highest number whose completion event is known to be complete.
    #[inline]
    pub fn complete(&self, owner: Owner) -> u64 {
        self.completion_events.get(owner).map_or(0, |events| events.complete)
    }

    /// The last completion event recorded for `owner`, with its context; none if it is known to be complete.
    pub fn last_event(&self, owner: Owner) -> Option<(Context, Event)> {
        let events = self.completion_events.get(owner)?;
        events.events.back().map(|(_, event)| (events.context, *event))
    }

    /// Records completion event `number` on `stream`. The running call was given the stream, and the stream does not
    /// capture.
    pub fn record_event(&mut self, calls: &DriverCalls, owner: Owner, number: u64, stream: Stream) -> Result<()> {
        let Some(context) = self.completion_events.get(owner).map(|events| events.context) else {
            return Ok(());
        };
        let event = self.event(calls, context)?;
        if let Err(error) = calls.submit(|driver| driver.event_record(event, stream)) {
            self.unused_events.entry(context).or_default().push(event);
            return Err(error);
        }
        if let Some(events) = self.completion_events.get_mut(owner) {
            events.events.push_back((number, event));
            self.outstanding.set(owner, true);
        }
        Ok(())
    }

    /// Covers everything freed without a stream so far, and `covers` of the owners' frees, by an event in each of
    /// `contexts`. On an error, what could not be covered stays as it is.
    pub fn cover(&mut self, calls: &DriverCalls, contexts: &[Context], covers: Vec<(Owner, u64)>) -> Result<()> {
        if self.sets.filed_pieces() == 0 && covers.is_empty() {
            return Ok(());
        }
        let mut events = Vec::new();
        for context in contexts {
            let event = match self.context_event(calls, *context) {
                Ok(event) => event,
                Err(error) => {
                    events
                        .into_iter()
                        .for_each(|(context, event): (Context, Option<Event>)| {
                            self.unused_events.entry(context).or_default().extend(event);
                        });
                    return Err(error);
                }
            };
            events.push((*context, event));
        }
        for (owner, number) in &covers {
            if let Some(events) = self.completion_events.get_mut(*owner) {
                events.covered = events.covered.max(*number);
                events.batches += 1;
            }
        }
        self.sets.cover(Batch { events, covers });
        Ok(())
    }

    /// The oldest outstanding event: what to wait for so that more memory becomes reusable.
    pub fn awaited(&self) -> Option<Awaited> {
        if let Some(Wait::Event(context, Some(event))) = self.sets.oldest_event().map(|set| &set.wait) {
            return Some(Awaited::Event(*context, *event));
        }
        let awaited = self.sets.batches().find_map(|(_, batch)| batch.events.last());
        let batch = awaited.and_then(|(context, event)| match event {
            Some(event) => Some(Awaited::Event(*context, *event)),
            // A synchronization made now serves every batch so far.
            None => Some(Awaited::Synchronization(*context, self.sets.batches().next_back()?.0)),
        });
        let oldest = |owner| {
            let events = self.completion_events.get(owner)?;
            let (_, event) = events.events.front()?;
            Some(Awaited::Event(events.context, *event))
        };
        batch.or_else(|| self.outstanding().find_map(oldest))
    }

    /// The synchronization of `context` that batch `last` and every older one owed has been made.
    pub fn synchronized(&mut self, context: Context, last: SetId) {
        self.sets.change_batches(|id, batch| {
            if id <= last {
                batch.events.retain(|(owed, event)| *owed != context || event.is_some());
            }
        });
    }

    /// `context` is gone, and its events and its own work are gone with it.
    pub fn context_gone(&mut self, context: Context) {
        self.unused_events.remove(&context);
        self.sets.lose_events(|of, _| of == context);
        self.sets
            .change_batches(|_, batch| batch.events.retain(|(of, _)| *of != context));
        for events in self
            .completion_events
            .values_mut()
            .filter(|events| events.context == context)
        {
            // Its own work is gone, but the work in other contexts that its streams had waited for is not. A batch of
            // those contexts covers it.
            events.events.clear();
            // The owner is no orphan yet: its stream's cache still names it, until the handle comes back.
        }
    }

    /// How many events of `context` are kept or waited for.
    #[cfg(test)]
    pub fn events_of(&self, context: Context) -> usize {
        let waited = self.sets.batches().flat_map(|(_, batch)| &batch.events);
        let waited = waited.filter(|(of, event)| *of == context && event.is_some()).count();
        waited + self.unused_events.get(&context).map_or(0, Vec::len)
    }
}
