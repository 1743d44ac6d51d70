//! The allocators under test.

use std::sync::Arc;

use trtalloc::allocator::Allocator;
use trtalloc::config::Config;
use trtalloc::driver::Driver;
use trtalloc::driver::sim::{Addresses, Machine, SimConfig, SimDriver};

use super::random_work::drawn::{self, Budget};
use super::random_work::play::{Ending, Rules, play};
use super::random_work::random::Random;
use crate::over::open;
use crate::standin::process::exclusive;

const DEVICES: i32 = 2;
const MIB: u64 = 1 << 20;

/// The most streams of a client.
const FEW: usize = 6;
const MANY: usize = 150;

pub struct Round {
    pub options: String,
    /// Its part of all operations.
    pub weight: u64,
    pub failures: bool,
    /// The largest ordinary request.
    largest: u64,
    pub sim: SimConfig,
    /// Whether the round uses AscendCL's functions.
    ascend: bool,
    /// The most streams of a client.
    streams: usize,
    /// Whether a neighbour loads engines.
    neighbour: bool,
    /// Whether one thread does all the work, and repeats what is refused: see [`World::retry`](super::random_work::world::World::retry).
    alone: bool,
}

pub fn all() -> Vec<Round> {
    let sim = || SimConfig {
        devices: DEVICES as u32,
        memory: 2048 * MIB,
        ..SimConfig::default()
    };
    let round = |options: &str, weight, failures, largest| Round {
        options: options.to_owned(),
        weight,
        failures,
        largest,
        sim: sim(),
        ascend: false,
        streams: FEW,
        neighbour: false,
        alone: false,
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
    let many = |round: Round| Round { streams: MANY, ..round };
    let beside_engines = |round: Round| Round {
        neighbour: true,
        ..round
    };
    let alone = |round: Round| Round { alone: true, ..round };
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
        many(round("wait_ms=5", 4, true, 4 * MIB)),
        many(round("limit=256MiB,wait_ms=2", 4, false, 4 * MIB)),
        many(older(12_040, round("limit=256MiB,wait_ms=2", 2, true, 4 * MIB))),
        beside_engines(round("wait_ms=5", 4, true, 24 * MIB)),
        beside_engines(round("limit=256MiB,wait_ms=2", 4, false, 24 * MIB)),
        beside_engines(many(round("limit=256MiB,wait_ms=2,decay_ms=4", 2, true, 4 * MIB))),
        alone(round("limit=256MiB,wait_ms=2", 3, false, 48 * MIB)),
        alone(round("limit=192MiB,wait_ms=2,reserve=64MiB", 2, false, 48 * MIB)),
        alone(round("limit=256MiB,wait_ms=2,backing=malloc", 3, false, 48 * MIB)),
        alone(older(11_080, round("limit=256MiB,wait_ms=2", 2, false, 48 * MIB))),
        alone(older(
            12_040,
            round("limit=256MiB,wait_ms=2,guard=1", 1, false, 4 * MIB),
        )),
        alone(beside_engines(many(round(
            "limit=256MiB,wait_ms=2",
            2,
            false,
            24 * MIB,
        )))),
    ]
}

/// Options that need virtual memory.
const NEED_PAGES: [&str; 5] = ["backing=vmm", "guard", "share=", "rdma", "peers"];

/// An allocator with options that the seed decides, over a driver of any version.
pub fn drawn(seed: u64) -> Round {
    let mut random = Random::new(seed ^ 0x6f70_7469_6f6e_7321);
    let drawn = drawn::options(&mut random, &Budget::new(seed));
    let has = |option: &str| drawn.text.contains(option);
    Round {
        // Without failures, a process that captures expects memory to grow.
        failures: has("captures=1") || random.one_in(2),
        sim: SimConfig {
            version: random
                .pick(&[11_020, 11_080, 12_040, 12_090])
                .expect("there are versions"),
            memory: (512 << random.below(4)) * MIB,
            // Every device can use pinned memory, and a pool learns of a context that is not primary when it calls the pool.
            devices: if drawn.pinned { 1 } else { DEVICES as u32 },
            user_object_delay: 10_000 * random.below(100),
            exportable_granularity: if random.one_in(2) { 16 << 20 } else { 0 },
            virtual_memory: NEED_PAGES.iter().any(|option| has(option)) || !random.one_in(8),
            ..SimConfig::default()
        },
        weight: 0,
        largest: (1 + random.below(48)) * MIB,
        ascend: false,
        streams: if random.one_in(6) { MANY } else { FEW },
        neighbour: random.one_in(6),
        alone: false,
        options: drawn.text,
    }
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
        run_as(&rounds[at], operations, 1, seed, false);
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

/// What CUDA's documentation leaves open, as the seed decides it: the granularity of handles, whether a stream that captures
/// may be asked who it is and whether virtual memory calls end captures, and how late a graph's end is reported.
fn contrary(seed: u64, sim: SimConfig) -> SimConfig {
    let mut random = Random::new(seed ^ 0x636f_6e74_7261_7279);
    let granularity = match random.below(8) {
        0 => 64 << 10,
        1 => 512 << 10,
        2 => 4 << 20,
        3 => 16 << 20,
        _ => sim.granularity,
    };
    SimConfig {
        granularity,
        recommended_granularity: if random.one_in(3) { 4 * granularity } else { 0 },
        addresses: addresses(seed),
        ids_unsafe_in_capture: !random.one_in(3),
        vmm_unsafe_in_capture: !random.one_in(3),
        user_object_delay: [0, 10_000, 10_000_000][random.below(3) as usize],
        green_ids_refused: random.one_in(3),
        ..sim
    }
}

/// Runs a round. Returns a summary.
pub fn run(round: &Round, operations: u64, threads: u64, seed: u64) -> String {
    run_as(round, operations, threads, seed, true)
}

/// Whether the pools are made in contexts that are not primary, and how the round ends, as the seed decides.
fn contexts(round: &Round, seed: u64) -> (bool, Ending) {
    let mut random = Random::new(seed ^ 0x636f_6e74_6578_7473);
    // AscendCL's contexts are the standin's affair, and trusted streams outlive the allocator.
    let usual = round.ascend
        || ["trusted", "pinned"]
            .iter()
            .any(|option| round.options.contains(option));
    let primaries = usual || !random.one_in(4);
    let ending = match primaries {
        // Without ids, a context that comes back is not distinguished.
        _ if usual || !round.sim.stream_ids() || !random.one_in(3) => Ending::Orderly,
        true => Ending::Reset,
        false => Ending::Destroyed,
    };
    (primaries, ending)
}

fn run_as(round: &Round, operations: u64, threads: u64, seed: u64, broad: bool) -> String {
    let threads = if round.alone { 1 } else { threads };
    let simulated = SimDriver::new(contrary(seed, round.sim.clone()));
    let machine = simulated.machine().clone();
    slow_calls(&machine, seed);
    if round.ascend || !round.sim.stream_ids() {
        // These drivers notice too late that a handle is reused; see "Older drivers" in docs/internals/drivers.md.
        machine.keep_handles();
    }
    let installed = round.ascend.then(|| exclusive(machine.clone()));
    let driver: Arc<dyn Driver> = match installed {
        Some(_) => {
            let driver = open(false).unwrap();
            driver.running_captures().forget();
            driver
        }
        None => simulated,
    };
    let budget = round.options.contains("share_budget").then(|| Budget::new(seed));
    budget.iter().for_each(Budget::begin);
    let config = Config::parse(&format!("decay_ms=0,{}", round.options)).unwrap();
    let (primaries, ending) = match broad {
        true => contexts(round, seed),
        false => (true, Ending::Orderly),
    };
    let rules = Rules {
        options: &round.options,
        devices: round.sim.devices as i32,
        failures: round.failures,
        largest: round.largest,
        short_lived: true,
        crossing: true,
        max_thread_streams: 1000,
        clients: 1,
        most_streams: round.streams,
        engines: !round.failures,
        neighbour: round.neighbour,
        broad,
        // AscendCL uses a stream in its own context only.
        away: !round.ascend,
        child_graphs: true,
        primaries,
        ending,
    };
    let allocator = Allocator::with_driver(driver, config).unwrap();
    let summary = play(machine, allocator, &rules, operations, threads, seed);
    if let Some(budget) = budget {
        // Before CUDA 11.3 the memory of graphs stays allocated, and memory of a device that was reset counts until the
        // process ends.
        let whole = round.sim.user_objects() && ending != Ending::Reset;
        budget.end(SimDriver::new(SimConfig::default()), whole);
    }
    summary
}
