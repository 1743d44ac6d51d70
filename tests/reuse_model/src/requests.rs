//! The pool's requests and frees.

use crate::model::Model;
use crate::rules::Rule;
use crate::state::*;

/// Where a request gets its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// The stream's own free memory.
    Own,
    /// Memory that is free for every caller.
    Common,
    /// Another stream's, after its completion event.
    Taken,
    /// The capture's.
    Capture,
}

impl Model {
    /// A request on a stream that gets that piece. Returns where the piece came from.
    pub fn allocate(&self, state: &mut State, piece: u8, handle: u8) -> Option<Source> {
        self.reclaim_graph(state);
        if state.captures(handle) {
            return self.allocate_captured(state, piece, handle);
        }
        if !self.has_ids() {
            self.know(state, state.streams[handle as usize].context);
            return self.take_per_free(state, piece, handle);
        }
        let owner = self.join(state, handle)?;
        self.take(state, piece, handle, owner)
    }

    /// The steps of a stream's request: its own free memory, common memory, and other streams' memory.
    pub fn take(&self, state: &mut State, piece: u8, handle: u8, owner: u8) -> Option<Source> {
        let source = match &state.sets.pieces[piece as usize] {
            Place::Common => Source::Common,
            Place::Waits(set) if set.asker == Asker::Stream(owner) => Source::Own,
            Place::Waits(Set {
                asker: Asker::Stream(other),
                wait: Wait::Streams(streams),
            }) => {
                let (other, number) = (*other, streams.first()?.1);
                let ledger = state.sets.ledgers[other as usize].as_ref()?;
                let near = ledger.context == state.streams[handle as usize].context;
                if !near && self.holds(Rule::TakingStaysInTheContext) {
                    return None;
                }
                let (last, event) = *ledger.recorded.last()?;
                if number > last && self.holds(Rule::OnlyWhatTheEventCovers) {
                    return None;
                }
                let dead = state.events[event as usize] == Event::Dead;
                if dead && self.holds(Rule::AnswersOfDeadContextsAreNone) {
                    return None;
                }
                if self.holds(Rule::TakingWaitsForTheEvent) {
                    state.wait(handle, event_point(event));
                }
                Source::Taken
            }
            _ => return None,
        };
        state.hand_out(piece, Some(handle), false);
        Some(source)
    }

    /// Before CUDA 12.0: memory freed on any stream, after the event of that free.
    fn take_per_free(&self, state: &mut State, piece: u8, handle: u8) -> Option<Source> {
        let place = &state.sets.pieces[piece as usize];
        let source = match (place, place.wait()) {
            (Place::Common, _) => Source::Common,
            (_, Some(Wait::Event(_, Some(event)))) if state.events[*event as usize] == Event::Dead => return None,
            (_, Some(Wait::Event(context, _)))
                if *context != state.streams[handle as usize].context && self.holds(Rule::TakingStaysInTheContext) =>
            {
                return None;
            }
            (_, Some(Wait::Event(context, Some(event)))) => {
                let (context, event) = (*context, *event);
                if self.holds(Rule::PerFreeEventsAreWaitedFor) {
                    state.wait(handle, event_point(event));
                }
                state.spare[context as usize] |= 1 << event;
                Source::Taken
            }
            _ => return None,
        };
        state.hand_out(piece, Some(handle), false);
        Some(source)
    }

    /// A capturing stream gets memory that its capture freed, and common memory. It is not asked for its id: the graph has
    /// that of the stream which the handle was last known to be. Its context is the current one.
    fn allocate_captured(&self, state: &mut State, piece: u8, handle: u8) -> Option<Source> {
        let context = state.streams[handle as usize].context;
        self.note_context(state, context);
        if self.has_ids() {
            state.graph.id = state.caches[handle as usize].serves.map_or(0, |served| served.id);
        }
        let source = match &state.sets.pieces[piece as usize] {
            Place::Common => Source::Common,
            Place::Waits(set) if set.asker == Asker::Capture => Source::Capture,
            _ => return None,
        };
        state.caches[handle as usize].captured = true;
        state.hand_out(piece, Some(handle), true);
        state.graph.pieces |= 1 << piece;
        Some(source)
    }

    /// A request without a stream, in that context, that gets that piece. It can only get memory that is free for every
    /// caller.
    pub fn allocate_anywhere(&self, state: &mut State, piece: u8, context: u8) -> Option<()> {
        self.reclaim_graph(state);
        self.note_caller(state, context);
        if state.sets.pieces[piece as usize] != Place::Common {
            return None;
        }
        state.hand_out(piece, None, false);
        Some(())
    }

    fn note_caller(&self, state: &mut State, context: u8) {
        if self.holds(Rule::ContextsOfCallersAreKnown) {
            self.note_context(state, context);
        }
    }

    /// `Allocator::deallocate` on a stream, with that context current.
    pub fn free(&self, state: &mut State, piece: u8, block: &Block, handle: u8, current: u8) -> Option<()> {
        if !self.has_ids() {
            return self.free_with_event(state, piece, block, handle, current);
        }
        let at = handle as usize;
        let plain = !block.graph && !block.unknown && block.uses.is_empty();
        if block.home.is_some_and(|home| home != handle) && state.caches[at].serves.is_none() {
            // The block was chosen for work that ran there, so the handle may be passed to the driver.
            self.join(state, handle)?;
        }
        if self.holds(Rule::ContextsOfFreesAreKnown) {
            self.note_context(state, current);
        }
        let Cache { serves, next, .. } = state.caches[at];
        if let Some(served) = serves.filter(|_| plain) {
            let streams = Wait::Streams(vec![(served.owner, next)]);
            state.sets.insert(piece, Asker::Stream(served.owner), streams);
            return Some(());
        }
        self.free_slowly(state, piece, block, handle, current);
        Some(())
    }

    /// `Pool::free` on a stream.
    fn free_slowly(&self, state: &mut State, piece: u8, block: &Block, handle: u8, current: u8) {
        self.reclaim_graph(state);
        let Cache {
            serves,
            next,
            captured,
            joined,
            ..
        } = state.caches[handle as usize];
        let shared = (block.unknown || !block.uses.is_empty()) && self.holds(Rule::DeclaredUsesCount);
        let graph = matches!(&state.sets.pieces[piece as usize], Place::Live(block) if block.graph);
        let (asker, wait) = match serves {
            _ if graph && self.holds(Rule::GraphsOwnTheirMemory) => {
                let inside = captured && !shared && handle == state.graph.handle;
                let asker = if inside { Asker::Capture } else { Asker::NoOne };
                (asker, Wait::Graph)
            }
            Some(served) if !shared => {
                let streams = Wait::Streams(vec![(served.owner, next)]);
                (Asker::Stream(served.owner), streams)
            }
            Some(served)
                if !block.unknown
                    && let Some(streams) = self.uses(state, block, handle, served) =>
            {
                (Asker::NoOne, Wait::Streams(streams))
            }
            _ => {
                if self.holds(Rule::ContextsOfForeignFreesAreKnown) {
                    // The driver is queried about a stream that has allocated nothing.
                    let asked = if joined {
                        current
                    } else {
                        state.streams[handle as usize].context
                    };
                    self.note_context(state, serves.map_or(asked, |served| served.context));
                }
                (Asker::NoOne, Wait::Filed)
            }
        };
        state.sets.insert(piece, asker, wait);
    }

    /// `Reclaimer::free_with_uses`: a number for each stream that the block was declared for, if all are known.
    fn uses(&self, state: &State, block: &Block, handle: u8, freeing: Served) -> Option<Vec<(u8, u8)>> {
        let own = Use {
            handle,
            id: freeing.id,
            owner: freeing.owner,
        };
        let mut streams = Vec::new();
        for of in block.uses.iter().chain([&own]) {
            let Cache { serves, next, .. } = state.caches[of.handle as usize];
            let same = |served: &Served| match self.holds(Rule::DeclaredUsesHaveIds) {
                true => served.id == of.id,
                false => served.owner == of.owner,
            };
            match serves.filter(same) {
                Some(served) => streams.push((served.owner, next)),
                None if self.holds(Rule::UnknownUsesWaitForContexts) => return None,
                None => {}
            }
        }
        streams.sort_unstable();
        streams.dedup();
        Some(streams)
    }

    /// `Pool::free_with_event`: a free on a stream without an id.
    fn free_with_event(&self, state: &mut State, piece: u8, block: &Block, handle: u8, current: u8) -> Option<()> {
        self.reclaim_graph(state);
        let graph = matches!(&state.sets.pieces[piece as usize], Place::Live(block) if block.graph);
        if graph {
            let inside = state.captures(handle) && !block.unknown;
            let asker = if inside { Asker::Capture } else { Asker::NoOne };
            state.sets.insert(piece, asker, Wait::Graph);
        } else if block.unknown || state.captures(handle) {
            self.note_context(state, current);
            state.sets.insert(piece, Asker::NoOne, Wait::Filed);
        } else {
            let context = state.streams[handle as usize].context;
            self.know(state, context);
            let event = self.mark(state, handle)?;
            if !self.holds(Rule::PerFreeEventsAreNotShared) {
                // One event for all waiting frees of the handle.
                state.spare[context as usize] |= 1 << event;
            }
            state
                .sets
                .insert(piece, Asker::Handle(handle), Wait::Event(context, Some(event)));
        }
        Some(())
    }

    /// A free without a stream, with that context current.
    pub fn free_anywhere(&self, state: &mut State, piece: u8, context: u8) {
        self.reclaim_graph(state);
        let graph = matches!(&state.sets.pieces[piece as usize], Place::Live(block) if block.graph);
        match graph {
            true if self.holds(Rule::GraphsOwnTheirMemory) => state.sets.insert(piece, Asker::NoOne, Wait::Graph),
            _ if self.holds(Rule::FreesWithoutStreamWait) => state.sets.insert(piece, Asker::NoOne, Wait::Filed),
            _ => state.sets.pieces[piece as usize] = Place::Common,
        }
        self.note_caller(state, context);
    }

    /// `Pool::add_use`, or `Pool::add_unknown_use` where waiting for the stream is not enough.
    pub fn declare(&self, state: &mut State, piece: u8, handle: u8) -> Option<()> {
        let Stream { id, context, .. } = state.streams[handle as usize];
        let exact = self.has_ids() && !state.captures(handle);
        let owner = if exact { self.join(state, handle)? } else { 0 };
        if !exact {
            self.note_context(state, context);
        }
        let kept = if self.holds(Rule::DeclaredUsesHaveIds) {
            0
        } else {
            owner
        };
        let Place::Live(block) = &mut state.sets.pieces[piece as usize] else {
            return None;
        };
        block.declared |= 1 << handle;
        block.unknown |= !exact;
        let owner = kept;
        let of = Use { handle, id, owner };
        if exact && !block.uses.contains(&of) {
            block.uses.push(of);
            block.uses.sort_unstable();
        }
        state.declare_work(piece, handle);
        Some(())
    }

    /// A waiting request continues, with its data on its stream. `None` where it is refused.
    pub fn resume(&self, state: &mut State, waiting: Waiting, piece: u8) -> Option<Source> {
        let Waiting { handle, id, owner } = waiting;
        let serves = state.caches[handle as usize].serves;
        let mine = serves.is_some_and(|served| served.id == id && served.owner == owner);
        if !mine && self.holds(Rule::WaitersLookAgain) {
            return None;
        }
        state.waiting = None;
        self.take(state, piece, handle, owner)
    }
}

impl State {
    /// The piece has a new owner. All work of former owners must have completed, or precede all work of the new one.
    fn hand_out(&mut self, piece: u8, home: Option<u8>, graph: bool) {
        let used_by_graph = !graph && self.graph.stage != Stage::None && self.graph.pieces & 1 << piece != 0;
        if used_by_graph {
            self.fault = Some(Fault::UsedByGraph(piece));
        }
        if self.is_in_use(piece, home) && self.fault.is_none() {
            self.fault = Some(match home {
                Some(handle) => Fault::TooEarlyOn(piece, handle),
                None => Fault::TooEarly(piece),
            });
        }
        for work in self.work.iter_mut().filter(|work| work.piece == piece) {
            (work.former, work.declared) = (true, false);
        }
        self.sets.pieces[piece as usize] = Place::Live(Block {
            home,
            graph,
            context: home.map(|handle| self.streams[handle as usize].context),
            ..Block::default()
        });
    }

    /// Declares the stream's queued work on the piece.
    fn declare_work(&mut self, piece: u8, handle: u8) {
        let of = |work: &&mut Work| work.piece == piece && work.before & stream_point(handle) != 0;
        self.work.iter_mut().filter(of).for_each(|work| work.declared = true);
    }
}
