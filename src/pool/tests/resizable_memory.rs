//! The memory that resizable blocks hold while they grow and shrink: what one block gives back serves the next growth of
//! another. `cargo test --lib resizable_memory -- --nocapture` prints the figures.

use std::collections::VecDeque;

use super::{Bench, MIB, RESIZABLE};
use crate::driver::Stream;
use crate::driver::sim::SimConfig;
use crate::driver::sim::model::capture::MODE_RELAXED;
use crate::trace::Trace;
use crate::trace::generate::generate;
use crate::trace::kv::{self, AZURE, MOONCAKE, Way};
use crate::trace::random::Random;
use crate::trace::replay::replay;

const GIB: u64 = 1 << 30;

/// How many resizes and renewals there are.
const STEPS: usize = 2000;
/// How many pieces of work are queued at a time, where work is pending.
const AHEAD: usize = 4;

/// The calls that create, map or return memory.
const MEMORY_CALLS: [&str; 7] = [
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemAddressReserve",
    "cuMemAddressFree",
];

fn memory_calls(bench: &Bench) -> u64 {
    MEMORY_CALLS.iter().map(|call| bench.machine.count(call)).sum()
}

fn bench(memory: u64) -> Bench {
    let config = SimConfig {
        memory,
        contents: false,
        ..SimConfig::default()
    };
    Bench::over(config, "")
}

/// Blocks that are resized by random factors between a quarter and four.
#[derive(Clone, Copy)]
struct Mix {
    blocks: usize,
    /// The most bytes in use at a time.
    most: u64,
    /// How many streams the blocks are allocated and freed on; 0: without a stream.
    streams: usize,
    /// Whether work on the blocks is pending.
    busy: bool,
    /// One step in this many frees a block and allocates another; 0: none.
    renew: u64,
}

/// What a mix took.
struct Outcome {
    /// Memory reserved over the peak in use.
    of_peak: f64,
    /// Memory reserved over the most bytes that were in use or given back within the work that was queued.
    of_need: f64,
    /// Memory calls for each step, in the second half.
    calls: f64,
}

/// Work queued on the blocks of a mix, the oldest first.
struct Queued<'a> {
    bench: &'a Bench,
    events: VecDeque<usize>,
}

impl Queued<'_> {
    /// Queues a millisecond of work, and waits for the work that was queued [`AHEAD`] pieces before.
    fn launch(&mut self, stream: usize, block: u64, size: u64) {
        self.bench.launch(stream, block, size);
        self.bench.app(|machine| {
            let event = machine.event_create().unwrap();
            machine.event_record(event, stream).unwrap();
            self.events.push_back(event);
            if self.events.len() > AHEAD {
                let event = self.events.pop_front().unwrap();
                machine.event_synchronize(event).unwrap();
                machine.event_destroy(event).unwrap();
            }
        });
    }
}

fn run(mix: Mix) -> Outcome {
    let bench = bench(64 * GIB);
    let streams: Vec<usize> = (0..mix.streams).map(|_| bench.stream()).collect();
    let worker = bench.stream();
    let stream = |at: usize| (mix.streams > 0).then(|| streams[at % streams.len()]);
    let mut random = Random::new(7);
    let fresh = |random: &mut Random| (mix.most / 2 / mix.blocks as u64 * random.between(1, 100) / 100).max(MIB);
    let mut live: Vec<(u64, u64)> = (0..mix.blocks)
        .map(|at| {
            let size = fresh(&mut random);
            (bench.request(size, RESIZABLE, stream(at)).unwrap(), size)
        })
        .collect();
    let mut queued = Queued {
        bench: &bench,
        events: VecDeque::new(),
    };
    let (mut calls, mut need, mut given_back) = (0, 0, VecDeque::new());
    for step in 0..STEPS {
        if step == STEPS / 2 {
            calls = memory_calls(&bench);
        }
        let at = random.below(live.len() as u64) as usize;
        let (block, size) = live[at];
        let others = live.iter().map(|(_, size)| size).sum::<u64>() - size;
        let renewed = mix.renew > 0 && random.below(mix.renew) == 0;
        live[at] = if renewed {
            bench.put(block, stream(at));
            let size = fresh(&mut random).min(mix.most - others);
            (bench.request(size, RESIZABLE, stream(at)).unwrap(), size)
        } else {
            let percent = random.between(25, 100);
            let larger = size * 100 / percent;
            let new = match random.below(2) == 0 && others + larger <= mix.most {
                true => larger,
                false => (size * percent / 100).max(64 << 10),
            };
            (bench.resize(block, size, new).unwrap(), new)
        };
        let (block, new) = live[at];
        need = need.max(others + new + given_back.iter().sum::<u64>());
        if mix.busy {
            queued.launch(stream(at).unwrap_or(worker), block, new);
            given_back.push_back(if renewed { size } else { size.saturating_sub(new) });
            if given_back.len() > AHEAD + 1 {
                given_back.pop_front();
            }
        }
    }
    let stats = bench.allocator.stats(Some(0)).unwrap();
    let outcome = Outcome {
        of_peak: stats.reserved_peak as f64 / stats.allocated_peak as f64,
        of_need: stats.reserved_peak as f64 / need as f64,
        calls: (memory_calls(&bench) - calls) as f64 / (STEPS / 2) as f64,
    };
    for (at, (block, _)) in live.into_iter().enumerate() {
        bench.put(block, stream(at));
    }
    bench.finish();
    outcome
}

/// Runs mixes of every kind; returns the largest of the figures.
fn largest(busy: bool) -> Outcome {
    let mut largest = Outcome {
        of_peak: 0.0,
        of_need: 0.0,
        calls: 0.0,
    };
    println!("blocks  MiB in use  streams  renewed  reserved ÷ peak  ÷ need  memory calls a step");
    for (blocks, most) in [(1, 1), (3, 2), (12, 2), (40, 2), (12, 16), (200, 4)] {
        for (streams, renew) in [(0, 0), (0, 16), (1, 16), (3, 16)] {
            let outcome = run(Mix {
                blocks,
                most: most * GIB,
                streams,
                busy,
                renew,
            });
            println!(
                "{blocks:6}  {:10}  {streams:7}  {:>7}  {:15.2}  {:6.2}  {:19.2}",
                most << 10,
                match renew {
                    0 => "never".into(),
                    renew => format!("1 in {renew}"),
                },
                outcome.of_peak,
                outcome.of_need,
                outcome.calls
            );
            largest.of_peak = largest.of_peak.max(outcome.of_peak);
            // What a shrink leaves over is covered by an event once its memory is needed, and usable once the work queued
            // by then has completed. Of few blocks, one may have all that another needs.
            if blocks >= 12 {
                largest.of_need = largest.of_need.max(outcome.of_need);
            }
            largest.calls = largest.calls.max(outcome.calls);
        }
    }
    largest
}

#[test]
fn random_resizes_at_rest_hold_little_more_than_the_peak() {
    let largest = largest(false);
    assert!(largest.of_peak <= 1.3, "{}", largest.of_peak);
    assert!(largest.calls <= 4.0, "{}", largest.calls);
}

/// What is given back while work is pending cannot be used before that work has completed.
#[test]
fn random_resizes_with_work_pending_hold_little_more_than_is_needed() {
    let largest = largest(true);
    assert!(largest.of_need <= 1.35, "{}", largest.of_need);
    assert!(largest.calls <= 4.0, "{}", largest.calls);
}

/// Replays a trace three times; returns the most memory reserved over the peak, and the driver calls of the last time.
fn replayed(name: &str, trace: &Trace) -> (f64, u64) {
    let bench = bench(256 * GIB);
    let streams: Vec<Stream> = trace.streams().iter().map(|_| Stream(bench.stream())).collect();
    let (mut ratio, mut calls) = (0f64, 0);
    for pass in 1..=3 {
        let before = memory_calls(&bench);
        let outcome = replay(trace, bench.allocator.as_ref(), &streams, &mut ()).unwrap();
        assert_eq!(outcome.failures, 0);
        ratio = ratio.max(outcome.reserved_peak as f64 / outcome.peak as f64);
        calls = memory_calls(&bench) - before;
        println!("{name}, pass {pass}: {ratio:.3}, {calls} memory calls");
    }
    bench.finish();
    (ratio, calls)
}

/// Blocks that only grow: one for the keys and values of each request to a language model.
#[test]
fn growing_blocks_make_few_memory_calls() {
    for (lengths, most) in [(AZURE, 4300), (MOONCAKE, 2300)] {
        let (ratio, calls) = replayed(lengths.name, &kv::trace(&lengths, Way::Resized, 128 << 10, 1).0);
        assert!(ratio <= 1.08 && calls <= most, "{}: {ratio}, {calls}", lengths.name);
    }
    let (ratio, calls) = replayed("growing", &generate("growing", 1).unwrap());
    assert!(ratio <= 1.07 && calls <= 2700, "growing: {ratio}, {calls}");
}

/// Once a capture is known, a growth uses the limit up before it covers what was given back. It covers nothing while a
/// capture runs in which the pool has memory.
#[test]
fn growth_ends_no_capture_that_the_pool_knows() {
    let bench = Bench::new("limit=800MiB");
    let (stream, other) = (bench.stream(), bench.stream());
    let [large, small] = [400 * MIB, 2 * MIB].map(|size| bench.request(size, RESIZABLE, Some(other)).unwrap());
    bench.resize(large, 400 * MIB, 4 * MIB).unwrap();
    bench
        .app(|machine| machine.stream_begin_capture(stream, MODE_RELAXED))
        .unwrap();
    let inside = bench.get(MIB, Some(stream));
    let grown = bench.resize(small, 2 * MIB, 300 * MIB).unwrap();
    let graph = bench
        .app(|machine| machine.stream_end_capture(stream))
        .expect("nothing ended the capture");
    bench.app(|machine| machine.graph_destroy(graph)).unwrap();
    assert!(bench.allocator.stats(Some(0)).unwrap().reserved > 700 * MIB);
    bench.put(inside, Some(stream));
    // The stream has left the capture, and the next growth uses what the shrink left over.
    let after = bench.get(MIB, Some(stream));
    let grown = bench.resize(grown, 300 * MIB, 600 * MIB).unwrap();
    for block in [large, grown, after] {
        bench.put(block, Some(other));
    }
    bench.finish();
}
