//! Every state that can be reached, breadth first, so that what is found is found by the shortest way.

use std::fmt::Write as _;

use stateright::{Checker, HasDiscoveries, Property};

use crate::application::Step;
use crate::model::Model;
use crate::settle::DeadEvents;
use crate::state::*;

const ONE_OWNER: &str = "no byte has two owners";
const NOTHING_LOST: &str = "what is freed comes back once all work is over";

/// What a check has shown.
pub struct Outcome {
    /// How many states there are.
    pub states: usize,
    /// The longest shortest way to one of them.
    pub depth: usize,
    /// What went wrong first, as a story.
    pub story: Option<Story>,
}

/// How something went wrong.
pub struct Story {
    /// Which promise was broken.
    pub promise: &'static str,
    /// How many steps it took.
    pub steps: usize,
    /// Each step on a line, and how it ends.
    pub text: String,
}

impl stateright::Model for Model {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.begin()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        actions.extend(self.steps(state));
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        self.step(before, step)
    }

    fn properties(&self) -> Vec<Property<Model>> {
        vec![
            Property::always(ONE_OWNER, |_, state: &State| state.fault.is_none()),
            Property::always(NOTHING_LOST, |model: &Model, state| model.recovers(state)),
        ]
    }
}

impl Model {
    /// Whether every free piece comes back once all work is over, every graph is gone, and a caller without a stream asks.
    fn recovers(&self, state: &State) -> bool {
        let mut state = state.clone();
        if state.fault.is_some() || state.pieces.iter().all(is_at_hand) {
            return true;
        }
        state.work.clear();
        if state.graph.stage != Stage::None {
            state.graph.stage = Stage::Gone;
        }
        // The application may have events at handles of the pool's that never complete; without ids nothing tells.
        let dead = if self.has_ids() {
            DeadEvents::Pending
        } else {
            DeadEvents::Refused
        };
        self.bury(&mut state);
        for _ in 0..=BATCHES {
            self.settle(&mut state, dead);
            if self.cover(&mut state, true).is_none() {
                // Beyond the bounds.
                return true;
            }
            for context in 0..CONTEXTS as u8 {
                if state
                    .batches
                    .iter()
                    .any(|batch| batch.events[context as usize] == Awaited::Owed)
                    && self.synchronise(&mut state, context).is_none()
                {
                    return true;
                }
            }
            self.settle(&mut state, dead);
        }
        state.pieces.iter().all(is_at_hand)
    }
}

fn is_at_hand(place: &Place) -> bool {
    matches!(place, Place::Common | Place::Live(_))
}

/// Visits every state. More threads are faster, and what they find need not be the shortest story.
pub fn check(model: Model, threads: usize) -> Outcome {
    use stateright::Model as _;
    let steps = model.bounds.steps;
    let mut builder = model
        .clone()
        .checker()
        .threads(threads)
        .finish_when(HasDiscoveries::Any);
    if steps != 0 {
        builder = builder.target_max_depth(steps + 1);
    }
    let checker = builder.spawn_bfs().join();
    let found = checker
        .discoveries()
        .into_iter()
        .min_by_key(|(_, path)| path.clone().into_actions().len());
    Outcome {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        story: found.map(|(promise, path)| model.story(promise, path)),
    }
}

impl Model {
    fn story(&self, promise: &'static str, path: stateright::Path<State, Step>) -> Story {
        let (mut text, mut last) = (String::new(), self.begin());
        let steps = path.into_actions();
        for (number, step) in steps.iter().enumerate() {
            let _ = writeln!(text, "{:>3}. {step}", number + 1);
            if let Some(next) = self.step(&last, *step) {
                last = next;
            }
        }
        let end = match last.fault {
            Some(Fault::TooEarlyOn(piece, handle)) => {
                format!("work of block {piece}'s former owner is not ordered before what s{handle} does next")
            }
            Some(Fault::TooEarly(piece)) => format!("work of block {piece}'s former owner is not over"),
            Some(Fault::UsedByGraph(piece)) => format!("a graph that may be launched again uses block {piece}"),
            Some(Fault::ForeignEvent(_)) => "the pool has recorded an event that may be the application's".into(),
            None => format!("the pool cannot get back what was freed: {:?}", last.pieces),
        };
        let _ = writeln!(text, "   > {end}");
        Story {
            promise,
            steps: steps.len(),
            text,
        }
    }
}
