//! The application: every legal sequence of calls of the driver and of the pool.

use crate::model::{Driver, Model};
use crate::reclaim::DeadEvents;
use crate::rules::Rule;
use crate::state::*;

/// One step. Pieces, stream handles and contexts are given by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// A stream is created with the handle, in the context.
    MakeStream(u8, u8),
    /// The stream with the handle is destroyed. Its work continues.
    EndStream(u8),
    /// A context is created with the handle.
    MakeContext(u8),
    /// The context is destroyed, with its streams, events and work.
    EndContext(u8),
    /// Work on the piece is queued on the stream.
    Launch(u8, u8),
    /// The second stream waits for the first.
    Order(u8, u8),
    /// That piece of work completes.
    Complete(u8),
    /// The stream begins a capture.
    BeginCapture(u8),
    /// The capture ends, and a graph is made.
    EndCapture,
    /// The graph is launched on the stream.
    LaunchGraph(u8),
    /// The graph and all its executables are destroyed.
    EndGraph,
    /// The piece is requested on the stream.
    Allocate(u8, u8),
    /// The piece is requested without a stream, in the context.
    AllocateAnywhere(u8, u8),
    /// A request on the stream fails, or gets other memory: it records a completion event.
    Miss(u8),
    /// A request finds no memory and waits without the lock.
    Wait(u8),
    /// The waiting request continues, and gets the piece.
    Resume(u8),
    /// The waiting request gives up.
    GiveUp,
    /// The piece is freed on the stream, with the context current.
    Free(u8, u8, u8),
    /// The piece is freed without a stream, with the context current.
    FreeAnywhere(u8, u8),
    /// The piece is declared for the stream.
    Declare(u8, u8),
    /// `trtalloc_stream_release` of the handle.
    Release(u8),
    /// The pool covers all frees without a stream, or all frees, by an event in each context.
    Cover(bool),
    /// A thread of the pool synchronizes the context.
    Synchronise(u8),
    /// The pool polls its events.
    Reclaim(DeadEvents),
}

impl Model {
    /// All steps that may be legal; `step` decides.
    pub fn steps(&self, state: &State) -> Vec<Step> {
        let bounds = self.bounds;
        let mut steps = Vec::new();
        let (pieces, contexts) = (0..bounds.pieces as u8, 0..bounds.contexts);
        let handles = || 0..bounds.handles;
        for handle in handles() {
            steps.extend(contexts.clone().map(|context| Step::MakeStream(handle, context)));
            steps.extend([Step::EndStream(handle), Step::Miss(handle)]);
            steps.extend(handles().map(|other| Step::Order(handle, other)));
            if bounds.captures {
                steps.extend([Step::BeginCapture(handle), Step::LaunchGraph(handle)]);
            }
            if bounds.waits {
                steps.extend([Step::Wait(handle), Step::Release(handle)]);
            }
        }
        for context in 1..bounds.contexts {
            steps.extend([Step::MakeContext(context), Step::EndContext(context)]);
        }
        for piece in pieces {
            for handle in handles() {
                steps.extend([Step::Launch(piece, handle), Step::Allocate(piece, handle)]);
                steps.extend(contexts.clone().map(|current| Step::Free(piece, handle, current)));
                steps.extend(bounds.declares.then_some(Step::Declare(piece, handle)));
            }
            if bounds.without_stream {
                steps.extend(contexts.clone().map(|context| Step::AllocateAnywhere(piece, context)));
                steps.extend(contexts.clone().map(|context| Step::FreeAnywhere(piece, context)));
            }
            steps.extend(bounds.waits.then_some(Step::Resume(piece)));
        }
        steps.extend((0..state.work.len() as u8).map(Step::Complete));
        steps.extend([Step::EndCapture, Step::EndGraph, Step::GiveUp]);
        steps.extend([Step::Cover(false), Step::Cover(true)]);
        if self.driver != Driver::Full {
            steps.extend(contexts.map(Step::Synchronise));
        }
        steps.push(Step::Reclaim(DeadEvents::Pending));
        if state.events.contains(&Event::Dead) {
            steps.extend([DeadEvents::Over, DeadEvents::Refused].map(Step::Reclaim));
        }
        steps
    }

    /// The state after a step. `None` where the step is not legal, does nothing, or exceeds the bounds.
    pub fn step(&self, before: &State, step: Step) -> Option<State> {
        if before.fault.is_some() {
            return None;
        }
        let mut state = before.clone();
        self.act(&mut state, step)?;
        state.canonicalise(self.holds(Rule::DeclaredUsesHaveIds), self.bounds.orphans);
        (state != *before).then_some(state)
    }

    fn act(&self, state: &mut State, step: Step) -> Option<()> {
        match step {
            Step::MakeStream(..) | Step::EndStream(_) | Step::MakeContext(_) | Step::EndContext(_) => {
                self.create_and_destroy(state, step)
            }
            Step::Launch(..) | Step::Order(..) | Step::Complete(_) => self.work(state, step),
            Step::BeginCapture(_) | Step::EndCapture | Step::LaunchGraph(_) | Step::EndGraph => {
                self.capture(state, step)
            }
            Step::Cover(all) => self.cover(state, all)?.then_some(()),
            Step::Synchronise(context) => {
                let owed = |batch: &Batch| batch.events[context as usize] == Awaited::Owed;
                state.sets.batches.iter().any(owed).then_some(())?;
                self.synchronise(state, context)
            }
            Step::Reclaim(dead) => {
                self.reclaim(state, dead);
                Some(())
            }
            _ => self.call(state, step),
        }
    }

    fn create_and_destroy(&self, state: &mut State, step: Step) -> Option<()> {
        match step {
            Step::MakeStream(handle, context) => {
                let lower = &state.streams[..handle as usize];
                let in_turn = lower.iter().all(|stream| stream.life != Life::Unused);
                let may = in_turn && !state.is_live(handle) && state.contexts[context as usize] == Life::Live;
                may.then_some(())?;
                let cache = &mut state.caches[handle as usize];
                cache.stray = cache.joined;
                state.make_stream(handle, context);
                Some(())
            }
            Step::EndStream(handle) => {
                (state.is_live(handle) && state.may_end(handle)).then_some(())?;
                if state.captures(handle) {
                    state.graph.stage = Stage::Gone;
                }
                state.end_stream(handle);
                Some(())
            }
            Step::MakeContext(context) => {
                let life = &mut state.contexts[context as usize];
                (*life != Life::Live).then(|| *life = Life::Live)
            }
            Step::EndContext(context) => {
                (state.contexts[context as usize] == Life::Live).then_some(())?;
                let inside = |handle: &u8| state.streams[*handle as usize].context == context && state.is_live(*handle);
                let streams: Vec<u8> = (0..HANDLES as u8).filter(inside).collect();
                streams.iter().all(|handle| state.may_end(*handle)).then_some(())?;
                if streams.iter().any(|handle| state.captures(*handle)) {
                    state.graph.stage = Stage::Gone;
                }
                state.end_context(context);
                Some(())
            }
            _ => None,
        }
    }

    fn work(&self, state: &mut State, step: Step) -> Option<()> {
        match step {
            Step::Launch(piece, handle) => {
                let Place::Live(block) = &state.sets.pieces[piece as usize] else {
                    return None;
                };
                // The device waits for the queued work of a former owner, and so does the application's new work.
                let former = |work: &&Work| work.piece == piece && work.former;
                let ordered = |work: &Work| work.before & stream_point(handle) != 0;
                let may = state.is_live(handle)
                    && state.graph.stage != Stage::Capturing
                    && state.work.len() < self.bounds.work
                    && state.work.iter().filter(former).all(ordered);
                may.then_some(())?;
                let declared = block.declared & 1 << handle != 0;
                state.launch(piece, handle, declared, false);
                Some(())
            }
            Step::Order(first, second) => {
                let both = first != second && state.is_live(first) && state.is_live(second);
                (both && state.graph.stage != Stage::Capturing).then_some(())?;
                let [of, into] = [first, second].map(|handle| state.streams[handle as usize].context);
                state.crossed[into as usize] |= of != into;
                state.wait(second, stream_point(first));
                Some(())
            }
            Step::Complete(work) => {
                state.work.remove(work as usize);
                Some(())
            }
            _ => None,
        }
    }

    fn capture(&self, state: &mut State, step: Step) -> Option<()> {
        match step {
            Step::BeginCapture(handle) => {
                let may = state.is_live(handle) && state.graph.stage == Stage::None;
                may.then_some(())?;
                state.graph = Graph {
                    stage: Stage::Capturing,
                    handle,
                    ..Graph::default()
                };
                Some(())
            }
            Step::EndCapture => {
                (state.graph.stage == Stage::Capturing).then_some(())?;
                // A graph without memory has no effect on the pool.
                let stage = if state.graph.pieces == 0 {
                    Stage::None
                } else {
                    Stage::Made
                };
                state.graph.stage = stage;
                if stage == Stage::None {
                    state.graph = Graph::default();
                }
                Some(())
            }
            Step::LaunchGraph(handle) => {
                let Graph { stage, pieces, .. } = state.graph;
                let uses = |work: &&Work| pieces & 1 << work.piece != 0 && work.former;
                let ordered = |work: &Work| work.before & stream_point(handle) != 0;
                let may = stage == Stage::Made
                    && state.is_live(handle)
                    && state.work.len() < self.bounds.work
                    && state.work.iter().filter(uses).all(ordered);
                may.then_some(())?;
                for piece in (0..PIECES as u8).filter(|piece| pieces & 1 << piece != 0) {
                    state.launch(piece, handle, false, true);
                }
                Some(())
            }
            Step::EndGraph => {
                // A graph's references exist as long as its launches.
                let idle = !state.work.iter().any(|work| work.graph);
                (state.graph.stage == Stage::Made && idle).then(|| state.graph.stage = Stage::Gone)
            }
            _ => None,
        }
    }

    fn call(&self, state: &mut State, step: Step) -> Option<()> {
        match step {
            Step::Allocate(piece, handle) => {
                state.names(handle)?;
                self.allocate(state, piece, handle).map(|_| ())
            }
            Step::AllocateAnywhere(piece, context) => {
                state.calls_in(context)?;
                self.allocate_anywhere(state, piece, context)
            }
            Step::Miss(handle) => {
                (self.has_ids() && !state.captures(handle)).then_some(())?;
                state.names(handle)?;
                self.reclaim_graph(state);
                if self.holds(Rule::IdsAreComparedBeforeEvents) {
                    self.join(state, handle)?;
                }
                self.record_completion_event(state, handle).map(|_| ())
            }
            Step::Wait(handle) => {
                let may = self.has_ids() && state.waiting.is_none() && !state.captures(handle);
                may.then_some(())?;
                state.names(handle)?;
                let owner = self.join(state, handle)?;
                let id = state.streams[handle as usize].id;
                state.waiting = Some(Waiting { handle, id, owner });
                Some(())
            }
            Step::Resume(piece) => {
                let waiting = state.waiting?;
                self.resume(state, waiting, piece).map(|_| ())
            }
            Step::GiveUp => state.waiting.take().map(|_| ()),
            Step::Free(piece, handle, current) => {
                let block = self.may_free(state, piece, handle, current)?;
                let used = state.is_live(handle);
                self.free(state, piece, &block, handle, current)?;
                if used {
                    state.names(handle)?;
                }
                Some(())
            }
            Step::FreeAnywhere(piece, context) => {
                matches!(state.sets.pieces[piece as usize], Place::Live(_)).then_some(())?;
                state.calls_in(context)?;
                let known = state.used_points();
                let mut work = state.work.iter().filter(|work| work.piece == piece);
                let all = work.all(|work| work.graph || work.before & known != 0);
                all.then(|| self.free_anywhere(state, piece, context))
            }
            Step::Declare(piece, handle) => {
                matches!(state.sets.pieces[piece as usize], Place::Live(_)).then_some(())?;
                state.names(handle)?;
                self.declare(state, piece, handle)
            }
            Step::Release(handle) => {
                (self.has_ids() && state.is_live(handle) && !state.captures(handle)).then_some(())?;
                state.caches[handle as usize].serves?;
                if !self.holds(Rule::IdsAreComparedBeforeEvents) || state.serves_present(handle) {
                    self.record_completion_event(state, handle)?;
                }
                self.retire(state, handle);
                Some(())
            }
            _ => None,
        }
    }

    /// A block may be freed on a stream that all its work precedes, or that it was declared for. The stream may be
    /// destroyed where the block was allocated on it. If the context that the block was allocated in is gone, the
    /// application knows of its own work only, unless it had made that context's streams wait for another's.
    fn may_free(&self, state: &State, piece: u8, handle: u8, current: u8) -> Option<Block> {
        let Place::Live(block) = &state.sets.pieces[piece as usize] else {
            return None;
        };
        let Stream { life, context, .. } = state.streams[handle as usize];
        let at_home = self.has_ids() && block.home == Some(handle) && life == Life::Gone;
        (state.is_live(handle) || at_home).then_some(())?;
        (state.contexts[current as usize] == Life::Live).then_some(())?;
        let Cache { joined, stray, .. } = state.caches[handle as usize];
        let own_context = life != Life::Gone && context == current;
        let known = self.has_ids() && !stray && (joined || life != Life::Gone);
        (own_context || known || self.gaps.other_context_current).then_some(())?;
        let unknown = |work: &Work| work.former && block.context.is_none();
        let ordered = |work: &Work| work.graph || work.declared || work.before & stream_point(handle) != 0;
        let mut work = state.work.iter().filter(|work| work.piece == piece);
        work.all(|work| unknown(work) || ordered(work)).then(|| block.clone())
    }
}

impl State {
    /// A call names the stream, so the stream's context uses the pool.
    fn names(&mut self, handle: u8) -> Option<()> {
        self.is_live(handle).then_some(())?;
        self.used[self.streams[handle as usize].context as usize] = true;
        Some(())
    }

    /// A call is made in the context.
    fn calls_in(&mut self, context: u8) -> Option<()> {
        (self.contexts[context as usize] == Life::Live).then_some(())?;
        self.used[context as usize] = true;
        Some(())
    }

    /// Whether no running call names the stream.
    fn may_end(&self, handle: u8) -> bool {
        self.waiting.is_none_or(|waiting| waiting.handle != handle)
    }

    /// The contexts that have used the pool.
    fn used_points(&self) -> Points {
        let users = (0..CONTEXTS as u8).filter(|context| self.used[*context as usize]);
        users.fold(0, |all, of| all | context_point(of))
    }

    /// Whether the cache serves the stream that the handle has now.
    pub fn serves_present(&self, handle: u8) -> bool {
        let serves = self.caches[handle as usize].serves;
        serves.is_some_and(|served| served.id == self.streams[handle as usize].id)
    }
}
