//! Times and driver calls of requests that miss the stream cache.

use std::time::{Duration, Instant};

use trtalloc::allocator::{Allocator, RESIZABLE};
use trtalloc::error::{Error, Result};
use trtalloc::ffi::tensorrt::client::Client;
use trtalloc::trace::steady::Holes;

use super::super::{demo, table};
use super::{Bench, Row};

/// Each time is the median of this many rounds.
const ROUNDS: usize = 5;

/// The size of a pair's block.
pub const SIZE: u64 = 1 << 20;

/// The error for a refused request.
pub fn refused() -> Error {
    Error::OutOfMemory(demo::last_error())
}

/// Nanoseconds of wall-clock time for one call of `once` in the steady state. `once` returns whether it succeeded.
pub fn nanoseconds(count: u64, once: impl FnMut() -> bool) -> Result<f64> {
    by_clock(libc::CLOCK_MONOTONIC, count, once)
}

/// The same for one thread that waits for no other. On the simulated device it is the thread's processor time, which
/// other programs on the machine do not change. On a GPU it is wall-clock time, since the driver may wait.
pub fn of_one_thread(bench: &Bench, count: u64, once: impl FnMut() -> bool) -> Result<f64> {
    match bench.device.is_simulated() {
        true => by_clock(libc::CLOCK_THREAD_CPUTIME_ID, count, once),
        false => nanoseconds(count, once),
    }
}

fn by_clock(clock: libc::clockid_t, count: u64, mut once: impl FnMut() -> bool) -> Result<f64> {
    if !(0..count.min(1000)).all(|_| once()) {
        return Err(refused());
    }
    let now = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` outlives the call, which writes to it. Every Linux has both clocks.
        unsafe { libc::clock_gettime(clock, &mut time) };
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    let each = count / ROUNDS as u64;
    let mut rounds = [0.0; ROUNDS];
    for round in &mut rounds {
        let begun = now();
        let all = (0..each).all(|_| once());
        *round = (now() - begun) / each as f64;
        if !all {
            return Err(refused());
        }
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}

/// Driver calls and queries made while `body` runs.
pub fn calls(allocator: &Allocator, body: impl FnOnce() -> bool) -> Result<(u64, u64)> {
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

/// Requests for which the stream has no free block of exactly that size.
pub fn misses(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut few = 0.0;
    for count in [10, 1_000, 10_000] {
        let (time, (calls, queries)) = bench.fresh(
            |_| {},
            1,
            |allocator, client, streams| {
                let mut holes = Holes::make(allocator, streams[0], count)?;
                let misses = (bench.arguments.pairs / 4).max(5);
                let time = of_one_thread(bench, misses, || holes.miss(client))?;
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
            "at most 120 ns",
            time <= 120.0,
            bench.judges_times(),
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

/// Resizable blocks that grow.
pub fn resizes(bench: &Bench) -> Result<Vec<Row>> {
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
            let time = of_one_thread(bench, (bench.arguments.pairs / 4).max(5), both)? / 2.0;
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
            let (peaks, steps) = new_peaks(allocator, client, &mut block, (bench.device.memory() / 8).max(1 << 30))?;
            if !client.deallocate_async(block, stream) {
                return Err(refused());
            }
            let life = |size| {
                let block = client.allocate_async(size, 0, RESIZABLE, stream);
                let grown = client.reallocate(block, 0, size + SIZE / 2);
                grown != 0 && client.deallocate_async(grown, stream)
            };
            let lives = |count| (0..count).all(|at| life(SIZE + at % 8 * (SIZE / 8)));
            if !lives(100) {
                return Err(refused());
            }
            let before = allocator.stats(None)?.reserved;
            let (again, _) = calls(allocator, || lives(1000))?;
            let held = allocator.stats(None)?.reserved == before;
            Ok(vec![
                Row::time(
                    "reallocate inside committed pages",
                    format!("{time:.1} ns"),
                    "at most 40 ns",
                    time <= 40.0,
                    bench.judges_times(),
                ),
                Row::time(
                    format!("the same, {steps} steps that are each a new peak, median"),
                    format!("{peaks:.1} ns"),
                    "at most 40 ns",
                    peaks <= 40.0,
                    bench.judges_times(),
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
                Row::printed(
                    "1,000 resizable blocks allocated, grown and freed: driver calls",
                    format!("{again}{}", if held { "" } else { ", and memory reserved anew" }),
                ),
            ])
        },
    )
}

/// Grows a block to `to` bytes in small steps. Returns the nanoseconds per step without a driver call, and how many
/// such steps there were.
fn new_peaks(allocator: &Allocator, client: Client, block: &mut usize, to: u64) -> Result<(f64, u64)> {
    const RUN: u64 = 64;
    const STEP: u64 = 64 << 10;
    let (mut times, mut size) = (Vec::new(), 512 << 20);
    while size + RUN * STEP <= to {
        let before = allocator.stats(None)?.driver_calls;
        let begun = Instant::now();
        for _ in 0..RUN {
            size += STEP;
            *block = client.reallocate(*block, 0, size);
        }
        let time = begun.elapsed();
        if *block == 0 {
            return Err(refused());
        }
        if allocator.stats(None)?.driver_calls == before {
            times.push(time);
        }
    }
    times.sort();
    let median = times.get(times.len() / 2).ok_or_else(refused)?;
    Ok((median.as_nanos() as f64 / RUN as f64, times.len() as u64 * RUN))
}

/// The first requests of a process, in handles of the granularity, compared with one allocation from the driver.
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
