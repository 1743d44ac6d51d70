//! What the steady state costs, in calls that the simulated driver counts; and no host waits for memory that it does
//! not need.

use std::collections::VecDeque;

use crate::driver::Stream;
use crate::driver::sim::SimConfig;
use crate::driver::sim::model::functions::Call;
use crate::pool::stream_cache::Key;

use super::{Bench, MIB};

const SIZES: [u64; 4] = [512, 100 << 10, 3 * MIB, 40 * MIB];

/// The driver calls and queries that a piece of work makes.
fn cost(bench: &Bench, work: impl FnOnce()) -> (u64, u64) {
    let before = (bench.machine.submissions(), bench.machine.queries());
    work();
    (
        bench.machine.submissions() - before.0,
        bench.machine.queries() - before.1,
    )
}

/// Allocates and frees blocks on each stream repeatedly: returns the cost of all requests, and of all frees.
fn pairs(bench: &Bench, streams: &[usize], rounds: u64) -> [(u64, u64); 2] {
    let mut sums = [(0, 0); 2];
    for _ in 0..rounds {
        for stream in streams {
            let mut blocks = Vec::new();
            let taken = cost(bench, || {
                blocks = SIZES.iter().map(|size| bench.get(*size, Some(*stream))).collect();
            });
            let freed = cost(bench, || {
                blocks.iter().for_each(|block| bench.put(*block, Some(*stream)))
            });
            for (sum, cost) in sums.iter_mut().zip([taken, freed]) {
                *sum = (sum.0 + cost.0, sum.1 + cost.1);
            }
        }
    }
    sums
}

#[test]
fn pair_makes_three_queries_and_no_call() {
    for options in ["", "limit=1GiB"] {
        let bench = Bench::new(options);
        let streams = [bench.stream(), bench.stream(), bench.stream()];
        pairs(&bench, &streams, 3);
        // Work is pending all the time.
        let held = streams.map(|stream| bench.app(|machine| machine.launch_persistent(stream, &[]).unwrap()));
        let [(calls, queries), freeing] = pairs(&bench, &streams, 100);
        let requests = 100 * (streams.len() * SIZES.len()) as u64;
        assert_eq!(calls, 0, "{options}");
        assert_eq!(queries, 2 * requests, "{options}: one for the id, one for captures");
        assert_eq!(freeing, (0, requests), "{options}: one for the current context");
        for kernel in held {
            assert!(bench.app(|machine| machine.release_persistent(kernel)));
        }
        bench.finish();
    }
}

#[test]
fn pair_on_a_trusted_stream_makes_no_query() {
    let bench = Bench::new("streams=trusted");
    let streams = [bench.stream(), bench.stream()];
    pairs(&bench, &streams, 3);
    assert_eq!(pairs(&bench, &streams, 100), [(0, 0), (0, 0)]);
    bench.finish();
}

/// Bytes in a stream's cache.
fn cached_for(bench: &Bench, stream: usize) -> u64 {
    let key = Key {
        stream: Stream(stream),
        context: 0,
        thread: 0,
    };
    bench.allocator.pool_of(0).caches.lock(key).1.ready.bytes()
}

/// Where memory was short, frees record completion events. The stream's next requests are still hits: what it freed leaves its
/// cache only where another stream's blocks are there, which go home from its free space.
#[test]
fn free_that_records_an_event_leaves_the_streams_own_blocks_in_its_cache() {
    let bench = Bench::new("limit=64MiB,wait_ms=1");
    let [stream, other] = [bench.stream(), bench.stream()];
    assert!(bench.request(128 * MIB, 0, Some(stream)).is_err());
    for _ in 0..3 {
        let blocks = [MIB, 2 * MIB].map(|size| bench.get(size, Some(stream)));
        let [first, second] = blocks.map(|block| cost(&bench, || bench.put(block, Some(stream))).0);
        assert!(first > 0 && second > 0, "each records an event");
        assert_eq!(cached_for(&bench, stream), 3 * MIB);
    }
    let passed: Vec<u64> = (0..16).map(|_| bench.get(MIB, Some(other))).collect();
    let (calls, _) = cost(&bench, || {
        passed.iter().for_each(|block| bench.put(*block, Some(stream)))
    });
    assert!(calls > 0, "it records an event");
    assert_eq!(cached_for(&bench, stream), 0);
    bench.finish();
}

/// Each stream takes requests of sizes that it had before, in any order, while the last two are pending.
#[test]
fn requests_with_pending_work_make_no_call_and_hold_what_they_need() {
    let bench = Bench::new("");
    let streams = [bench.stream(), bench.stream(), bench.stream()];
    let mut random = 1u64;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    let mut serve = |rounds: usize| {
        for _ in 0..rounds {
            for stream in streams {
                let unit = (draw(8) + 1) * 2 * MIB;
                let sizes = [4 * unit, 2 * unit, unit, unit / 3];
                let blocks = sizes.map(|size| bench.get(size, Some(stream)));
                bench.app(|machine| machine.launch(stream, KERNEL, &[(blocks[0], sizes[0])]).unwrap());
                blocks.iter().for_each(|block| bench.put(*block, Some(stream)));
            }
            bench.machine.advance(KERNEL / 2);
        }
    };
    serve(100);
    let (calls, _) = cost(&bench, || serve(200));
    assert_eq!(calls, 0);
    let reserved = bench.allocator.stats(Some(0)).unwrap().reserved;
    let needs = 3 * (7 * 16 + 16 / 3) * MIB;
    assert!(reserved <= needs / 100 * 105, "{} MiB reserved", reserved / MIB);
    bench.finish();
}

/// Blocks come and go without a stream, while a stream always has work pending that no event has seen end yet. What no
/// caller may have yet stays a part of what is in use, however long that continues.
#[test]
fn blocks_that_come_and_go_without_a_stream_hold_what_they_need() {
    let bench = Bench::over(
        SimConfig {
            memory: 64 << 30,
            ..SimConfig::default()
        },
        "",
    );
    let stream = bench.stream();
    let served = bench.get(MIB, Some(stream));
    let mut loaded: VecDeque<Vec<u64>> = VecDeque::new();
    let mut queued = VecDeque::new();
    for number in 0..2_000u64 {
        // The stream's queue always has two pieces of work of a millisecond.
        bench.launch(stream, served, MIB);
        let event = bench.app(|machine| machine.event_create()).unwrap();
        bench.app(|machine| machine.event_record(event, stream)).unwrap();
        queued.push_back(event);
        if queued.len() > 2
            && let Some(event) = queued.pop_front()
        {
            bench.app(|machine| machine.event_synchronize(event)).unwrap();
            bench.app(|machine| machine.event_destroy(event)).unwrap();
        }
        if loaded.len() == 12
            && let Some(engine) = loaded.pop_front()
        {
            engine.into_iter().for_each(|block| bench.put(block, None));
        }
        let sizes = [28 - number % 3 * 2, 20, 12, 8 + number % 5];
        loaded.push_back(sizes.map(|size| bench.get(size * MIB, None)).to_vec());
    }
    let stats = bench.allocator.stats(Some(0)).unwrap();
    let ratio = stats.reserved as f64 / stats.allocated_peak as f64;
    assert!(ratio <= 1.35, "{ratio:.2}");
    loaded.into_iter().flatten().for_each(|block| bench.put(block, None));
    bench.put(served, Some(stream));
    bench.app(|machine| {
        queued
            .into_iter()
            .for_each(|event| machine.event_destroy(event).unwrap())
    });
    bench.finish();
}

#[test]
fn needs_end_with_their_stream_and_at_a_trim() {
    let bench = Bench::new("");
    let needs = || {
        let core = bench.allocator.pool_of(0).core.lock();
        core.memory.free_space.needs_with(crate::pool::free_space::COMMON, 0)
    };
    let [first, second] = [bench.stream(), bench.stream()];
    bench.use_and_free(first, 1, 48 * MIB);
    bench.use_and_free(second, 1, 16 * MIB);
    assert_eq!(needs(), 64 * MIB);
    bench.allocator.stream_release(Stream(first)).unwrap();
    assert_eq!(needs(), 16 * MIB);
    bench.allocator.trim(Some(0), 0).unwrap();
    assert_eq!(needs(), 0);
    bench.finish();
}

/// A machine whose calls take no time: its clock advances with work that is waited for, and by explicit steps.
fn timed(version: u32, options: &str) -> Bench {
    let bench = Bench::on(
        SimConfig {
            version,
            ..SimConfig::default()
        },
        options,
    );
    for call in Call::ALL {
        bench.machine.set_latency(call.name(), 0);
    }
    bench
}

const KERNEL: u64 = 50_000;

fn kernel(bench: &Bench, stream: usize, block: u64, size: u64) {
    bench.app(|machine| machine.launch(stream, KERNEL, &[(block, size)]).unwrap());
}

/// Two streams use memory of the same size in turn.
fn ping_pong(bench: &Bench, streams: [usize; 2], size: u64, rounds: usize) {
    for round in 0..rounds {
        let stream = streams[round % 2];
        let block = bench.get(size, Some(stream));
        kernel(bench, stream, block, size);
        bench.put(block, Some(stream));
    }
}

/// One stream allocates and writes, the other reads and frees.
fn produce_and_consume(bench: &Bench, [producer, consumer]: [usize; 2], size: u64, rounds: usize) {
    for _ in 0..rounds {
        let block = bench.get(size, Some(producer));
        kernel(bench, producer, block, size);
        bench.app(|machine| {
            let event = machine.event_create().unwrap();
            machine.event_record(event, producer).unwrap();
            machine.stream_wait_event(consumer, event).unwrap();
            machine.event_destroy(event).unwrap();
        });
        kernel(bench, consumer, block, size);
        bench.put(block, Some(consumer));
        // The host does something else meanwhile.
        bench.machine.advance(2 * KERNEL);
    }
}

#[test]
fn requests_grow_before_they_wait() {
    for version in [12_090, 12_040, 11_080, 11_020] {
        let bench = timed(version, "");
        let streams = [bench.stream(), bench.stream()];
        let start = bench.machine.now();
        ping_pong(&bench, streams, 5 * MIB, 100);
        assert_eq!(bench.machine.now(), start, "{version}");
        produce_and_consume(&bench, streams, 5 * MIB, 100);
        assert_eq!(bench.machine.now(), start + 200 * KERNEL, "{version}");
        let reserved = bench.allocator.stats(Some(0)).unwrap().reserved;
        assert!(
            reserved <= 160 * MIB,
            "{version}: it grows as far as work is pending: {reserved}"
        );
        bench.finish();
    }
}

/// Under a limit that holds one block, no wait is longer than the kernels on that block, even while a third stream is
/// busy with other work.
#[test]
fn wait_under_a_limit_is_as_long_as_the_work() {
    for version in [12_090, 12_040, 11_080, 11_020] {
        let bench = timed(version, "limit=64MiB,wait_ms=60000");
        let streams = [bench.stream(), bench.stream()];
        let start = bench.machine.now();
        ping_pong(&bench, streams, 64 * MIB, 40);
        bench.app(|machine| machine.context_synchronize()).unwrap();
        assert_eq!(
            bench.machine.now() - start,
            40 * KERNEL,
            "{version}: one kernel after the other"
        );
        let busy = bench.stream();
        bench.app(|machine| machine.launch(busy, 10_000 * KERNEL, &[]).unwrap());
        let start = bench.machine.now();
        ping_pong(&bench, streams, 64 * MIB, 40);
        assert!(
            bench.machine.now() - start <= 40 * KERNEL,
            "{version}: no stream needs what the third frees"
        );
        bench.finish();
    }
}
