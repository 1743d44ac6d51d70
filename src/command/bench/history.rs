//! The time that recording adds to a request, compared with the C library's unwinder.

use std::hint::black_box;
use std::time::Instant;

use trtalloc::allocator::Allocator;
use trtalloc::error::{Error, Result};
use trtalloc::ffi::tensorrt::client::Client;
use trtalloc::history::{Action, stack};
use trtalloc::trace::steady::pair;

use super::time::{SIZE, of_one_thread, refused};
use super::{Bench, Row};

/// How many calls lie between the function that measures and the one that allocates.
const DEPTH: usize = 20;
/// How many events the written snapshot has.
const EVENTS: u64 = 100_000;

pub fn history(bench: &Bench) -> Result<Vec<Row>> {
    let pairs = (bench.arguments.pairs / 10).max(5);
    bench.fresh(
        |_| {},
        1,
        |allocator, client, streams| {
            let steady = |history: &str, depth: usize, pairs: u64| -> Result<f64> {
                allocator.history(history)?;
                deep(depth, &mut || {
                    of_one_thread(bench, pairs, || pair(client, SIZE, streams[0]))
                })
            };
            let without = steady("off", 0, pairs)?;
            let with = steady("all,stacks=none", 0, pairs)?;
            // Only allocations have stacks: one for each pair.
            let bare = steady("all,stacks=none", DEPTH, pairs)?;
            let stacks = steady("all,context=alloc,stacks=native", DEPTH, pairs / 2)?;
            let (frames, events) = deep(DEPTH, &mut || frames_of(allocator, client, streams[0].0))?;
            let of_ours = (stacks - bare) / frames as f64;
            let (of_theirs, their_frames) = backtrace(bench, pairs / 20)?;
            let judge = bench.judges_times();
            let added = with - without;
            Ok(vec![
                Row::time(
                    "history=all, no stacks: added to a pair",
                    format!("{added:.1} ns"),
                    "at most 60 ns",
                    added <= 60.0,
                    judge,
                ),
                Row::time(
                    format!("history with stacks of {frames} frames: added for a frame"),
                    format!("{of_ours:.1} ns"),
                    "at most 12 ns",
                    of_ours <= 12.0,
                    judge,
                ),
                Row::printed(
                    format!("glibc's backtrace() of {their_frames} frames: a frame"),
                    format!("{of_theirs:.1} ns"),
                ),
                written(allocator, client, streams[0].0, events, judge)?,
            ])
        },
    )
}

/// Runs `work` below `depth` more calls.
#[inline(never)]
fn deep<T>(depth: usize, work: &mut dyn FnMut() -> Result<T>) -> Result<T> {
    let result = if depth == 0 { work() } else { deep(depth - 1, work) };
    black_box(&result);
    result
}

fn once(client: Client, stream: usize) -> Result<()> {
    match client.allocate_async(SIZE, 0, 0, stream) {
        0 => Err(refused()),
        block if client.deallocate_async(block, stream) => Ok(()),
        _ => Err(refused()),
    }
}

/// The number of frames in a pair's stack, and of events that a pair records.
fn frames_of(allocator: &Allocator, client: Client, stream: usize) -> Result<(usize, u64)> {
    let before = allocator.recorder().now();
    once(client, stream)?;
    let events = allocator.recorder().now() - before;
    let history = allocator.snapshot()?.history;
    // After them comes the snapshot itself.
    let of_pair = history
        .events
        .iter()
        .rev()
        .skip_while(|event| event.action == Action::Snapshot);
    let frames = of_pair.map(|event| stack::frames(event.stack).len());
    match frames.take(events as usize).max() {
        Some(frames @ 1..) => Ok((frames, events)),
        _ => Err(Error::Unsupported("no stack was taken".into())),
    }
}

/// Nanoseconds per frame of the C library's unwinder, and the number of frames.
fn backtrace(bench: &Bench, count: u64) -> Result<(f64, usize)> {
    let mut frames = [std::ptr::null_mut(); 64];
    let mut found = 0;
    let time = deep(DEPTH, &mut || {
        of_one_thread(bench, count.max(5), || {
            // SAFETY: the buffer has as many elements as the call is given.
            found = unsafe { libc::backtrace(frames.as_mut_ptr(), frames.len() as i32) } as usize;
            found > 0
        })
    })?;
    Ok((time / found as f64, found))
}

/// Writes a snapshot with full history. Each event has a stack, from forty places in the program.
fn written(allocator: &Allocator, client: Client, stream: usize, of_a_pair: u64, judge: bool) -> Result<Row> {
    allocator.history(&format!("all,stacks=native,max_entries={EVENTS}"))?;
    for at in 0..EVENTS / of_a_pair {
        deep(DEPTH + at as usize % 40, &mut || once(client, stream))?;
    }
    let path = std::env::temp_dir().join(format!("trtalloc-bench-{}.pickle", std::process::id()));
    let begun = Instant::now();
    let outcome = allocator.write_snapshot(&path);
    let time = begun.elapsed().as_secs_f64();
    let bytes = std::fs::metadata(&path).map_or(0, |file| file.len());
    let _ = std::fs::remove_file(&path);
    outcome?;
    Ok(Row::time(
        "100,000 events with stacks, written as a pickle",
        format!("{time:.2} s, {:.0} MiB", bytes as f64 / (1 << 20) as f64),
        "below 1 s",
        time < 1.0,
        judge,
    ))
}
