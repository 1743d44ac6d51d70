//! The library over a second simulated driver, `cudasim`, which other authors wrote from CUDA's documentation: with
//! `driver=cuda`, in processes that load it as libcuda.so.1. `TRTALLOC_TEST_CUDASIM` names its folder; without it these
//! tests do not run.
//!
//! The random work is that of `sim`, with `machine` in place of this project's simulated device. The order
//! checker, `books`, uses the driver's clock: it knows which work still uses a byte, and until when. Memory that is
//! handed out on a stream must be unused by the time at which new work there can start; without a stream, by now. Each
//! block also carries its number in its memory, and the driver is queried whether the block is backed. Time is
//! simulated (`clock`): with one thread a run repeats exactly.

mod books;
mod failures;
mod gate;
mod machine;
#[allow(clippy::duplicate_mod, reason = "another machine's work")]
#[path = "../random_work/mod.rs"]
mod random_work;
mod reach;
mod rounds;
mod serve;

use std::env;
use std::process::Command;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::common::{cudasim, viewer};
use crate::{common, number};
use cudasim::clock;
use rounds::Round;

const ROLE: &str = "TRTALLOC_TEST_ROLE";

fn from_parent(name: &str) -> u64 {
    number(name).expect("the parent sets it")
}

/// Runs a test in the process that was started for it.
fn child(work: impl FnOnce(u64, u64) -> String) {
    if env::var_os("TRTALLOC_LOG").is_none() {
        trtalloc::log::init(trtalloc::config::LogLevel::Off);
    }
    clock::begin();
    let result = work(from_parent("TRTALLOC_STRESS_OPS"), from_parent("TRTALLOC_STRESS_SEED"));
    println!("came to: {result}");
}

/// The round of this process, if it is a test's child.
fn role() -> Option<usize> {
    env::var(ROLE).ok()?.parse().ok()
}

/// Runs `test` in a process that loads the driver of `round`.
fn in_child(test: &str, at: usize, round: &Round, operations: u64, seed: u64) {
    let start = Instant::now();
    let slow = if round.latencies.is_empty() { "" } else { ", slow" };
    let name = format!("{test} {at} (driver {}, {}{slow})", round.version, round.options);
    let result = in_driver(test, at, &format!("{name}, seed {seed}"), |command| {
        cudasim::environment(command, round.version, round.devices, round.memory);
        command
            .env("CUDASIM_LAT", round.latencies)
            .env("TRTALLOC_STRESS_OPS", operations.to_string())
            .env("TRTALLOC_STRESS_SEED", seed.to_string());
    });
    println!("{name}: {operations} operations in {:.1?}: {result}", start.elapsed());
}

/// Runs `test` in a process that `environment` prepares, and returns what its work came to.
fn in_driver(test: &str, at: usize, name: &str, environment: impl FnOnce(&mut Command)) -> String {
    let mut command = Command::new(env::current_exe().unwrap());
    clock::fix_addresses(&mut command);
    environment(&mut command);
    let output = command
        .args([&format!("second::{test}"), "--exact", "--nocapture"])
        .env(ROLE, at.to_string())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let result = said.lines().find_map(|line| line.split_once("came to: "));
    assert!(
        output.status.success() && result.is_some(),
        "{name}: {}\n{said}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    result.unwrap_or_default().1.to_owned()
}

/// Runs `work` for each number below `count`, as many at once as there are processors.
fn side_by_side(count: usize, work: impl Fn(usize) + Sync) {
    // The threads below are not the test's: what is missing is found here.
    cudasim::folder(false);
    let next = AtomicUsize::new(0);
    let worker = || {
        loop {
            match next.fetch_add(1, Relaxed) {
                at if at < count => work(at),
                _ => return,
            }
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| (0..processors.min(4)).for_each(|_| drop(scope.spawn(worker))));
}

#[test]
fn random_work_leaves_no_violations_and_no_memory() {
    if let Some(at) = role() {
        let mut round = rounds::all().swap_remove(at);
        round.failures &= env::var_os("TRTALLOC_STRESS_NO_FAILURES").is_none();
        let threads = number("TRTALLOC_STRESS_THREADS").unwrap_or(1).max(1);
        return child(|operations, seed| round.run(operations, threads, seed));
    }
    let operations = number("TRTALLOC_STRESS_OPS").unwrap_or(if common::in_full() { 1_000_000 } else { 200_000 });
    let seed = number("TRTALLOC_STRESS_SEED").unwrap_or(20_261_122);
    let only = number("TRTALLOC_STRESS_ROUND");
    println!("TRTALLOC_STRESS_SEED={seed} TRTALLOC_STRESS_OPS={operations}");
    let rounds = rounds::all();
    let weight: u64 = rounds.iter().map(|round| round.weight).sum();
    side_by_side(rounds.len(), |at| {
        if only.is_none_or(|only| only == at as u64) {
            let share = (operations * rounds[at].weight).div_ceil(weight).min(rounds[at].most());
            let seed = seed.wrapping_add(at as u64 * 7919);
            let test = "random_work_leaves_no_violations_and_no_memory";
            in_child(test, at, &rounds[at], share, seed);
        }
    });
}

/// Options that are tried together nowhere else. Each round has its own, drawn from its seed.
#[test]
fn random_work_with_random_options() {
    let each = 3000;
    if role().is_some() {
        return child(|operations, seed| rounds::drawn(seed).run(operations, 1, seed));
    }
    let operations = number("TRTALLOC_STRESS_OPS").unwrap_or(if common::in_full() { 600_000 } else { 150_000 });
    let seed = number("TRTALLOC_STRESS_SEED").unwrap_or(1);
    side_by_side((operations / 4 / each) as usize, |at| {
        let seed = seed.wrapping_add(at as u64 * 7919);
        let round = rounds::drawn(seed);
        in_child("random_work_with_random_options", at, &round, each, seed);
    });
}

#[test]
fn failing_calls_lose_nothing() {
    let mut rounds = rounds::failing();
    if let Some(at) = role() {
        return child(|operations, seed| rounds.swap_remove(at).fail_each_call(operations, seed));
    }
    side_by_side(rounds.len(), |at| {
        in_child("failing_calls_lose_nothing", at, &rounds[at], 300, 7);
    });
}

#[test]
fn memory_waits_for_the_work_of_other_devices() {
    if let Some(at) = role() {
        return child(|_, _| reach::free_waits_for_the_other_device(reach::CASES[at].0));
    }
    side_by_side(reach::CASES.len(), |at| {
        let (options, version) = reach::CASES[at];
        let test = "memory_waits_for_the_work_of_other_devices";
        in_driver(test, at, &format!("{options}, driver {version}"), |command| {
            cudasim::environment(command, version, 2, 2 << 30);
            command.env("TRTALLOC_STRESS_OPS", "0").env("TRTALLOC_STRESS_SEED", "0");
        });
    });
}

#[test]
fn snapshots_open_in_the_viewer() {
    let folder = common::root()
        .join(env!("CARGO_TARGET_TMPDIR"))
        .join("second_driver_snapshots");
    let round = rounds::recorded();
    if role().is_some() {
        return child(|operations, seed| round.record(operations, seed, &folder));
    }
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    in_child("snapshots_open_in_the_viewer", 0, &round, 20_000, 3);
    for file in std::fs::read_dir(&folder).unwrap() {
        let seen = viewer::open(&file.unwrap().path());
        assert!(seen.number("entries") > 0);
    }
}

#[test]
fn demo_violates_no_invariant() {
    let folder = common::scratch("demo");
    let snapshot = folder.join("demo.pickle");
    let mut command = Command::new(env!("CARGO_BIN_EXE_trtalloc"));
    command
        .args(["demo", "--driver", "cuda", "--short", "--snapshot"])
        .arg(&snapshot);
    cudasim::environment(&mut command, 13_020, 1, 8 << 30);
    let said = common::run(&mut command).stdout;
    assert!(
        String::from_utf8_lossy(&said).contains("cudasim"),
        "the demo ran on another driver"
    );
    viewer::open(&snapshot);
}

/// The device of a server, as large as that of `trtalloc bench serve`.
const SERVER_MEMORY: u64 = 80 << 30;

/// How many requests of each stream come before those that are measured, as in `trtalloc bench serve`.
const WARM: usize = 300;

/// The workloads of `trtalloc bench serve`: no stream waits for another, no byte has two owners, and streams that serve one
/// request at a time meet every target. With `--nocapture` the test prints the table.
#[test]
fn servers_meet_the_targets() {
    let rows = trtalloc::trace::serve::rows();
    if let Some(at) = role() {
        return child(|_, seed| {
            let requests = number("TRTALLOC_SERVE_REQUESTS").unwrap_or(100) as usize;
            let measured = serve::measure(rows[at], (WARM, requests), seed);
            let figures = &measured.figures;
            let missed = measured.missed();
            let line = format!(
                "{:>5.1} {:>7.3} {:>5.2} {:>5.1}  {}",
                figures.per_thousand(figures.memory_calls),
                measured.allocators_part(),
                measured.memory(),
                figures.per_thousand(figures.waits),
                missed.join(" ")
            );
            let plain = rows[at].kind == trtalloc::trace::serve::Kind::Plain;
            assert_eq!(figures.violations, Vec::<String>::new());
            assert_eq!((figures.refused, &figures.reason), (0, &None));
            assert!(figures.checked > 0 && !missed.contains(&"waits"), "{line}");
            assert!(!plain || missed.is_empty(), "a target is missed: {line}");
            line
        });
    }
    let seed = number("TRTALLOC_STRESS_SEED").unwrap_or(1);
    let lines: Vec<_> = rows.iter().map(|_| std::sync::OnceLock::new()).collect();
    side_by_side(rows.len(), |at| {
        let row = rows[at];
        let name = format!("{:51} {:>2} {:>2}", row.name(), row.streams, row.ahead);
        let line = in_driver("servers_meet_the_targets", at, &name, |command| {
            cudasim::environment(command, 13_020, 1, SERVER_MEMORY);
            command
                .env("CUDASIM_LAT", rounds::A100)
                .env("TRTALLOC_STRESS_OPS", "0")
                .env("TRTALLOC_STRESS_SEED", seed.to_string());
        });
        let _ = lines[at].set(format!("{name} {line}"));
    });
    println!("workload, streams, requests ahead: calls, allocator's time, memory, waits, missed targets");
    lines
        .iter()
        .filter_map(|line| line.get())
        .for_each(|line| println!("{line}"));
}
