//! The random work under the simulated device's order checker.
//!
//! Unless one round is chosen, the rounds that found an error once run first, with the same seed. A failure names the seed.

#[allow(clippy::duplicate_mod, reason = "another machine's work")]
#[path = "../random_work/mod.rs"]
mod random_work;
mod rounds;

use std::env;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

// The clients' device.
use trtalloc::driver::sim::model as machine;

use crate::{common, number};

#[test]
fn random_work_leaves_no_violations_and_no_memory() {
    if env::var("TRTALLOC_TEST_DRIVER").is_ok_and(|driver| driver == "cuda") {
        common::unsupported("the order checker is the simulated device's");
    }
    if env::var_os("TRTALLOC_LOG").is_none() {
        trtalloc::log::init(trtalloc::config::LogLevel::Off);
    }
    let operations = number("TRTALLOC_STRESS_OPS").unwrap_or(if common::in_full() { 300_000 } else { 150_000 });
    let threads = number("TRTALLOC_STRESS_THREADS").unwrap_or(4).max(1);
    let only = number("TRTALLOC_STRESS_ROUND");
    let seed = number("TRTALLOC_STRESS_SEED").unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
        now.as_nanos() as u64 % 1_000_000_000
    });
    println!("TRTALLOC_STRESS_SEED={seed} TRTALLOC_STRESS_OPS={operations} TRTALLOC_STRESS_THREADS={threads}");
    let mut rounds = rounds::all();
    if let Some(version) = number("TRTALLOC_STRESS_DRIVER") {
        rounds.iter_mut().for_each(|round| round.sim.version = version as u32);
    }
    if env::var_os("TRTALLOC_STRESS_NO_FAILURES").is_some() {
        rounds.iter_mut().for_each(|round| round.failures = false);
    }
    if only.is_none() {
        rounds::run_found(&rounds);
    }
    let weight: u64 = rounds.iter().map(|round| round.weight).sum();
    for (at, round) in rounds.iter().enumerate() {
        if only.is_some_and(|only| only != at as u64) {
            continue;
        }
        let share = (operations * round.weight).div_ceil(weight);
        let start = Instant::now();
        let summary = rounds::run(round, share, threads, seed.wrapping_add(at as u64 * 7919));
        println!(
            "round {at} ({}): {share} operations in {:.1?}: {summary}",
            round.options,
            start.elapsed()
        );
    }
}

/// Options that are tried together nowhere else. Each round has its own, drawn from its seed.
#[test]
fn random_work_with_random_options() {
    let operations = number("TRTALLOC_STRESS_OPS").unwrap_or(if common::in_full() { 300_000 } else { 150_000 });
    let threads = number("TRTALLOC_STRESS_THREADS").unwrap_or(4).max(1);
    let seed = number("TRTALLOC_STRESS_SEED").unwrap_or(1);
    let each = 3000;
    for at in 0..operations / 4 / each {
        let seed = seed.wrapping_add(at * 7919);
        let round = rounds::drawn(seed);
        let version = round.sim.version;
        print!("TRTALLOC_STRESS_SEED={seed}, CUDA {version}, {}: ", round.options);
        println!("{}", rounds::run(&round, each, threads, seed));
    }
}
