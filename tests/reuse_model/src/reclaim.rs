//! How the pool finds out what has completed.

use crate::model::{Driver, Model};
use crate::rules::Rule;
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
        for batch in &mut state.batches {
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
            let Some(mut ledger) = state.ledgers[owner].take() else {
                continue;
            };
            while let Some((number, event)) = ledger.recorded.first().copied() {
                if !over(state, event) && !lenient {
                    break;
                }
                ledger.complete = ledger.complete.max(number);
                ledger.recorded.remove(0);
                state.spare[ledger.context as usize] |= 1 << event;
            }
            if !self.holds(Rule::EventsServeOnceComplete) {
                let last = ledger.recorded.last().map_or(0, |(_, event)| 1 << event);
                state.spare[ledger.context as usize] |= last;
            }
            state.ledgers[owner] = Some(ledger);
        }
        self.reclaim_batches(state, over);
        self.reclaim_per_free(state, dead);
        for piece in 0..state.pieces.len() {
            let is_over = |owner: u8, number: u8| {
                let ledger = &state.ledgers[owner as usize];
                ledger.as_ref().is_none_or(|ledger| ledger.complete >= number)
            };
            let common = match &state.pieces[piece] {
                Place::Own(owner, number) => is_over(*owner, *number),
                Place::Behind(recorded) => recorded.iter().all(|(owner, number)| is_over(*owner, *number)),
                _ => false,
            };
            if common {
                state.pieces[piece] = Place::Common;
            }
        }
        for owner in 0..OWNERS as u8 {
            state.forget_orphan(owner);
        }
        if dead == DeadEvents::Refused {
            self.drop_dead_contexts(state);
        }
    }

    /// Batches complete in the order in which they were made.
    fn reclaim_batches(&self, state: &mut State, over: impl Fn(&State, u8) -> bool) {
        while let Some(mut batch) = state.batches.first().cloned() {
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
                state.batches[0] = batch;
                return;
            }
            for (owner, number) in batch.covers.iter().enumerate() {
                if let Some(ledger) = &mut state.ledgers[owner] {
                    ledger.complete = ledger.complete.max(*number);
                }
            }
            state.batches.remove(0);
            for place in &mut state.pieces {
                match place {
                    Place::Batch(0) => *place = Place::Common,
                    Place::Batch(number) => *number -= 1,
                    _ => {}
                }
            }
        }
    }

    /// `Reclaimer::poll_per_free_events`.
    fn reclaim_per_free(&self, state: &mut State, dead: DeadEvents) {
        for piece in 0..state.pieces.len() {
            let Place::PerFree(context, event) = state.pieces[piece] else {
                continue;
            };
            let Some(event) = event else {
                let waits = self.holds(Rule::WaitsOutliveContexts);
                state.pieces[piece] = if waits { Place::Open } else { Place::Common };
                continue;
            };
            match (state.events[event as usize], dead) {
                (Event::Dead, DeadEvents::Pending) => {}
                (Event::Dead, DeadEvents::Refused) => state.pieces[piece] = Place::Open,
                (Event::Dead, DeadEvents::Over) => {
                    state.pieces[piece] = Place::Common;
                    state.spare[context as usize] |= 1 << event;
                }
                _ if state.is_pending(event_point(event)) => {}
                _ => {
                    state.pieces[piece] = Place::Common;
                    state.spare[context as usize] |= 1 << event;
                }
            }
        }
    }
}

impl State {
    /// `Reclaimer::forget_orphan`: the number of an orphan that no piece waits for may become another owner's.
    fn forget_orphan(&mut self, owner: u8) {
        let at = owner as usize;
        let idle = self.ledgers[at]
            .as_ref()
            .is_some_and(|ledger| ledger.orphan && ledger.recorded.is_empty());
        let covered = self.batches.iter().any(|batch| batch.covers[at] != 0);
        let named = self.pieces.iter().any(|place| match place {
            Place::Own(of, _) => *of == owner,
            Place::Behind(recorded) => recorded.iter().any(|(of, _)| *of == owner),
            _ => false,
        });
        if idle && !covered && !named {
            self.ledgers[at] = None;
        }
    }
}
