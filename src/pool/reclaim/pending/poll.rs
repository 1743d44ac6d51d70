//! What has completed of what was freed.

use super::{Freed, PendingFrees};
use crate::driver::{Context, DriverError, Event};
use crate::pool::driver_calls::DriverCalls;
use crate::pool::free_space::Owner;
use crate::pool::reclaim::synchronization::Synchronization;

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

impl PendingFrees {
    /// Queries which completion events and batches have completed, and returns what they covered. `is_there` has to confirm
    /// the event's context before the query and after it. Otherwise another event may have the handle: its answer means
    /// nothing, and a query of an event that is recorded in a capture ends the capture.
    pub fn poll(&mut self, calls: &DriverCalls, is_there: impl Fn(Context) -> Option<bool>) -> Polled {
        if let Some(outcome) = self.synchronization.as_ref().and_then(Synchronization::poll)
            && let Some(over) = self.synchronization.take()
            && outcome.is_ok()
        {
            self.synchronized(over.context, over.batch);
        }
        let mut polled = Polled::default();
        let exists = |context: Context, gone: &mut Vec<Context>| {
            let there = is_there(context);
            gone.extend((there == Some(false)).then_some(context));
            there == Some(true)
        };
        let mut complete = |context: Context, event: Event| {
            if !exists(context, &mut polled.gone) {
                return false;
            }
            match calls.query(|driver| driver.event_query(event)) {
                Ok(true) => exists(context, &mut polled.gone),
                Ok(false) => false,
                Err(error) => {
                    polled.failed = Some((context, error));
                    false
                }
            }
        };
        for events in self.completion_events.values_mut() {
            while let Some((number, event)) = events.events.front().copied() {
                if !complete(events.context, event) {
                    break;
                }
                events.complete = events.complete.max(number);
                events.events.pop_front();
                self.spare.entry(events.context).or_default().push(event);
            }
        }
        // Batches complete in the order they were made, except for contexts that come and go.
        while let Some(batch) = self.batches.front_mut() {
            while let Some((context, Some(event))) = batch.events.last().copied() {
                if !complete(context, event) {
                    break;
                }
                self.spare.entry(context).or_default().push(event);
                batch.events.pop();
            }
            if !batch.events.is_empty() {
                break;
            }
            polled.freed.append(&mut batch.freed);
            for (owner, number) in batch.covers.drain(..) {
                if let Some(events) = self.completion_events.get_mut(&owner) {
                    events.complete = events.complete.max(number);
                }
            }
            self.batches.pop_front();
        }
        let completion_events = &self.completion_events;
        let is_over = |(owner, event_number): &(Owner, u64)| {
            completion_events
                .get(owner)
                .is_none_or(|events| events.complete >= *event_number)
        };
        let over = self.behind.extract_if(.., |(events, _)| events.iter().all(is_over));
        polled.freed.extend(over.map(|(_, freed)| freed));
        polled
    }
}
