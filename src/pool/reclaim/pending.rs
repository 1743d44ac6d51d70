//! Frees that are pending, and the events that cover them.
//!
//! Two kinds of events decide. A *completion event* of a stream is recorded inside a call that
//! was given that stream, and covers all that was freed on it before. A *batch* is a set of context events, one for
//! each context that has used the pool. It covers everything freed before it, with or without a stream. Where the
//! driver has no context events (before CUDA 12.5), the batch owes a synchronization instead. What an event covers
//! becomes common free space once the event has completed.

use std::collections::{BTreeSet, VecDeque};

use crate::driver::{Context, Event, Result, Stream};
use crate::pool::driver_calls::DriverCalls;
use crate::pool::free_space::{FreeSpace, NodeId, Owner};
use crate::pool::physical::dedicated_memory::DedicatedMemory;
use crate::pool::reclaim::per_free_events::PerFreeEvents;
use crate::pool::reclaim::synchronization::Synchronization;
use crate::sync::HashMap;

mod behind;
mod events;
mod filed;
mod poll;
mod ranges;

use behind::AllBehind;
use filed::Filed;
pub use poll::{Asks, Polled};

/// Freed memory that is pending: no stream may reuse it yet.
pub enum Freed {
    /// A block of the pool's address range.
    Block {
        /// The block's node.
        id: NodeId,
        /// Whether its memory is to be returned to the driver.
        give_back: bool,
    },
    /// A dedicated allocation.
    Dedicated(Box<DedicatedMemory>),
    /// What a shrink of a dedicated allocation left over.
    Tail {
        /// The block's number.
        block: u32,
        /// The shrink's number.
        number: u64,
    },
    /// What a live block's range has beyond its size (`dedicated_memory::Remainder`): that number.
    Remainder(u64),
}

impl Freed {
    /// Whether its memory is to be returned to the driver.
    pub fn gives_back(&self) -> bool {
        match self {
            Freed::Block { give_back, .. } => *give_back,
            Freed::Dedicated(block) => block.give_back,
            Freed::Tail { .. } | Freed::Remainder(_) => false,
        }
    }
}

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
    /// The stream is gone: no more completion events are recorded for it.
    orphan: bool,
    /// How many dedicated allocations its stream has that are not freed yet.
    dedicated: u64,
}

struct Batch {
    number: u64,
    /// The contexts whose part is not yet complete. None instead of an event is a synchronization that is owed.
    events: Vec<(Context, Option<Event>)>,
    freed: Vec<Freed>,
    /// The frees of each owner that it covers, up to this number.
    covers: Vec<(Owner, u64)>,
}

/// What a wait would wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// An event.
    Event(Context, Event),
    /// A synchronization of that context; the batch it is for.
    Synchronization(Context, u64),
}

/// The deferred reclamation of one pool.
#[derive(Default)]
pub struct PendingFrees {
    completion_events: HashMap<Owner, CompletionEvents>,
    /// The owners with events that are not known to be complete, and some that had such events.
    outstanding: BTreeSet<Owner>,
    /// The owner among them that was asked last in its turn, and how many polls there were.
    turn: Option<Owner>,
    polls: u64,
    /// What the next batch will cover.
    filed: Filed,
    /// What waits for completion events of streams.
    behind: AllBehind,
    batches: VecDeque<Batch>,
    /// Frees on streams without ids.
    pub(super) per_free_events: PerFreeEvents,
    numbers: u64,
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
                orphan: false,
                dedicated: 0,
            },
        );
    }

    /// The stream of `owner` is gone, or may be.
    pub fn orphan(&mut self, owner: Owner) {
        if let Some(events) = self.completion_events.get_mut(&owner) {
            events.orphan = true;
        }
    }

    /// The owners that are orphans: those whose stream is gone.
    pub fn orphans(&self) -> Vec<Owner> {
        self.completion_events
            .iter()
            .filter(|(_, events)| events.orphan)
            .map(|(owner, _)| *owner)
            .collect()
    }

    /// Every owner with completion events.
    pub fn owners(&self) -> Vec<Owner> {
        self.completion_events.keys().copied().collect()
    }

    /// Forgets an orphan that nothing waits for; false where something does.
    pub fn remove(&mut self, owner: Owner) -> bool {
        let gone = self.is_idle(owner) && !self.is_streams(owner);
        if gone {
            self.completion_events.remove(&owner);
        }
        gone
    }

    /// Whether nothing waits for events of `owner`, and its stream has no dedicated allocation.
    pub fn is_idle(&self, owner: Owner) -> bool {
        let idle = |events: &CompletionEvents| events.events.is_empty() && events.batches == 0 && events.dedicated == 0;
        self.completion_events.get(&owner).is_some_and(idle) && !self.behind.waits_for(owner, 0)
    }

    /// How many owners there are.
    pub fn count_owners(&self) -> usize {
        self.completion_events.len()
    }

    /// Adds what was freed without a stream.
    pub fn file(&mut self, freed: Freed, free_space: &FreeSpace) {
        let bytes = match &freed {
            Freed::Block { id, .. } => free_space.span(*id).1,
            Freed::Dedicated(block) => block.size,
            // What a shrink left over is covered together with other frees.
            Freed::Tail { .. } | Freed::Remainder(_) => 0,
        };
        self.filed.push(freed, bytes);
    }

    /// Adds what an event has covered and could not be returned. It is covered together with other frees: it alone is no
    /// reason to cover.
    pub fn file_again(&mut self, freed: Freed) {
        self.filed.push(freed, 0);
    }

    /// What was freed and waits for the work of all contexts, while no event covers it yet.
    pub fn filed(&self) -> &Filed {
        &self.filed
    }

    /// Bytes that no event covers yet, and that most likely no completion event will cover soon: what streams that are gone
    /// or silent have freed, and what is behind declared uses.
    pub fn left_behind(&self, free_space: &FreeSpace) -> u64 {
        let owners = self.completion_events.iter();
        let left = owners.filter(|(owner, events)| events.orphan || free_space.is_silent(**owner));
        let left = left.map(|(owner, _)| free_space.bytes_beyond(*owner, self.covered(*owner)));
        let uncovered = |(owner, number): &(Owner, u64)| *number > self.covered(*owner);
        let behind = self.behind.iter().filter(|behind| behind.events.iter().any(uncovered));
        let behind = behind.map(|behind| match &behind.freed {
            Freed::Block { id, .. } => free_space.span(*id).1,
            // The stream that freed it takes it back, and growth does.
            Freed::Dedicated(_) | Freed::Tail { .. } | Freed::Remainder(_) => 0,
        });
        left.sum::<u64>() + behind.sum::<u64>()
    }

    /// The number up to which an event covers what `owner`'s stream has freed, complete or not.
    fn covered(&self, owner: Owner) -> u64 {
        let covered = self.completion_events.get(&owner).map_or(0, |events| events.covered);
        covered.max(self.last_event_number(owner))
    }

    /// Adds what was freed and is reusable once each of these completion events has completed.
    pub fn free_behind(&mut self, events: Vec<(Owner, u64)>, freed: Freed) {
        self.behind.push(events, freed);
    }

    /// Everything that is pending.
    pub fn freed(&self) -> impl Iterator<Item = &Freed> {
        let behind = self.behind.iter().map(|behind| &behind.freed);
        let covered = self.batches.iter().flat_map(|batch| &batch.freed);
        self.filed
            .iter()
            .chain(behind)
            .chain(covered)
            .chain(self.per_free_events.freed())
    }

    /// Whether context events are outstanding.
    pub fn has_batches(&self) -> bool {
        !self.batches.is_empty()
    }

    /// Whether `owner` belongs to a stream that may still exist.
    pub fn is_streams(&self, owner: Owner) -> bool {
        self.completion_events.get(&owner).is_some_and(|events| !events.orphan)
    }

    /// Whether something waits for completion events of `owner` that are not recorded yet.
    pub fn has_uncovered(&self, owner: Owner) -> bool {
        self.behind.waits_for(owner, self.last_event_number(owner))
    }

    /// The last completion event that was recorded (or is known complete) for `owner`.
    pub fn last_event_number(&self, owner: Owner) -> u64 {
        self.completion_events.get(&owner).map_or(0, |events| {
            events.events.back().map_or(events.complete, |(number, _)| *number)
        })
    }

    /// The highest number whose completion event is known to be complete.
    #[inline]
    pub fn complete(&self, owner: Owner) -> u64 {
        self.completion_events.get(&owner).map_or(0, |events| events.complete)
    }

    /// The last completion event recorded for `owner`, with its context; none if it is known to be complete.
    pub fn last_event(&self, owner: Owner) -> Option<(Context, Event)> {
        let events = self.completion_events.get(&owner)?;
        events.events.back().map(|(_, event)| (events.context, *event))
    }

    /// Records completion event `number` on `stream`. The running call was given the stream, and the stream does not
    /// capture.
    pub fn record_event(&mut self, calls: &DriverCalls, owner: Owner, number: u64, stream: Stream) -> Result<()> {
        let Some(context) = self.completion_events.get(&owner).map(|events| events.context) else {
            return Ok(());
        };
        let event = self.event(calls, context)?;
        if let Err(error) = calls.submit(|driver| driver.event_record(event, stream)) {
            self.unused_events.entry(context).or_default().push(event);
            return Err(error);
        }
        if let Some(events) = self.completion_events.get_mut(&owner) {
            events.events.push_back((number, event));
            self.outstanding.insert(owner);
        }
        Ok(())
    }

    /// Covers everything freed without a stream so far, and `covers` of the owners' frees, by an event in each of
    /// `contexts`. On an error, what could not be covered stays filed.
    pub fn cover(&mut self, calls: &DriverCalls, contexts: &[Context], covers: Vec<(Owner, u64)>) -> Result<()> {
        if self.filed.is_empty() && covers.is_empty() {
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
            if let Some(events) = self.completion_events.get_mut(owner) {
                events.covered = events.covered.max(*number);
                events.batches += 1;
            }
        }
        self.numbers += 1;
        let freed = self.filed.take();
        self.batches.push_back(Batch {
            number: self.numbers,
            events,
            freed,
            covers,
        });
        Ok(())
    }

    /// The oldest outstanding event: what to wait for so that more memory becomes reusable.
    pub fn awaited(&self) -> Option<Awaited> {
        if let Some(awaited) = self.per_free_events.awaited() {
            return Some(awaited);
        }
        let batch = self.batches.iter().find_map(|batch| {
            batch.events.last().map(|(context, event)| match event {
                Some(event) => Awaited::Event(*context, *event),
                // A synchronization made now serves every batch so far.
                None => Awaited::Synchronization(*context, self.numbers),
            })
        });
        batch.or_else(|| {
            let events = self
                .completion_events
                .values()
                .find(|events| !events.events.is_empty())?;
            events
                .events
                .front()
                .map(|(_, event)| Awaited::Event(events.context, *event))
        })
    }

    /// The synchronization of `context` that batch `number` and every older one owed has been made.
    pub fn synchronized(&mut self, context: Context, number: u64) {
        for batch in self.batches.iter_mut().filter(|batch| batch.number <= number) {
            batch.events.retain(|(owed, event)| *owed != context || event.is_some());
        }
    }

    /// `context` is gone, and its events and its own work are gone with it.
    pub fn context_gone(&mut self, context: Context) {
        self.unused_events.remove(&context);
        self.per_free_events.context_gone(context);
        for batch in &mut self.batches {
            batch.events.retain(|(of, _)| *of != context);
        }
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
        let waited = self.batches.iter().flat_map(|batch| &batch.events);
        let waited = waited.filter(|(of, event)| *of == context && event.is_some()).count();
        waited + self.unused_events.get(&context).map_or(0, Vec::len)
    }

    /// Whether nothing freed waits for anything.
    pub fn is_empty(&self) -> bool {
        self.filed.is_empty() && self.behind.is_empty() && self.batches.is_empty() && self.per_free_events.is_empty()
    }
}
