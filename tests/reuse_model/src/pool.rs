//! The pool's rules: who may get which memory, and which data the pool keeps. Each function names the source that it
//! models. `None` means that the result exceeds the model's bounds.

use crate::model::{Driver, Model};
use crate::rules::Rule;
use crate::state::*;

impl Model {
    /// `Reclaimer::note_context`: the context uses the pool from now on.
    pub fn note_context(&self, state: &mut State, context: u8) {
        let at = context as usize;
        let live = state.contexts[at] == Life::Live;
        match state.known[at] {
            Known::Present => return,
            Known::Any if live => return,
            Known::Former if live && !self.holds(Rule::ContextIdsAreCompared) => return,
            Known::Any | Known::Former => self.forget_context(state, context),
            Known::No => {}
        }
        // A context without an id counts as long as the driver accepts it.
        let has_id = self.has_ids() && live;
        state.known[at] = if has_id { Known::Present } else { Known::Any };
    }

    /// `PendingFrees::context_gone`: the context was destroyed, with its events and its own work.
    pub fn forget_context(&self, state: &mut State, context: u8) {
        let at = context as usize;
        state.known[at] = Known::No;
        let events_go = self.holds(Rule::EventsGoWithTheirContext);
        if events_go {
            state.spare[at] = 0;
            let events = state.sets.pieces.iter_mut().filter_map(Place::event_mut);
            events
                .filter(|(of, _)| *of == context)
                .for_each(|(_, event)| *event = None);
        }
        for batch in &mut state.sets.batches {
            batch.events[at] = Awaited::Nothing;
        }
        for ledger in state
            .sets
            .ledgers
            .iter_mut()
            .flatten()
            .filter(|of| of.context == context)
        {
            if let Some((number, _)) = ledger.recorded.pop()
                && !self.holds(Rule::WaitsOutliveContexts)
            {
                ledger.complete = ledger.complete.max(number);
            }
            ledger.recorded.clear();
            ledger.orphan |= !self.holds(Rule::OwnersOutliveContexts);
        }
    }

    /// `Reclaimer::drop_dead_contexts`.
    pub fn drop_dead_contexts(&self, state: &mut State) {
        for context in 0..CONTEXTS as u8 {
            let at = context as usize;
            let live = state.contexts[at] == Life::Live;
            let gone = match state.known[at] {
                Known::No | Known::Present => false,
                Known::Any => !live,
                Known::Former => !live || self.holds(Rule::ContextIdsAreCompared),
            };
            if gone {
                self.forget_context(state, context);
                if self.has_ids() && live {
                    self.note_context(state, context);
                }
            }
        }
    }

    /// `Reclaimer::join_stream`: the owner of the stream's frees. A new id at a known handle makes the previous stream's
    /// frees an orphan's.
    pub fn join(&self, state: &mut State, handle: u8) -> Option<u8> {
        let Stream { id, context, .. } = state.streams[handle as usize];
        let cache = &mut state.caches[handle as usize];
        cache.captured = false;
        if let Some(served) = cache.serves
            && (served.id == id || !self.holds(Rule::IdsAreCompared))
        {
            cache.stray = false;
            return Some(served.owner);
        }
        self.retire(state, handle);
        if self.holds(Rule::ContextsOfStreamsAreKnown) {
            self.note_context(state, context);
        }
        let owner = state.sets.ledgers.iter().position(Option::is_none)? as u8;
        state.sets.ledgers[owner as usize] = Some(Ledger {
            context,
            ..Ledger::default()
        });
        let serves = Some(Served { id, owner, context });
        let captured = false;
        state.caches[handle as usize] = Cache {
            serves,
            next: 1,
            captured,
            joined: true,
            stray: false,
        };
        Some(owner)
    }

    /// `Reclaimer::retire`: the frees of the cache's stream become an orphan's.
    pub fn retire(&self, state: &mut State, handle: u8) {
        let cache = &mut state.caches[handle as usize];
        cache.next = 1;
        if let Some(served) = cache.serves.take()
            && let Some(ledger) = &mut state.sets.ledgers[served.owner as usize]
        {
            ledger.orphan = true;
        }
    }

    /// `PendingFrees::new_event`, and a driver that reuses handles at once.
    fn new_event(&self, state: &mut State, context: u8) -> Option<u8> {
        let event = state
            .make_event(context, true)
            .or_else(|| state.make_event(context, false))?;
        if self.holds(Rule::NewEventsAreNoOldOnes) {
            state.forget_event(event, self.holds(Rule::WaitsOutliveContexts));
        }
        Some(event)
    }

    /// `PendingFrees::event`: a reusable event, or a new one.
    fn event(&self, state: &mut State, context: u8) -> Option<u8> {
        let spare = state.spare[context as usize];
        if spare == 0 {
            return self.new_event(state, context);
        }
        let event = spare.trailing_zeros() as u8;
        state.spare[context as usize] &= spare - 1;
        if state.events[event as usize] == Event::Dead {
            state.fault = Some(Fault::ForeignEvent(event));
        }
        Some(event)
    }

    /// `Reclaimer::record_stream_event`: records a completion event on the stream, inside a call on that stream. Returns whether
    /// memory waited for one.
    pub fn record_completion_event(&self, state: &mut State, handle: u8) -> Option<bool> {
        let cache = state.caches[handle as usize];
        let Some(served) = cache.serves else { return Some(false) };
        let waits = |owner: &u8, number: &u8| *owner == served.owner && *number >= cache.next;
        let mut streams = state.sets.pieces.iter().flat_map(Place::streams);
        let something = streams.any(|(owner, number)| waits(owner, number));
        let Some(ledger) = &state.sets.ledgers[served.owner as usize] else {
            return Some(false);
        };
        if !something {
            return Some(false);
        }
        if ledger.recorded.len() == COMPLETION_EVENTS {
            return None;
        }
        let event = self.event(state, ledger.context)?;
        state.record(event, stream_point(handle));
        if self.holds(Rule::NumbersAreRaisedByEvents) {
            state.caches[handle as usize].next += 1;
        }
        if let Some(ledger) = &mut state.sets.ledgers[served.owner as usize] {
            ledger.recorded.push((cache.next, event));
        }
        Some(true)
    }

    /// `Reclaimer::cover_all`, or `Reclaimer::cover_owners` of only the frees without a stream: an event in every context.
    /// Returns whether there was memory to cover.
    pub fn cover(&self, state: &mut State, all: bool) -> Option<bool> {
        if self.has_ids() {
            self.drop_dead_contexts(state);
        }
        let mut covers = [0; OWNERS];
        if all {
            for handle in 0..HANDLES {
                let cache = &mut state.caches[handle];
                if let Some(served) = cache.serves {
                    covers[served.owner as usize] = cache.next;
                    cache.next += u8::from(self.holds(Rule::NumbersAreRaisedByBatches));
                }
            }
            for (owner, ledger) in state.sets.ledgers.iter().enumerate() {
                if ledger.as_ref().is_some_and(|ledger| ledger.orphan) {
                    covers[owner] = ALL;
                }
            }
            for (owner, number) in covers.iter_mut().enumerate() {
                if !state.sets.waits_for(owner as u8) {
                    *number = 0;
                }
            }
        }
        let open = state.sets.pieces.contains(&Place::uncovered());
        if !open && covers == [0; OWNERS] {
            return Some(false);
        }
        if state.sets.batches.len() == BATCHES {
            return None;
        }
        let mut events = [Awaited::Nothing; CONTEXTS];
        let known = if self.holds(Rule::EveryKnownContext) {
            CONTEXTS
        } else {
            1
        };
        for context in 0..known as u8 {
            if state.known[context as usize] == Known::No {
                continue;
            }
            events[context as usize] = if self.driver == Driver::Full {
                let event = self.event(state, context)?;
                state.record(event, context_point(context));
                Awaited::Event(event)
            } else {
                Awaited::Owed
            };
        }
        state.sets.cover(Batch { events, covers });
        Some(true)
    }

    /// `Reclaimer::reclaim_graphs`: reclaims the memory of a destroyed graph.
    pub fn reclaim_graph(&self, state: &mut State) {
        if state.graph.stage != Stage::Gone {
            return;
        }
        let graph = std::mem::take(&mut state.graph);
        let cache = state.caches[graph.handle as usize];
        let same = |served: &Served| served.id == graph.id || !self.holds(Rule::GraphsLeaveByIds);
        let fresh = self.holds(Rule::GraphsLeaveFreshFrees);
        let number = if fresh { cache.next } else { 0 };
        let inside = cache.serves.filter(same).map(|Served { owner, .. }| {
            let streams = Wait::Streams(vec![(owner, number)]);
            Place::waits(Asker::Stream(owner), streams)
        });
        let (inside, outside) = match self.holds(Rule::GraphsGoOnToEvents) {
            true => (inside.unwrap_or(Place::uncovered()), Place::uncovered()),
            false => (Place::Common, Place::Common),
        };
        state.sets.graph_gone(&inside, &outside);
        state.caches.iter_mut().for_each(|cache| cache.captured = false);
    }

    /// `Reclaimer::record_event_behind`: an event after the queued work of a stream without an id.
    pub fn mark(&self, state: &mut State, handle: u8) -> Option<u8> {
        let context = state.streams[handle as usize].context;
        let mut spare = state.spare[context as usize];
        // Recording an event of a destroyed context is refused; the event stays in the list all the same.
        spare &= !state.dead_events();
        let event = if spare == 0 {
            self.new_event(state, context)?
        } else {
            let event = spare.trailing_zeros() as u8;
            state.spare[context as usize] &= !(1 << event);
            event
        };
        state.record(event, stream_point(handle));
        Some(event)
    }

    /// `Reclaimer::note_live_context`: without ids a context is identified by its handle.
    pub fn know(&self, state: &mut State, context: u8) {
        if state.known[context as usize] == Known::No && self.holds(Rule::ContextsOfPerFreeEventsAreKnown) {
            state.known[context as usize] = Known::Any;
        }
    }
}

impl State {
    /// `PendingFrees::forget_event`: removes data on a handle that the driver has given to a new event.
    fn forget_event(&mut self, event: u8, waits_outlive: bool) {
        self.spare.iter_mut().for_each(|spare| *spare &= !(1 << event));
        let events = self.sets.pieces.iter_mut().filter_map(Place::event_mut);
        events
            .filter(|(_, of)| **of == Some(event))
            .for_each(|(_, of)| *of = None);
        for ledger in self.sets.ledgers.iter_mut().flatten() {
            if let Some(at) = ledger.recorded.iter().position(|(_, of)| *of == event) {
                if !waits_outlive {
                    ledger.complete = ledger.complete.max(ledger.recorded[at].0);
                }
                ledger.recorded.drain(..=at);
            }
        }
        for batch in &mut self.sets.batches {
            for awaited in &mut batch.events {
                if *awaited == Awaited::Event(event) {
                    *awaited = Awaited::Nothing;
                }
            }
        }
    }

    fn dead_events(&self) -> u8 {
        let dead = (0..EVENTS).filter(|event| self.events[*event] == Event::Dead);
        dead.fold(0, |all, event| all | 1 << event)
    }
}
