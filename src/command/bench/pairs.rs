//! The steady state of inference: a stream allocates the size that it, or another stream, has just freed.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use trtalloc::config::Config;
use trtalloc::driver::Stream;
use trtalloc::error::{Error, Result};
use trtalloc::ffi::ExportedAllocator;
use trtalloc::ffi::tensorrt::client::Client;
use trtalloc::trace::steady::pair;

use super::machine::cores;
use super::time::{SIZE, calls, nanoseconds, of_one_thread, refused};
use super::{Bench, Row};

/// The values of the option `streams`, and whether each trusts streams.
const WAYS: [(&str, bool); 2] = [("checked", false), ("trusted", true)];

fn trust(trusted: bool) -> impl FnOnce(&mut Config) {
    move |config| config.streams_trusted = trusted
}

/// Runs `body` on a thread for each of `streams`, all starting at the same moment. The application's context is
/// current to each thread.
pub fn on_threads<T: Send>(
    bench: &Bench,
    streams: &[Stream],
    body: impl Fn(usize, Stream) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let (driver, context) = (bench.device.driver(), bench.device.application().context());
    let (start, alone) = (Barrier::new(streams.len()), AtomicBool::new(false));
    let one = |number, stream| {
        let entered = driver.context_push(context);
        alone.fetch_or(entered.is_err(), Ordering::Relaxed);
        start.wait();
        entered?;
        // If one thread could not begin, no other thread waits for it.
        let result = match alone.load(Ordering::Relaxed) {
            true => Err(Error::Unsupported("a thread has no context".into())),
            false => body(number, stream),
        };
        driver.context_pop()?;
        result
    };
    std::thread::scope(|scope| {
        let one = &one;
        let spawn = |(number, &stream)| scope.spawn(move || one(number, stream));
        let threads: Vec<_> = streams.iter().enumerate().map(spawn).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<T>>| {
            thread
                .join()
                .unwrap_or_else(|_| Err(Error::Panic("in a measuring thread".into())))
        };
        threads.into_iter().map(join).collect()
    })
}

/// The mean time of a pair on several threads at the same time, in nanoseconds.
fn at_once(bench: &Bench, client: Client, streams: &[Stream]) -> Result<f64> {
    let pairs = bench.arguments.pairs / streams.len() as u64;
    if let [stream] = *streams {
        return of_one_thread(bench, pairs, || pair(client, SIZE, stream));
    }
    let one = |_, stream| nanoseconds(pairs.max(5), || pair(client, SIZE, stream));
    let times = on_threads(bench, streams, one)?;
    Ok(times.iter().sum::<f64>() / times.len() as f64)
}

/// A note for more threads than cores: they take turns, so their times depend on the machine.
fn note_on_cores(threads: usize) -> String {
    match threads > cores() {
        true => format!(" on {} cores", cores()),
        false => String::new(),
    }
}

/// Pairs on one thread, and on several threads with a stream each.
pub fn pairs(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, trusted) in WAYS {
        let mut single = 0.0;
        for threads in [1, 2, 4] {
            let time = bench.fresh(trust(trusted), threads, |_, client, streams| {
                at_once(bench, client, streams)
            })?;
            let what = format!("pair, streams={name}, {threads} thread");
            if threads == 1 {
                single = time;
                rows.push(Row::time(
                    what,
                    format!("{time:.1} ns"),
                    "at most 40 ns",
                    time <= 40.0,
                    bench.judges_times(),
                ));
            } else {
                let ratio = time / single;
                rows.push(Row::time(
                    format!("{what}s{}, a stream each", note_on_cores(threads)),
                    format!("{time:.1} ns, {ratio:.2} of one thread"),
                    "at most 1.2",
                    ratio <= 1.2,
                    // On a GPU, times of several threads depend on the driver unless streams are trusted.
                    threads <= cores() && (bench.judges_times() || trusted && !cfg!(debug_assertions)),
                ));
            }
        }
    }
    let time = bench.fresh(
        |_| {},
        0,
        |_, client, _| {
            of_one_thread(bench, (bench.arguments.pairs / 4).max(5), || {
                match client.allocate(SIZE, 0, 0) {
                    0 => false,
                    block => client.deallocate(block),
                }
            })
        },
    )?;
    rows.push(Row::time(
        "pair without a stream",
        format!("{time:.1} ns"),
        "at most 150 ns",
        time <= 150.0,
        bench.judges_times(),
    ));
    Ok(rows)
}

/// Pairs through an adapter with a name, compared with pairs through the one without, on the same stream by turns.
pub fn named(bench: &Bench) -> Result<Vec<Row>> {
    const TURNS: usize = 5;
    let row = |(name, trusted)| {
        let (with, more) = bench.fresh(trust(trusted), 1, |allocator, plain, streams| {
            let named = Client::named(ExportedAllocator::new(allocator.clone()), b"bench")?;
            let pairs = (bench.arguments.pairs / (2 * TURNS as u64)).max(5);
            let time = |client| of_one_thread(bench, pairs, || pair(client, SIZE, streams[0]));
            let mut with = Vec::new();
            let mut more = Vec::new();
            for _ in 0..TURNS {
                let without = time(plain)?;
                with.push(time(named)?);
                more.push(with[with.len() - 1] - without);
            }
            with.sort_by(f64::total_cmp);
            more.sort_by(f64::total_cmp);
            Ok((with[TURNS / 2], more[TURNS / 2]))
        })?;
        Ok(Row::time(
            format!("pair with a name, streams={name}, 1 thread"),
            format!("{with:.1} ns, {more:.1} ns more than without"),
            "at most 10 ns more",
            more <= 10.0,
            bench.judges_times(),
        ))
    };
    WAYS.into_iter().map(row).collect()
}

/// Pairs of an allocator with the control socket and a shared budget, which no other process uses, compared with pairs of one
/// without, by turns.
pub fn controlled(bench: &Bench) -> Result<Vec<Row>> {
    const TURNS: usize = 9;
    let mut options = Config::default();
    options.set("share_budget", &format!("bench{}:1024GiB", std::process::id()))?;
    let row = |(name, trusted)| {
        let with_both = |config: &mut Config| {
            trust(trusted)(config);
            (config.control, config.share_budget) = (true, options.share_budget.clone());
        };
        let (without, with, more) = bench.fresh(trust(trusted), 1, |_, off, of_off| {
            bench.fresh(with_both, 1, |_, on, of_on| {
                let pairs = (bench.arguments.pairs / (2 * TURNS as u64)).max(5);
                let time = |client, stream| of_one_thread(bench, pairs, || pair(client, SIZE, stream));
                let mut all: [Vec<f64>; 3] = Default::default();
                for _ in 0..TURNS {
                    let (without, with) = (time(off, of_off[0])?, time(on, of_on[0])?);
                    for (times, time) in all.iter_mut().zip([without, with, with - without]) {
                        times.push(time);
                    }
                }
                let [without, with, more] = all.map(|mut times| {
                    times.sort_by(f64::total_cmp);
                    times[TURNS / 2]
                });
                Ok((without, with, more))
            })
        })?;
        Ok(Row::time(
            format!("pair with control=1 and share_budget, idle, streams={name}"),
            format!("{with:.1} ns, {more:.1} ns more than {without:.1} ns without"),
            "at most 5 ns more",
            more <= 5.0,
            bench.judges_times(),
        ))
    };
    WAYS.into_iter().map(row).collect()
}

/// Pairs on several threads that share one stream.
pub fn on_one_stream(bench: &Bench) -> Result<Vec<Row>> {
    let row = |threads| {
        let time = bench.fresh(
            |_| {},
            1,
            |_, client, streams| at_once(bench, client, &vec![streams[0]; threads]),
        )?;
        let what = format!("pair, {threads} threads{}, all on one stream", note_on_cores(threads));
        Ok(Row::printed(what, format!("{time:.1} ns")))
    };
    [2, 4].into_iter().map(row).collect()
}

/// How many allocated blocks wait to be freed.
const QUEUE: usize = 16;

/// Blocks allocated on one stream and freed on another, by the same thread and by another thread.
pub fn passed(bench: &Bench) -> Result<Vec<Row>> {
    let blocks = (bench.arguments.pairs / 8).max(5);
    let alone = bench.fresh(
        |_| {},
        2,
        |_, client, streams| {
            let (mut ring, mut at) = ([0; QUEUE], 0);
            let time = of_one_thread(bench, blocks, || {
                let place = &mut ring[at % QUEUE];
                at += 1;
                let before = std::mem::replace(place, client.allocate_async(SIZE, 0, 0, streams[0].0));
                *place != 0 && (before == 0 || client.deallocate_async(before, streams[1].0))
            });
            let back = ring
                .into_iter()
                .all(|block| block == 0 || client.deallocate_async(block, streams[1].0));
            if back { time } else { Err(refused()) }
        },
    )?;
    let together = bench.fresh(
        |_| {},
        2,
        |_, client, streams| through_a_queue(bench, client, streams, blocks),
    )?;
    Ok(vec![
        Row::printed("allocated on one stream, freed on another", format!("{alone:.1} ns")),
        Row::printed(
            format!("the same by 2 threads{}, over a queue", note_on_cores(2)),
            format!("{together:.1} ns"),
        ),
    ])
}

/// The time in nanoseconds for a block that one thread allocates on the first stream and another thread frees on the
/// second.
fn through_a_queue(bench: &Bench, client: Client, streams: &[Stream], blocks: u64) -> Result<f64> {
    /// Marks a refused request; 0 marks an empty place.
    const REFUSED: usize = usize::MAX;
    let ring = [const { AtomicUsize::new(0) }; QUEUE];
    let wait = |place: &AtomicUsize, full: bool| loop {
        let found = place.load(Ordering::Acquire);
        if (found != 0) == full {
            return found;
        }
        // Both threads may share one core.
        std::thread::yield_now();
    };
    let begun = Instant::now();
    let all = on_threads(bench, streams, |number, stream| {
        let mut all = true;
        for place in ring.iter().cycle().take(blocks as usize) {
            if number == 0 {
                let block = client.allocate_async(SIZE, 0, 0, stream.0);
                wait(place, false);
                place.store(if block == 0 { REFUSED } else { block }, Ordering::Release);
                all &= block != 0;
            } else {
                let block = wait(place, true);
                place.store(0, Ordering::Release);
                all &= block == REFUSED || client.deallocate_async(block, stream.0);
            }
        }
        if all { Ok(()) } else { Err(refused()) }
    });
    let time = begun.elapsed();
    all.map(|_| time.as_nanos() as f64 / blocks as f64)
}

/// How many driver calls and queries a pair makes.
pub fn driver_calls(bench: &Bench) -> Result<Vec<Row>> {
    const PAIRS: u64 = 1000;
    let row = |(name, trusted)| {
        let (calls, queries) = bench.fresh(trust(trusted), 1, |allocator, client, streams| {
            let many = || (0..PAIRS).all(|_| pair(client, SIZE, streams[0]));
            if !many() {
                return Err(refused());
            }
            calls(allocator, many)
        })?;
        let each = |count: u64| count as f64 / PAIRS as f64;
        Ok(Row::judged(
            format!("pair, streams={name}: driver calls and queries"),
            format!("{} and {}", each(calls), each(queries)),
            if trusted { "0 and 0" } else { "0 and at most 2" },
            calls == 0 && queries <= if trusted { 0 } else { 2 * PAIRS },
        ))
    };
    WAYS.into_iter().map(row).collect()
}
