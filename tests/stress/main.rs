//! Random work of many threads on many streams under an order checker, with driver calls that fail: over this project's
//! simulated device (`sim`), and over a second simulated driver (`second`). The clients order their own uses correctly, so
//! every violation that a checker reports is the allocator's.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `TRTALLOC_STRESS_OPS` | operations of all rounds together | `sim`: 150,000; 300,000 with `TRTALLOC_TEST_REQUIRE=all`. `second`, whose rounds run in parallel: 200,000; 1,000,000 |
//! | `TRTALLOC_STRESS_SEED` | the random seed; with one thread a run repeats exactly | `sim`: the time; `second`: 20261122; 1 for random options |
//! | `TRTALLOC_STRESS_THREADS` | threads at once; `second` has at most 3 | `sim`: 4; `second`: 1 |
//! | `TRTALLOC_STRESS_ROUND` | only the round of that number | all |
//! | `TRTALLOC_STRESS_DRIVER` | `sim`: the simulated driver's version in every round, as `cuDriverGetVersion` returns it: 11020 | each round's own |
//! | `TRTALLOC_STRESS_NO_FAILURES` | set: no driver call fails | |
//! | `TRTALLOC_SERVE_REQUESTS` | `second`: measured requests of each stream of a server | 100 |
//!
//! `random_work` is the random work. Both drivers' modules include it, each with its own `machine`. `rounds` has the allocators
//! under test.

#[macro_use]
extern crate trial;

#[path = "../support/ascendcl/mod.rs"]
mod ascendcl;
#[path = "../support/common/mod.rs"]
mod common;

mod second;
mod sim;

use ascendcl::{over, standin};
use common::cudasim;
use trtalloc::driver::sim::model;

use std::env;

fn main() -> std::process::ExitCode {
    common::harness::main()
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok().filter(|text| !text.is_empty())?;
    let digits: String = text.chars().filter(|c| *c != '_').collect();
    Some(
        digits
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
    )
}
