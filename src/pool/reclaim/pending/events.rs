//! The driver's events: created once, reused, and never confused with an application's event that got the same handle.

use super::PendingFrees;
use crate::driver::{Context, Event, Failure, Result};
use crate::pool::driver_calls::DriverCalls;

impl PendingFrees {
    /// An event recorded in `context` now; none where the driver has no context events, or not for this context.
    pub fn context_event(&mut self, calls: &DriverCalls, context: Context) -> Result<Option<Event>> {
        if !calls.driver().features().context_events {
            return Ok(None);
        }
        let event = self.event(calls, context)?;
        if let Err(error) = calls.submit(|driver| driver.context_record_event(context, event)) {
            self.unused_events.entry(context).or_default().push(event);
            return match error.failure {
                // A synchronization is owed instead, as on an older driver.
                Failure::Unsupported => Ok(None),
                Failure::Capture => {
                    calls.driver().note_capture();
                    Err(error)
                }
                _ => Err(error),
            };
        }
        Ok(Some(event))
    }

    /// Keeps an event that is no longer needed for reuse.
    pub(in crate::pool) fn keep_event(&mut self, context: Context, event: Event) {
        self.unused_events.entry(context).or_default().push(event);
    }

    /// An unused event of `context`.
    pub(in crate::pool) fn event(&mut self, calls: &DriverCalls, context: Context) -> Result<Event> {
        match self.unused_event(context) {
            Some(event) => Ok(event),
            None => self.new_event(calls, context),
        }
    }

    /// An event that was used before.
    pub(in crate::pool) fn unused_event(&mut self, context: Context) -> Option<Event> {
        self.unused_events.get_mut(&context).and_then(Vec::pop)
    }

    /// A new event.
    pub(in crate::pool) fn new_event(&mut self, calls: &DriverCalls, context: Context) -> Result<Event> {
        let _entered = calls.enter(context)?;
        let event = calls.submit(|driver| driver.event_create())?;
        self.forget_event(event);
        Ok(event)
    }

    /// The driver has just created `event`. So an event that was known by this handle is gone with its context. Another
    /// event or a batch covers what it covered. Without context ids there is no other sign that a context is gone.
    fn forget_event(&mut self, event: Event) {
        self.unused_events
            .values_mut()
            .for_each(|events| events.retain(|unused| *unused != event));
        self.sets.lose_events(|_, of| of == event);
        for events in self.completion_events.values_mut() {
            if let Some(at) = events
                .events
                .iter()
                .position(|(_, event_number)| *event_number == event)
            {
                events.events.drain(..=at);
            }
        }
        self.sets
            .change_batches(|_, batch| batch.events.retain(|(_, recorded)| *recorded != Some(event)));
    }

    /// Destroys every event that nothing waits for, in contexts that `ours` accepts.
    pub fn destroy_events(&mut self, calls: &DriverCalls, ours: impl Fn(Context) -> bool) {
        for (context, events) in std::mem::take(&mut self.unused_events)
            .into_iter()
            .filter(|(of, _)| ours(*of))
        {
            let Ok(_entered) = calls.enter(context) else { continue };
            for event in events {
                let _ = calls.submit(|driver| driver.event_destroy(event));
            }
        }
    }
}
