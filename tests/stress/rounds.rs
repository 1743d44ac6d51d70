//! The allocators under test.

use std::sync::Arc;

use trtalloc::allocator::Allocator;
use trtalloc::config::Config;
use trtalloc::driver::Driver;
use trtalloc::driver::sim::{Addresses, Machine, SimConfig, SimDriver};

use crate::over::open;
use crate::play::{Rules, play};
use crate::standin::process::exclusive;

const DEVICES: i32 = 2;
const MIB: u64 = 1 << 20;

pub struct Round {
    pub options: &'static str,
    /// Its part of all operations.
    pub weight: u64,
    pub failures: bool,
    /// The largest ordinary request.
    largest: u64,
    pub sim: SimConfig,
    /// Whether the round uses AscendCL's functions.
    ascend: bool,
}

pub fn all() -> Vec<Round> {
    let sim = || SimConfig {
        devices: DEVICES as u32,
        memory: 2048 * MIB,
        ..SimConfig::default()
    };
    let round = |options, weight, failures, largest| Round {
        options,
        weight,
        failures,
        largest,
        sim: sim(),
        ascend: false,
    };
    let ascend = |round: Round| Round { ascend: true, ..round };
    // Memory may grow, so that no capture ends.
    let large = |round: Round| Round {
        sim: SimConfig {
            memory: 64 << 30,
            ..round.sim
        },
        ..round
    };
    let older = |version, round: Round| Round {
        sim: SimConfig { version, ..sim() },
        ..round
    };
    vec![
        round("wait_ms=5", 30, true, 48 * MIB),
        round("limit=256MiB,wait_ms=2", 30, true, 24 * MIB),
        round("limit=192MiB,wait_ms=2", 10, false, 24 * MIB),
        round("release_threshold=0,wait_ms=5", 6, true, 24 * MIB),
        round("limit=256MiB,wait_ms=2,backing=malloc", 8, true, 24 * MIB),
        round("wait_ms=5,streams=trusted", 4, true, 24 * MIB),
        round("wait_ms=2,guard=1", 2, true, 4 * MIB),
        round("wait_ms=2,passthrough=1", 2, true, 4 * MIB),
        round("wait_ms=2,fill=0xcd", 2, true, 4 * MIB),
        older(11_080, round("limit=256MiB,wait_ms=2", 3, true, 24 * MIB)),
        older(12_040, round("limit=256MiB,wait_ms=2", 3, true, 24 * MIB)),
        older(11_020, round("wait_ms=5", 2, true, 24 * MIB)),
        ascend(round("limit=256MiB,wait_ms=2", 2, true, 24 * MIB)),
        ascend(round("wait_ms=5", 2, true, 24 * MIB)),
        ascend(round("limit=256MiB,wait_ms=2,backing=malloc", 1, true, 24 * MIB)),
        round("limit=256MiB,wait_ms=2,peers=0:1", 3, true, 24 * MIB),
        round("wait_ms=5,backing=malloc", 4, true, 24 * MIB),
        older(
            11_020,
            round("limit=256MiB,wait_ms=2,backing=malloc", 2, true, 24 * MIB),
        ),
        // The helper thread gives idle memory back at times of its own, so these do not repeat.
        round("wait_ms=5,decay_ms=4", 4, true, 24 * MIB),
        round("limit=256MiB,wait_ms=2,decay_ms=4", 4, true, 24 * MIB),
        round("limit=256MiB,wait_ms=2,decay_ms=4,backing=malloc", 2, true, 24 * MIB),
        large(round("wait_ms=5,captures=1", 10, false, 24 * MIB)),
        large(older(12_040, round("wait_ms=5,captures=1", 2, false, 24 * MIB))),
    ]
}

/// Rounds that found an error once, with one thread: the round, its seed and operations.
const FOUND: [(usize, u64, u64); 2] = [
    // Blocks that crossed two segments of the driver's malloc.
    (4, 31_678, 4_200),
    (4, 31_682, 4_200),
];

/// Runs them again.
pub fn run_found(rounds: &[Round]) {
    for (at, seed, operations) in FOUND {
        run(&rounds[at], operations, 1, seed);
    }
}

/// The seed decides where memory lies, so a run repeats.
fn addresses(seed: u64) -> Addresses {
    match seed % 8 {
        0 => Addresses::Odd,
        1 => Addresses::Ascending,
        2 => Addresses::Returning,
        _ => Addresses::Drawn(seed),
    }
}

/// In every third round, calls take as long as published for an A100.
fn slow_calls(machine: &Machine, seed: u64) {
    if !seed.is_multiple_of(3) {
        return;
    }
    for (call, nanoseconds) in [
        ("cuMemAddressReserve", 19_000),
        ("cuMemCreate", 193_000),
        ("cuMemMap", 1_450),
        ("cuMemSetAccess", 36_000),
        ("cuMemUnmap", 25_600),
        ("cuMemRelease", 10_000),
        ("cuMemAlloc", 120_000),
        ("cuMemFree", 150_000),
        ("cuEventQuery", 1_000),
        ("cuStreamGetId", 100),
        ("cuStreamIsCapturing", 100),
    ] {
        assert!(machine.set_latency(call, nanoseconds), "{call}");
    }
}

/// Runs a round. Returns a summary.
pub fn run(round: &Round, operations: u64, threads: u64, seed: u64) -> String {
    let simulated = SimDriver::new(SimConfig {
        addresses: addresses(seed),
        ..round.sim.clone()
    });
    let machine = simulated.machine().clone();
    slow_calls(&machine, seed);
    if round.ascend || !round.sim.stream_ids() {
        // These drivers notice too late that a handle is reused; see "Older drivers" in docs/ARCHITECTURE.md.
        machine.keep_handles();
    }
    let installed = round.ascend.then(|| exclusive(machine.clone()));
    let driver: Arc<dyn Driver> = match installed {
        Some(_) => open(false).unwrap(),
        None => simulated,
    };
    let config = Config::parse(&format!("decay_ms=0,{}", round.options)).unwrap();
    let rules = Rules {
        options: round.options,
        devices: DEVICES,
        failures: round.failures,
        largest: round.largest,
        short_lived: true,
        crossing: true,
        max_thread_streams: 1000,
        clients: 1,
        engines: !round.failures,
    };
    let allocator = Allocator::with_driver(driver, config).unwrap();
    play(machine, allocator, &rules, operations, threads, seed)
}
