//! How the pool finds out what has completed.

use crate::model::{Driver, Model};
use crate::rules::Rule;
use crate::sets::OwnerOutlives;
use crate::state::*;

/// The result of a query of an event whose context was destroyed. The handle may be an application's event by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeadEvents {
    /// The event has completed.
    Over,
    /// The event is pending.
    Pending,
    /// There is no such event.
    Refused,
}

impl Model {
    /// `Synchronisation::begin` of a context: every batch that needs one waits for the work that is queued there now.
    pub fn synchronise(&self, state: &mut State, context: u8) -> Option<()> {
        let at = context as usize;
        if state.contexts[at] != Life::Live {
            self.forget_context(state, context);
            return Some(());
        }
        let event = state.make_event(context, false)?;
        state.record(event, context_point(context));
        for batch in &mut state.sets.batches {
            if batch.events[at] == Awaited::Owed {
                batch.events[at] = Awaited::Event(event);
            }
        }
        Some(())
    }

    /// `Reclaimer::poll`: polls the events, and returns the frees that they cover to common memory.
    pub fn reclaim(&self, state: &mut State, dead: DeadEvents) {
        let mut dead = dead;
        if dead == DeadEvents::Over && self.holds(Rule::AnswersOfDeadContextsAreNone) {
            // The result of an event query counts only if its context still exists afterwards.
            dead = DeadEvents::Refused;
        }
        let lenient = !self.holds(Rule::CommonOnceComplete);
        let over = |state: &State, event: u8| match state.events[event as usize] {
            Event::Dead => dead == DeadEvents::Over,
            _ => !state.is_pending(event_point(event)),
        };
        for owner in 0..OWNERS {
            let mut complete = 0;
            let Some(mut ledger) = state.sets.ledgers[owner].take() else {
                continue;
            };
            while let Some((number, event)) = ledger.recorded.first().copied() {
                if !over(state, event) && !lenient {
                    break;
                }
                complete = number;
                ledger.recorded.remove(0);
                state.spare[ledger.context as usize] |= 1 << event;
            }
            if !self.holds(Rule::EventsServeOnceComplete) {
                let last = ledger.recorded.last().map_or(0, |(_, event)| 1 << event);
                state.spare[ledger.context as usize] |= last;
            }
            state.sets.ledgers[owner] = Some(ledger);
            state.sets.complete_stream(owner as u8, complete);
        }
        self.reclaim_batches(state, over);
        self.reclaim_events(state, dead);
        let outlives = OwnerOutlives {
            batches: self.holds(Rule::OwnersOutliveBatches),
            sets: self.holds(Rule::OwnersOutliveSets),
        };
        for owner in 0..OWNERS as u8 {
            state.sets.forget_owner(owner, outlives);
        }
        if dead == DeadEvents::Refused {
            self.drop_dead_contexts(state);
        }
    }

    /// Batches complete in the order in which they were made.
    fn reclaim_batches(&self, state: &mut State, over: impl Fn(&State, u8) -> bool) {
        while let Some(mut batch) = state.sets.batches.first().cloned() {
            for (context, awaited) in batch.events.iter_mut().enumerate() {
                let synchronising = self.driver != Driver::Full;
                if let Awaited::Event(event) = *awaited
                    && synchronising
                    && state.events[event as usize] == Event::Dead
                {
                    // The synchronization has failed. It is needed again unless its context turns out to be destroyed.
                    *awaited = Awaited::Owed;
                } else if let Awaited::Event(event) = *awaited
                    && over(state, event)
                {
                    *awaited = Awaited::Nothing;
                    if self.driver == Driver::Full {
                        state.spare[context] |= 1 << event;
                    }
                }
            }
            if batch.events != [Awaited::Nothing; CONTEXTS] {
                state.sets.batches[0] = batch;
                return;
            }
            state.sets.complete_batch();
        }
    }

    /// The sets that wait for one event of a stream without an id.
    fn reclaim_events(&self, state: &mut State, dead: DeadEvents) {
        for piece in 0..state.sets.pieces.len() as u8 {
            let Some(Wait::Event(context, event)) = state.sets.pieces[piece as usize].wait().cloned() else {
                continue;
            };
            let Some(event) = event else {
                match self.holds(Rule::WaitsOutliveContexts) {
                    true => state.sets.event_lost(piece),
                    false => state.sets.complete_event(piece),
                }
                continue;
            };
            match (state.events[event as usize], dead) {
                (Event::Dead, DeadEvents::Pending) => {}
                (Event::Dead, DeadEvents::Refused) => state.sets.event_lost(piece),
                (of, _) if of != Event::Dead && state.is_pending(event_point(event)) => {}
                _ => {
                    state.sets.complete_event(piece);
                    state.spare[context as usize] |= 1 << event;
                }
            }
        }
    }
}
