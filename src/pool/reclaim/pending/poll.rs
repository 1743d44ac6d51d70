//! What has completed of what was freed.

use std::ops::Bound;

use super::{CompletionEvents, Freed, PendingFrees};
use crate::driver::{Context, DriverError, Event};
use crate::pool::driver_calls::DriverCalls;
use crate::pool::free_space::{FreeSpace, Owner};
use crate::pool::reclaim::synchronization::Synchronization;

/// The most events that a request which misses its cache asks, while it has other ways to get memory.
const FEW: u32 = 4;

/// How many of them one poll asks: a request polls again once it has recorded an event.
const FEW_AT_ONCE: u32 = 3;

/// Of how many streams a slice asks the events.
const SLICE: usize = 16;

/// Which events a call may still ask whether they have completed. With 2,048 streams, a query of each would take longer
/// than to create memory.
pub enum Asks {
    /// So many.
    Few(u32),
    /// Those of so many streams, a slice at a time: for requests that would otherwise wait or be refused.
    Slices(usize),
    /// All: for trims and waits.
    All,
}

impl Asks {
    /// A few, whatever the number of streams.
    pub fn few() -> Asks {
        Asks::Few(FEW)
    }

    /// Asks every event from now on, in slices, unless that was begun.
    pub fn in_slices(&mut self, pending: &PendingFrees) {
        if !matches!(self, Asks::Slices(_)) {
            *self = Asks::Slices(pending.outstanding.len());
        }
    }

    /// Whether every event was asked.
    pub fn is_over(&self) -> bool {
        matches!(self, Asks::Slices(0))
    }

    /// What one poll may ask: so many events, of so many streams of `all`.
    fn at_once(&self, all: usize) -> (u32, usize) {
        match self {
            Asks::Few(events) => ((*events).min(FEW_AT_ONCE), all),
            Asks::Slices(streams) => (u32::MAX, (*streams).min(SLICE)),
            Asks::All => (u32::MAX, all),
        }
    }

    /// One poll has asked so many events.
    fn asked(&mut self, count: u32) {
        match self {
            Asks::Few(events) => *events -= count,
            Asks::Slices(streams) => *streams -= (*streams).min(SLICE),
            Asks::All => {}
        }
    }
}

/// What every stream may use now.
#[derive(Default)]
pub struct Polled {
    /// Single blocks and tails.
    pub freed: Vec<Freed>,
    /// Contexts whose events were queried, and that are gone.
    pub gone: Vec<Context>,
    /// A query that failed, and the context of its event.
    pub failed: Option<(Context, DriverError)>,
}

/// Queries events, so many at most.
struct Queries<'a, F> {
    calls: &'a DriverCalls,
    is_there: F,
    left: u32,
    polled: Polled,
}

impl<F: Fn(Context) -> Option<bool>> Queries<'_, F> {
    /// Whether the event is known to have completed now. The context has to be confirmed before the query and after it.
    /// Otherwise another event may have the handle: its answer means nothing, and a query of an event that is recorded in a
    /// capture ends the capture.
    fn is_complete(&mut self, context: Context, event: Event) -> bool {
        if self.left == 0 || !self.exists(context) {
            return false;
        }
        self.left -= 1;
        match self.calls.query(|driver| driver.event_query(event)) {
            Ok(true) => self.exists(context),
            Ok(false) => false,
            Err(error) => {
                self.polled.failed = Some((context, error));
                false
            }
        }
    }

    fn exists(&mut self, context: Context) -> bool {
        let there = (self.is_there)(context);
        self.polled.gone.extend((there == Some(false)).then_some(context));
        there == Some(true)
    }

    /// Asks the oldest event, then the newest one, which covers the others, then the others. Returns the events that have
    /// completed.
    fn completed(&mut self, events: &mut CompletionEvents) -> Vec<Event> {
        let (context, all) = (events.context, events.events.len());
        let mut completed = 0;
        if all > 0 && self.is_complete(context, events.events[0].1) {
            completed = 1;
            if all > 1 && self.is_complete(context, events.events[all - 1].1) {
                completed = all;
            }
            while completed + 1 < all && self.is_complete(context, events.events[completed].1) {
                completed += 1;
            }
        }
        let over = events.events.drain(..completed);
        let over = over.inspect(|(number, _)| events.complete = events.complete.max(*number));
        over.map(|(_, event)| event).collect()
    }
}

impl PendingFrees {
    /// Queries which batches and completion events have completed, as many as `asks` has left, and returns what they covered.
    pub fn poll(
        &mut self,
        calls: &DriverCalls,
        free_space: &FreeSpace,
        asks: &mut Asks,
        is_there: impl Fn(Context) -> Option<bool>,
    ) -> Polled {
        if let Some(outcome) = self.synchronization.as_ref().and_then(Synchronization::poll)
            && let Some(over) = self.synchronization.take()
            && outcome.is_ok()
        {
            self.synchronized(over.context, over.batch);
        }
        let (most, mut owners) = asks.at_once(self.outstanding.len());
        let mut queries = Queries {
            calls,
            is_there,
            left: most,
            polled: Polled::default(),
        };
        self.poll_batches(&mut queries);
        // In turns, so that a stream with little is asked, too, beside one with much whose work goes on.
        self.polls += 1;
        if matches!(asks, Asks::Few(_)) && self.polls.is_multiple_of(2) {
            let largest = self
                .outstanding
                .iter()
                .max_by_key(|owner| free_space.free_bytes(**owner));
            if let Some(owner) = largest.copied() {
                self.poll_owner(owner, &mut queries);
            }
        }
        while queries.left > 0 && owners > 0 {
            owners -= 1;
            let after = (self.turn.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
            let next = self.outstanding.range(after).next().or(self.outstanding.first());
            let Some(owner) = next.copied() else { break };
            self.turn = Some(owner);
            self.poll_owner(owner, &mut queries);
        }
        asks.asked(most - queries.left);
        let mut polled = queries.polled;
        let completion_events = &self.completion_events;
        let is_over = |(owner, event_number): &(Owner, u64)| {
            completion_events
                .get(owner)
                .is_none_or(|events| events.complete >= *event_number)
        };
        polled.freed.extend(self.behind.take_complete(is_over));
        polled
    }

    /// Batches complete in the order they were made, except for contexts that come and go.
    fn poll_batches(&mut self, queries: &mut Queries<'_, impl Fn(Context) -> Option<bool>>) {
        while let Some(batch) = self.batches.front_mut() {
            while let Some((context, Some(event))) = batch.events.last().copied() {
                if !queries.is_complete(context, event) {
                    break;
                }
                self.unused_events.entry(context).or_default().push(event);
                batch.events.pop();
            }
            if !batch.events.is_empty() {
                break;
            }
            queries.polled.freed.append(&mut batch.freed);
            for (owner, number) in batch.covers.drain(..) {
                if let Some(events) = self.completion_events.get_mut(&owner) {
                    events.complete = events.complete.max(number);
                    events.batches -= 1;
                }
            }
            self.batches.pop_front();
        }
    }

    fn poll_owner(&mut self, owner: Owner, queries: &mut Queries<'_, impl Fn(Context) -> Option<bool>>) {
        let Some(events) = self.completion_events.get_mut(&owner) else {
            self.outstanding.remove(&owner);
            return;
        };
        let completed = queries.completed(events);
        if !completed.is_empty() {
            self.unused_events.entry(events.context).or_default().extend(completed);
        }
        if events.events.is_empty() {
            self.outstanding.remove(&owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A miss asks at most four events, however often it polls and however many streams there are.
    #[test]
    fn all_polls_of_a_miss_ask_four_events() {
        let (mut asks, mut sum) = (Asks::few(), 0);
        for _ in 0..100 {
            let (events, streams) = asks.at_once(2_048);
            assert_eq!(streams, 2_048);
            asks.asked(events);
            sum += events;
        }
        assert_eq!(sum, 4);
    }
}
