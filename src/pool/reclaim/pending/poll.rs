//! What has completed of what was freed.

use super::{CompletionEvents, PendingFrees};
use crate::driver::{Context, DriverError, Event, Failure};
use crate::pool::driver_calls::DriverCalls;
use crate::pool::free_space::{FreeSpace, Owner, OwnerSet};
use crate::pool::reclaim::sets::{Set, SetId, Sets, Wait};
use crate::pool::reclaim::synchronization::Synchronization;
use crate::support::sort;

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
            *self = Asks::Slices(pending.outstanding.count());
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

/// What a poll has found.
#[derive(Default)]
pub struct Polled {
    /// The sets whose wait is over.
    pub complete: Vec<Set>,
    /// The sets whose events do not answer or are gone: a wait for everything covers them, too.
    pub lost: Vec<Set>,
    /// The owners of which more is complete than before.
    raised: OwnerSet,
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
        let (at_most, mut owners) = asks.at_once(self.outstanding.count());
        let mut queries = Queries {
            calls,
            is_there,
            left: at_most,
            polled: Polled::default(),
        };
        self.poll_batches(&mut queries);
        // In turns, so that a stream with little is asked, too, beside one with much whose work goes on.
        self.polls += 1;
        if matches!(asks, Asks::Few(_)) && self.polls.is_multiple_of(2) {
            let largest = self.outstanding().max_by_key(|owner| free_space.free_bytes(*owner));
            if let Some(owner) = largest {
                self.poll_owner(owner, &mut queries);
            }
        }
        while queries.left > 0 && owners > 0 {
            owners -= 1;
            let Some(owner) = self.outstanding.next_after(self.turn) else {
                break;
            };
            self.turn = Some(owner);
            self.poll_owner(owner, &mut queries);
        }
        asks.asked(at_most - queries.left);
        let mut polled = queries.polled;
        self.complete_streams(&mut polled);
        self.poll_events(calls, &mut polled);
        polled
    }

    /// Batches complete in the order they were made, except for contexts that come and go.
    fn poll_batches(&mut self, queries: &mut Queries<'_, impl Fn(Context) -> Option<bool>>) {
        while let Some((id, batch)) = self.sets.oldest_batch() {
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
            for (owner, number) in std::mem::take(&mut batch.covers) {
                if let Some(events) = self.completion_events.get_mut(owner) {
                    events.complete = events.complete.max(number);
                    events.batches -= 1;
                    queries.polled.raised.set(owner, true);
                }
            }
            queries.polled.complete.extend(self.sets.remove(id));
        }
    }

    /// What waits for streams, as far as these are complete now.
    fn complete_streams(&mut self, polled: &mut Polled) {
        let mut complete: Vec<(SetId, Set)> = Vec::new();
        let events = &self.completion_events;
        let is_complete =
            |(owner, number): &(Owner, u64)| events.get(*owner).is_none_or(|events| events.complete >= *number);
        for owner in std::mem::take(&mut polled.raised).iter() {
            let through = events.get(owner).map_or(0, |events| events.complete);
            complete.append(&mut self.sets.complete_stream(owner, through, is_complete));
        }
        sort::by_key(&mut complete, |(id, _)| (id.number(), 0));
        polled.complete.extend(complete.into_iter().map(|(_, set)| set));
    }

    /// As [`PendingFrees::poll`], for sets that wait for an event of their own.
    pub fn poll_own_events(&mut self, calls: &DriverCalls) -> Polled {
        let mut polled = Polled::default();
        self.poll_events(calls, &mut polled);
        polled
    }

    /// Asks each handle's sets that wait for an event of their own, oldest first, though behind a handle that came back they
    /// may complete in another order. An event that does not answer is left alone: its context may be gone, another context
    /// may have its handle, and the event may be that context's. A driver without ids cannot say so beforehand. So a query
    /// may meet the application's event, and end the capture that it is recorded in.
    fn poll_events(&mut self, calls: &DriverCalls, polled: &mut Polled) {
        let handles: Vec<_> = self.sets.handles().copied().collect();
        for key in handles {
            let oldest = |sets: &Sets| match sets.of_handle(&key).next()? {
                (
                    id,
                    Set {
                        wait: Wait::Event(context, event),
                        ..
                    },
                ) => Some((id, *context, *event)),
                _ => None,
            };
            while let Some((id, context, event)) = oldest(&self.sets) {
                let answer = event.map(|event| calls.query(|driver| driver.event_query(event)));
                let (sets, serves_again) = match answer {
                    Some(Ok(true)) => (&mut polled.complete, true),
                    // The work in other contexts that its stream had waited for is not gone with its own context.
                    None => (&mut polled.lost, false),
                    Some(Ok(false)) => break,
                    // The event went with its context, whichever context has the handle now.
                    Some(Err(error)) if error.failure == Failure::ContextDestroyed => {
                        polled.failed = Some((context, error));
                        (&mut polled.lost, false)
                    }
                    Some(Err(error)) if error.failure.is_dead() || error.failure == Failure::Capture => {
                        if error.failure.is_dead() {
                            polled.failed = Some((context, error));
                        }
                        break;
                    }
                    Some(Err(_)) => (&mut polled.lost, false),
                };
                sets.extend(self.sets.remove(id));
                if let Some(event) = event.filter(|_| serves_again) {
                    self.keep_event(context, event);
                }
            }
        }
    }

    fn poll_owner(&mut self, owner: Owner, queries: &mut Queries<'_, impl Fn(Context) -> Option<bool>>) {
        let Some(events) = self.completion_events.get_mut(owner) else {
            self.outstanding.set(owner, false);
            return;
        };
        let completed = queries.completed(events);
        if !completed.is_empty() {
            queries.polled.raised.set(owner, true);
            self.unused_events.entry(events.context).or_default().extend(completed);
        }
        if events.events.is_empty() {
            self.outstanding.set(owner, false);
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
