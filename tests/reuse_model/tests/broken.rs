//! Removes each rule once; the checker has to find a violation. Prints the shortest counterexample: `cargo test --
//! --nocapture`.

use trtalloc_reuse_model::check;
use trtalloc_reuse_model::model::{Gaps, Model};
use trtalloc_reuse_model::rules::Rule;
use trtalloc_reuse_model::scenario::*;

/// Checks that there is a counterexample with that number of steps.
fn fails(what: &str, model: Model, steps: usize) {
    let outcome = check(model, 1);
    let counterexample = outcome
        .counterexample
        .unwrap_or_else(|| panic!("{what}: no violation found in {} states", outcome.states));
    println!(
        "{what}: violated: {}\n{}",
        counterexample.invariant, counterexample.text
    );
    assert_eq!(
        counterexample.steps, steps,
        "{what}: the shortest sequence has another length"
    );
}

/// Defines a test for each rule: the scenario in which the rule is needed, and the steps of the counterexample.
macro_rules! broken {
    ($($test:ident: $rule:ident in $scenario:expr, $steps:expr;)*) => {
        $(#[test]
        fn $test() {
            let broken = Some(Rule::$rule);
            fails(stringify!($rule), Model { broken, ..$scenario }, $steps);
        })*

        #[test]
        fn every_rule_is_removed_once() {
            let tried = [$(Rule::$rule),*];
            for rule in Rule::ALL {
                assert_eq!(tried.iter().filter(|of| **of == rule).count(), 1, "{rule:?}");
            }
        }
    };
}

broken! {
    ids_are_compared: IdsAreCompared in streams(), 9;
    ids_are_compared_before_events: IdsAreComparedBeforeEvents in streams(), 10;
    taking_waits_for_the_event: TakingWaitsForTheEvent in streams(), 9;
    taking_stays_in_the_context: TakingStaysInTheContext in contexts(), 13;
    only_what_the_event_covers: OnlyWhatTheEventCovers in two_blocks(), 9;
    numbers_are_raised_by_events: NumbersAreRaisedByEvents in two_blocks(), 9;
    numbers_are_raised_by_batches: NumbersAreRaisedByBatches in two_blocks(), 9;
    common_once_complete: CommonOnceComplete in streams(), 9;
    frees_without_stream_wait: FreesWithoutStreamWait in streams(), 9;
    every_known_context: EveryKnownContext in contexts(), 8;
    contexts_of_streams_are_known: ContextsOfStreamsAreKnown in contexts(), 8;
    contexts_of_callers_are_known: ContextsOfCallersAreKnown in contexts(), 8;
    contexts_of_frees_are_known: ContextsOfFreesAreKnown in contexts(), 10;
    contexts_of_foreign_frees_are_known: ContextsOfForeignFreesAreKnown in contexts(), 8;
    context_ids_are_compared: ContextIdsAreCompared in contexts(), 6;
    events_go_with_their_context: EventsGoWithTheirContext in contexts(), 11;
    waits_outlive_contexts: WaitsOutliveContexts in contexts(), 12;
    answers_of_dead_contexts_are_none: AnswersOfDeadContextsAreNone in contexts(), 11;
    new_events_are_no_old_ones: NewEventsAreNoOldOnes in two_blocks_without_ids(), 13;
    events_serve_once_complete: EventsServeOnceComplete in two_blocks(), 11;
    declared_uses_count: DeclaredUsesCount in declares(), 7;
    declared_uses_have_ids: DeclaredUsesHaveIds in declares(), 14;
    unknown_uses_wait_for_contexts: UnknownUsesWaitForContexts in declares(), 11;
    waiters_look_again: WaitersLookAgain in waits(), 8;
    graphs_own_their_memory: GraphsOwnTheirMemory in captures(), 7;
    graphs_leave_fresh_frees: GraphsLeaveFreshFrees in captures(), 11;
    graphs_leave_by_ids: GraphsLeaveByIds in captures(), 11;
    graphs_go_on_to_events: GraphsGoOnToEvents in captures(), 8;
    owners_outlive_batches: OwnersOutliveBatches in orphans(), 16;
    owners_outlive_sets: OwnersOutliveSets in declares(), 13;
    owners_outlive_contexts: OwnersOutliveContexts in contexts(), 12;
    per_free_events_are_waited_for: PerFreeEventsAreWaitedFor in contexts_without_ids(), 7;
    per_free_events_are_not_shared: PerFreeEventsAreNotShared in two_blocks_without_ids(), 8;
    contexts_of_per_free_events_are_known: ContextsOfPerFreeEventsAreKnown in contexts_without_ids(), 9;
}

#[test]
fn taking_stays_in_the_context_without_ids() {
    let broken = Some(Rule::TakingStaysInTheContext);
    let model = Model {
        broken,
        ..contexts_without_ids()
    };
    fails("TakingStaysInTheContext without ids", model, 11);
}

/// Documented: a free on a stream that has allocated nothing has to be made in the stream's own context.
#[test]
fn gap_of_frees_in_another_context() {
    let mut model = contexts();
    model.gaps = Gaps {
        other_context_current: true,
    };
    fails("a free in another context", model, 10);
}
