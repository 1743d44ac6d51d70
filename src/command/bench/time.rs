//! Times and driver calls of single requests.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use trtalloc::allocator::{Allocator, RESIZABLE};
use trtalloc::bridge::client::Client;
use trtalloc::driver::Stream;
use trtalloc::error::{Error, Result};
use trtalloc::trace::steady::{Holes, pair};

use super::super::{demo, table};
use super::{Bench, Row, cores};

/// Each time is the median of so many rounds.
const ROUNDS: usize = 5;

/// The size of a pair's block.
const SIZE: u64 = 1 << 20;

fn refused() -> Error {
    Error::OutOfMemory(demo::last_error())
}

/// Nanoseconds of one call of `once`, which says whether it succeeded, in the steady state.
fn nanoseconds(count: u64, mut once: impl FnMut() -> bool) -> Result<f64> {
    if !(0..count.min(1000)).all(|_| once()) {
        return Err(refused());
    }
    let each = count / ROUNDS as u64;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let all = (0..each).all(|_| once());
        rounds.push(begun.elapsed());
        if !all {
            return Err(refused());
        }
    }
    rounds.sort();
    Ok(rounds[ROUNDS / 2].as_nanos() as f64 / each as f64)
}

/// Nanoseconds of a pair on each of several threads at once, a stream each: their mean.
fn on_threads(bench: &Bench, client: Client, streams: &[Stream]) -> Result<f64> {
    if let [stream] = *streams {
        return nanoseconds(bench.arguments.pairs, || pair(client, SIZE, stream));
    }
    let (driver, context) = (bench.device.driver(), bench.device.application().context());
    let start = Barrier::new(streams.len());
    let one = |stream: Stream| {
        let entered = driver.context_push(context);
        start.wait();
        let time = entered
            .map_err(Error::from)
            .and_then(|()| nanoseconds(bench.arguments.pairs, || pair(client, SIZE, stream)));
        driver.context_pop()?;
        time
    };
    let times = std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = streams.iter().map(|&stream| scope.spawn(move || one(stream))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<f64>>| {
            thread
                .join()
                .unwrap_or_else(|_| Err(Error::Panic("in a measuring thread".into())))
        };
        threads.into_iter().map(join).collect::<Result<Vec<f64>>>()
    })?;
    Ok(times.iter().sum::<f64>() / times.len() as f64)
}

/// Driver calls and queries made while `body` runs.
fn calls(allocator: &Allocator, body: impl FnOnce() -> bool) -> Result<(u64, u64)> {
    let before = allocator.stats(None)?;
    if !body() {
        return Err(refused());
    }
    let after = allocator.stats(None)?;
    Ok((
        after.driver_calls - before.driver_calls,
        after.driver_queries - before.driver_queries,
    ))
}

/// The steady state of inference: a stream allocates what it has just freed.
pub fn pairs(bench: &Bench) -> Result<Vec<Row>> {
    let real = !bench.device.is_simulated();
    let mut rows = Vec::new();
    for (name, trusted) in [("checked", false), ("trusted", true)] {
        let mut single = 0.0;
        for threads in [1, 2, 4].into_iter().filter(|&threads| threads <= cores()) {
            let set = |config: &mut trtalloc::config::Config| config.streams_trusted = trusted;
            let time = bench.fresh(set, threads, |_, client, streams| on_threads(bench, client, streams))?;
            let what = format!("pair, streams={name}, {threads} thread");
            if threads == 1 {
                single = time;
                rows.push(Row::time(
                    what,
                    format!("{time:.1} ns"),
                    "at most 40 ns",
                    time <= 40.0,
                    real,
                ));
            } else {
                let ratio = time / single;
                rows.push(Row::judged(
                    format!("{what}s, a stream each"),
                    format!("{time:.1} ns, {ratio:.2} of one thread"),
                    "at most 1.2",
                    ratio <= 1.2,
                ));
            }
        }
        const PAIRS: u64 = 1000;
        let set = |config: &mut trtalloc::config::Config| config.streams_trusted = trusted;
        let (calls, queries) = bench.fresh(set, 1, |allocator, client, streams| {
            let many = || (0..PAIRS).all(|_| pair(client, SIZE, streams[0]));
            if !many() {
                return Err(refused());
            }
            calls(allocator, many)
        })?;
        let each = |count: u64| count as f64 / PAIRS as f64;
        rows.push(Row::judged(
            format!("pair, streams={name}: driver calls and queries"),
            format!("{} and {}", each(calls), each(queries)),
            if trusted { "0 and 0" } else { "0 and at most 2" },
            calls == 0 && queries <= if trusted { 0 } else { 2 * PAIRS },
        ));
    }
    let time = bench.fresh(
        |_| {},
        0,
        |_, client, _| {
            nanoseconds(bench.arguments.pairs / 4, || match client.allocate(SIZE, 0, 0) {
                0 => false,
                block => client.deallocate(block),
            })
        },
    )?;
    rows.push(Row::printed("pair without a stream", format!("{time:.1} ns")));
    Ok(rows)
}

/// Requests that nothing the stream has freed fits exactly.
pub fn misses(bench: &Bench) -> Result<Vec<Row>> {
    let real = !bench.device.is_simulated();
    let mut rows = Vec::new();
    let mut few = 0.0;
    for count in [10, 1_000, 10_000] {
        let (time, (calls, queries)) = bench.fresh(
            |_| {},
            1,
            |allocator, client, streams| {
                let mut holes = Holes::make(allocator, streams[0], count)?;
                let misses = (bench.arguments.pairs / 4).max(5);
                let time = nanoseconds(misses, || holes.miss(client))?;
                let counted = calls(allocator, || (0..1000).all(|_| holes.miss(client)))?;
                holes.end(allocator)?;
                Ok((time, counted))
            },
        )?;
        let ratio = match count {
            10 => {
                few = time;
                1.0
            }
            _ => time / few,
        };
        let what = format!("miss with {count} holes, and its free");
        rows.push(Row::time(
            what,
            format!("{time:.1} ns"),
            "at most 300 ns",
            time <= 300.0,
            real,
        ));
        if count == 10_000 {
            rows.push(Row::judged(
                "miss with 10,000 holes against 10",
                format!("{ratio:.2}"),
                "at most 1.5",
                ratio <= 1.5,
            ));
            rows.push(Row::printed(
                "1,000 misses with 10,000 holes: driver calls and queries",
                format!("{calls} and {queries}"),
            ));
        }
    }
    Ok(rows)
}

/// Blocks that grow.
pub fn resizes(bench: &Bench) -> Result<Vec<Row>> {
    let real = !bench.device.is_simulated();
    bench.fresh(
        |_| {},
        1,
        |allocator, client, streams| {
            let stream = streams[0].0;
            let mut block = client.allocate_async(SIZE, 0, RESIZABLE, stream);
            if block == 0 {
                return Err(refused());
            }
            let inside = |size| client.reallocate(block, 0, size) == block;
            let both = || inside(SIZE + 512) && inside(SIZE);
            let time = nanoseconds(bench.arguments.pairs / 4, both)? / 2.0;
            let (within, _) = calls(allocator, || (0..1000).all(|_| both()))?;
            let (growth, _) = calls(allocator, || inside(48 << 20))?;
            let before = allocator.stats(None)?;
            let (moving, _) = calls(allocator, || {
                block = client.reallocate(block, 0, 512 << 20);
                block != 0
            })?;
            let after = allocator.stats(None)?;
            let moved = after.reallocations_in_place == before.reallocations_in_place;
            let copied = after.bytes_copied - before.bytes_copied;
            if !client.deallocate_async(block, stream) {
                return Err(refused());
            }
            Ok(vec![
                Row::time(
                    "reallocate inside committed pages",
                    format!("{time:.1} ns"),
                    "at most 40 ns",
                    time <= 40.0,
                    real,
                ),
                Row::judged(
                    "1,000 such, back and forth: driver calls",
                    within.to_string(),
                    "0",
                    within == 0,
                ),
                Row::judged(
                    "growing in place, 1 to 48 MiB: driver calls",
                    growth.to_string(),
                    "at most 3",
                    growth <= 3,
                ),
                Row::judged(
                    "moving, 48 to 512 MiB: bytes copied",
                    format!("{copied}, {moving} driver calls"),
                    "0",
                    moved && copied == 0,
                ),
            ])
        },
    )
}

/// The first requests of a process, in handles of the granularity, against one allocation of the driver's.
pub fn warm_up(bench: &Bench) -> Result<Vec<Row>> {
    const BLOCK: u64 = 16 << 20;
    let bytes = (8 << 30).min(bench.device.memory() / 2) / BLOCK * BLOCK;
    let (time, calls) = bench.fresh(
        |_| {},
        1,
        |allocator, client, streams| {
            let stream = streams[0].0;
            let mut time = Duration::ZERO;
            let mut blocks = Vec::new();
            let (calls, _) = calls(allocator, || {
                let begun = Instant::now();
                blocks.extend((0..bytes / BLOCK).map(|_| client.allocate_async(BLOCK, 0, 0, stream)));
                time = begun.elapsed();
                blocks.iter().all(|&block| block != 0)
            })?;
            let back = blocks.into_iter().all(|block| client.deallocate_async(block, stream));
            if back { Ok((time, calls)) } else { Err(refused()) }
        },
    )?;
    let driver = bench.device.driver();
    let begun = Instant::now();
    let whole = driver.malloc(bytes)?;
    let once = begun.elapsed();
    driver.free(whole)?;
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(vec![Row::printed(
        format!(
            "the first {} in blocks of 16 MiB, against one cuMemAlloc",
            table::size(bytes)
        ),
        format!(
            "{:.1} ms and {calls} driver calls, {:.1} ms",
            milliseconds(time),
            milliseconds(once)
        ),
    )])
}
