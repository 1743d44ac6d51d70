//! Visits every reachable state, breadth first, so that counterexamples are the shortest.

use std::fmt::Write as _;

use stateright::{Checker, HasDiscoveries, Property};

use crate::application::Step;
use crate::model::Model;
use crate::reclaim::DeadEvents;
use crate::state::*;

const ONE_OWNER: &str = "no byte has two owners";
const NOTHING_LOST: &str = "freed memory becomes reusable once all work has completed";

/// The result of a check.
pub struct Outcome {
    /// The number of states.
    pub states: usize,
    /// The maximum distance of a state from the start.
    pub depth: usize,
    /// The first violation.
    pub counterexample: Option<Counterexample>,
}

/// A sequence of steps that violates an invariant.
pub struct Counterexample {
    /// The violated invariant.
    pub invariant: &'static str,
    /// The number of steps.
    pub steps: usize,
    /// Each step on a line, and the violation at the end.
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
    /// Whether every free piece becomes reusable once all work has completed, every graph is destroyed, and a caller
    /// without a stream requests it.
    fn recovers(&self, state: &State) -> bool {
        let mut state = state.clone();
        if state.fault.is_some() || state.sets.pieces.iter().all(is_at_hand) {
            return true;
        }
        state.work.clear();
        if state.graph.stage != Stage::None {
            state.graph.stage = Stage::Gone;
        }
        // The application may have events that never complete at handles of the pool; without ids the pool cannot
        // recognize them.
        let dead = if self.has_ids() {
            DeadEvents::Pending
        } else {
            DeadEvents::Refused
        };
        self.reclaim_graph(&mut state);
        for _ in 0..=BATCHES {
            self.reclaim(&mut state, dead);
            if self.cover(&mut state, true).is_none() {
                // The state exceeds the bounds.
                return true;
            }
            for context in 0..CONTEXTS as u8 {
                if state
                    .sets
                    .batches
                    .iter()
                    .any(|batch| batch.events[context as usize] == Awaited::Owed)
                    && self.synchronise(&mut state, context).is_none()
                {
                    return true;
                }
            }
            self.reclaim(&mut state, dead);
        }
        state.sets.pieces.iter().all(is_at_hand)
    }
}

fn is_at_hand(place: &Place) -> bool {
    matches!(place, Place::Common | Place::Live(_))
}

/// Visits all states. More threads are faster, but then the counterexample need not be the shortest.
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
        counterexample: found.map(|(invariant, path)| model.counterexample(invariant, path)),
    }
}

impl Model {
    fn counterexample(&self, invariant: &'static str, path: stateright::Path<State, Step>) -> Counterexample {
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
                format!("work of block {piece}'s former owner does not precede the next work on s{handle}")
            }
            Some(Fault::TooEarly(piece)) => format!("work of block {piece}'s former owner is pending"),
            Some(Fault::UsedByGraph(piece)) => format!("a graph that may be launched again uses block {piece}"),
            Some(Fault::ForeignEvent(_)) => "the pool has recorded an event that may be the application's".into(),
            None => format!("the pool cannot reuse freed memory: {:?}", last.sets.pieces),
        };
        let _ = writeln!(text, "   > {end}");
        Counterexample {
            invariant,
            steps: steps.len(),
            text,
        }
    }
}
