//! The allocators and drivers under test.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier};

use trtalloc::allocator::Allocator;
use trtalloc::config::Config;
use trtalloc::driver::cuda::CudaDriver;

use super::machine::Machine;
use super::machine::functions::{Call, CallKind};
use super::random_work::drawn::{self, Budget};
use super::random_work::play::{Ending, Rules, play};
use super::random_work::random::Random;

const MIB: u64 = 1 << 20;

/// The most streams of a client.
const FEW: usize = 6;
const MANY: usize = 100;

/// An A100's latencies in microseconds, as published.
pub const A100: &str =
    "cuMemCreate=30,cuMemMap=1.5,cuMemSetAccess=36,cuMemUnmap=26,cuMemAlloc*=120,cuMemFree*=150,cuMemRelease=10";

pub struct Round {
    pub options: String,
    /// Its part of all operations.
    pub weight: u64,
    pub failures: bool,
    /// The largest ordinary request.
    largest: u64,
    /// As cuDriverGetVersion returns it.
    pub version: u32,
    pub devices: u32,
    /// CUDASIM_LAT.
    pub latencies: &'static str,
    /// Bytes of each device.
    pub memory: u64,
    /// The most streams of a client.
    streams: usize,
    /// Whether a neighbour loads engines.
    neighbour: bool,
}

pub fn all() -> Vec<Round> {
    let round = |options: &str, weight, failures, largest| Round {
        options: options.to_owned(),
        weight,
        failures,
        largest,
        version: 13_020,
        devices: 2,
        latencies: "",
        // Where no capture may end, memory may grow.
        memory: if options.contains("captures=1") {
            64 << 30
        } else {
            2 << 30
        },
        streams: FEW,
        neighbour: false,
    };
    let older = |version, round: Round| Round { version, ..round };
    let slow = |round: Round| Round {
        latencies: A100,
        ..round
    };
    let one = |round: Round| Round { devices: 1, ..round };
    let many = |round: Round| Round { streams: MANY, ..round };
    let beside_engines = |round: Round| Round {
        neighbour: true,
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
        older(11_080, round("limit=256MiB,wait_ms=2", 4, true, 24 * MIB)),
        older(12_040, round("limit=256MiB,wait_ms=2", 4, true, 24 * MIB)),
        older(11_020, round("wait_ms=5", 2, true, 24 * MIB)),
        older(
            11_080,
            round("limit=256MiB,wait_ms=2,backing=malloc", 2, true, 24 * MIB),
        ),
        round("limit=256MiB,wait_ms=2,peers=0:1", 3, true, 24 * MIB),
        slow(round("limit=256MiB,wait_ms=2", 4, true, 24 * MIB)),
        slow(round("limit=256MiB,wait_ms=2,backing=malloc", 2, true, 24 * MIB)),
        one(round("limit=50%,wait_ms=2", 4, true, 24 * MIB)),
        // The helper thread gives idle memory back at times of its own.
        round("wait_ms=5,decay_ms=4", 4, true, 24 * MIB),
        round("limit=256MiB,wait_ms=2,decay_ms=4", 4, true, 24 * MIB),
        round("wait_ms=5,captures=1", 10, false, 24 * MIB),
        slow(round("wait_ms=5,captures=1", 4, false, 24 * MIB)),
        many(round("wait_ms=5", 4, true, 4 * MIB)),
        many(older(12_040, round("limit=256MiB,wait_ms=2", 2, true, 4 * MIB))),
        beside_engines(round("wait_ms=5", 4, true, 24 * MIB)),
        beside_engines(many(round("limit=256MiB,wait_ms=2", 4, false, 4 * MIB))),
    ]
}

/// Allocators and drivers for which each call fails in turn.
pub fn failing() -> Vec<Round> {
    let round = |options: &str, version| Round {
        options: options.to_owned(),
        weight: 1,
        failures: false,
        largest: 24 * MIB,
        version,
        devices: 2,
        latencies: "",
        memory: 2 << 30,
        streams: FEW,
        neighbour: false,
    };
    vec![
        round("limit=192MiB,wait_ms=2", 13_020),
        round("limit=192MiB,wait_ms=2,backing=malloc", 13_020),
        round("limit=192MiB,wait_ms=2,guard=1", 13_020),
        round("limit=192MiB,wait_ms=2,passthrough=1", 13_020),
        round("limit=192MiB,wait_ms=2", 12_040),
        round("limit=192MiB,wait_ms=2", 11_080),
    ]
}

/// The round that runs while snapshots are written.
pub fn recorded() -> Round {
    Round {
        options: "limit=256MiB,wait_ms=2,history=all,stacks=none".to_owned(),
        weight: 1,
        failures: false,
        largest: 24 * MIB,
        version: 13_020,
        devices: 2,
        latencies: "",
        memory: 2 << 30,
        streams: FEW,
        neighbour: false,
    }
}

/// An allocator with options that the seed decides, over a driver of any version.
pub fn drawn(seed: u64) -> Round {
    let mut random = Random::new(seed ^ 0x6472_6976_6572_2032);
    let drawn = drawn::options(&mut random, &Budget::new(seed));
    let captures = drawn.text.contains("captures=1");
    Round {
        weight: 1,
        // Without failures, a process that captures expects memory to grow.
        failures: captures || random.one_in(2),
        largest: (1 + random.below(48)) * MIB,
        version: random
            .pick(&[11_020, 11_080, 12_040, 13_020])
            .expect("there are versions"),
        // Every device can use pinned memory, and a pool learns of a context that is not primary when it calls the pool.
        devices: if drawn.pinned { 1 } else { 2 },
        latencies: if random.one_in(4) { A100 } else { "" },
        memory: (512 << random.below(4)) * MIB,
        streams: if random.one_in(6) { MANY } else { FEW },
        neighbour: random.one_in(6),
        options: drawn.text,
    }
}

impl Round {
    /// Whether the driver lacks the functions of CUDA 12.
    pub fn old(&self) -> bool {
        self.version < 12_000
    }
}

impl Round {
    /// The most operations. A pool that knows of captures grows rather than record events, and this driver has no more
    /// handles than the process has descriptors.
    pub fn most(&self) -> u64 {
        if self.options.contains("captures=1") {
            60_000
        } else {
            u64::MAX
        }
    }

    /// Whether the pools are made in contexts that are not primary, and how the round ends, as the seed decides.
    fn contexts(&self, seed: u64) -> (bool, Ending) {
        let mut random = Random::new(seed ^ 0x636f_6e74_6578_7473);
        let usual = self.old() || ["trusted", "pinned"].iter().any(|option| self.options.contains(option));
        let primaries = usual || !random.one_in(3);
        match primaries || random.one_in(2) {
            true => (primaries, Ending::Orderly),
            false => (primaries, Ending::Destroyed),
        }
    }

    fn rules(&self, machine: &Machine, threads: u64, seed: u64) -> Rules<'_> {
        let (primaries, ending) = self.contexts(seed);
        assert!(
            threads <= 3,
            "each thread needs a context of its own, and there are three"
        );
        Rules {
            options: &self.options,
            devices: machine.devices(),
            failures: self.failures,
            largest: self.largest,
            // These drivers notice too late that a handle is reused; see "Older drivers" in docs/internals/drivers.md.
            short_lived: !self.old(),
            // This driver's clock does not support two threads that queue work on one stream at once.
            crossing: threads == 1,
            // This driver never removes default streams of threads, and each context event visits all of them.
            max_thread_streams: 50,
            clients: if threads == 1 { 3 } else { 1 },
            most_streams: self.streams,
            engines: !self.failures,
            neighbour: self.neighbour,
            broad: true,
            away: threads == 1,
            // This driver's graphs do not keep the user objects of graphs that were launched while they were captured.
            child_graphs: false,
            primaries,
            ending,
        }
    }

    fn allocator(&self) -> Arc<Allocator> {
        let config = Config::parse(&format!("decay_ms=0,{}", self.options)).unwrap();
        Allocator::with_driver(CudaDriver::open().unwrap(), config).unwrap()
    }

    /// Runs the round in this process, over the libcuda.so.1 that it loads. Returns a summary.
    pub fn run(&self, operations: u64, threads: u64, seed: u64) -> String {
        let machine = Machine::open().expect("libcuda.so.1 is cudasim");
        let rules = self.rules(&machine, threads, seed);
        let budget = self.options.contains("share_budget").then(|| Budget::new(seed));
        budget.iter().for_each(Budget::begin);
        let allocator = self.allocator();
        let driver = allocator.driver().clone();
        let summary = play(machine, allocator, &rules, operations, threads, seed);
        if let Some(budget) = budget {
            // Before CUDA 11.3 the memory of graphs stays allocated.
            budget.end(driver, self.version >= 11_030);
        }
        summary
    }

    /// As `run`, again and again, while each driver call of an allocator fails in turn.
    pub fn fail_each_call(&self, operations: u64, seed: u64) -> String {
        let machine = Machine::open().expect("libcuda.so.1 is cudasim");
        let rules = self.rules(&machine, 1, seed);
        let life = |call: &str, n, code| {
            println!("the {n}. {call} fails with {code}");
            let allocator = self.allocator();
            machine.fail_nth(Some(call), n, code);
            play(machine.clone(), allocator, &rules, operations, 1, seed);
            machine.calls_seen()
        };
        let mut lives = 0;
        for call in Call::ALL.iter().filter(|call| call.kind() != CallKind::Application) {
            let count = life(call.name(), u64::MAX, 2);
            // Each of the first calls, and then ever fewer, because the work repeats itself.
            let mut n = 1;
            while n <= count {
                for code in [2, 999] {
                    life(call.name(), n, code);
                    lives += 1;
                }
                n = 2 * n + 1;
            }
        }
        format!("{lives} lives, {} calls failed", machine.failures_struck())
    }

    /// As `run`, while another thread writes snapshots to `folder`.
    pub fn record(&self, operations: u64, seed: u64, folder: &Path) -> String {
        let machine = Machine::open().expect("libcuda.so.1 is cudasim");
        let rules = self.rules(&machine, 1, seed);
        let allocator = self.allocator();
        let (over, begun) = (AtomicBool::new(false), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begun.wait();
                let mut written = 0;
                while written < 4 || !over.load(SeqCst) {
                    for suffix in ["pickle", "json"] {
                        let file = folder.join(format!("{}.{suffix}", written % 4));
                        allocator.write_snapshot(&file).unwrap();
                    }
                    written += 1;
                }
            });
            begun.wait();
            let result = play(machine, allocator.clone(), &rules, operations, 1, seed);
            over.store(true, SeqCst);
            result
        })
    }
}
