//! With all rules, no legal sequence of calls violates an invariant. Prints the number of states: `cargo test --
//! --nocapture`.

use trtalloc_reuse_model::check;
use trtalloc_reuse_model::model::Model;
use trtalloc_reuse_model::scenario::*;

/// `TRTALLOC_REUSE_MODEL_STEPS` adds steps where there is a limit.
fn holds(name: &str, mut model: Model) {
    let more = std::env::var("TRTALLOC_REUSE_MODEL_STEPS").map_or(0, |more| more.parse().expect("a number of steps"));
    let steps = &mut model.bounds.steps;
    *steps += if *steps == 0 { 0 } else { more };
    let bound = if *steps == 0 {
        "all of them".into()
    } else {
        format!("those within {steps} steps")
    };
    let outcome = check(model, 1);
    println!("{name}: {} states, {bound}", outcome.states);
    if let Some(counterexample) = outcome.counterexample {
        panic!(
            "{name}: violated: {}\n{}",
            counterexample.invariant, counterexample.text
        );
    }
    assert!(outcome.states > 1000, "the application does nothing");
}

#[test]
fn streams_created_and_destroyed() {
    holds("streams", streams());
}

#[test]
fn owners_that_come_back() {
    holds("owners that come back", orphans());
}

#[test]
fn two_blocks_of_one_context() {
    holds("two blocks", within(two_blocks(), 12));
}

#[test]
fn requests_that_wait() {
    holds("waits", waits());
}

#[test]
fn declared_uses() {
    holds("declared uses", within(declares(), 17));
}

#[test]
fn captures_and_graphs() {
    holds("captures", captures());
}

#[test]
fn contexts_created_and_destroyed() {
    holds("contexts", within(contexts(), 13));
}

#[test]
fn contexts_before_cuda_12_5() {
    holds("contexts before CUDA 12.5", within(contexts_without_events(), 12));
}

#[test]
fn contexts_before_cuda_12_0() {
    holds("contexts before CUDA 12.0", contexts_without_ids());
}

#[test]
fn two_blocks_before_cuda_12_0() {
    holds("two blocks before CUDA 12.0", within(two_blocks_without_ids(), 10));
}

#[test]
fn all_features_together() {
    holds("everything", within(everything(), 7));
}
