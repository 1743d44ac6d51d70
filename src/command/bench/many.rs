//! What a request costs in a program with many streams.

use trtalloc::config::Limit;
use trtalloc::driver::Stream;
use trtalloc::error::{Error, Result};
use trtalloc::trace::random::Random;
use trtalloc::trace::steady::pair;

use super::time::{of_one_thread, refused};
use super::{Bench, Row};

const MIB: u64 = 1 << 20;

/// How many streams take turns.
const STREAMS: [usize; 4] = [1, 16, 256, 2_048];

/// The size of a pair's block. 2,048 of them are no more than 128 MiB.
const SIZE: u64 = 64 << 10;

/// Pairs of streams that take turns, on one thread.
pub fn pairs(bench: &Bench) -> Result<Vec<Row>> {
    let row = |count| {
        let time = bench.fresh(
            |_| {},
            count,
            |_, client, streams| {
                if !streams.iter().chain(streams).all(|stream| pair(client, SIZE, *stream)) {
                    return Err(refused());
                }
                let mut turns = streams.iter().cycle();
                let mut once = || turns.next().is_some_and(|stream| pair(client, SIZE, *stream));
                of_one_thread(bench, (bench.arguments.pairs / 100).max(5), &mut once)
            },
        )?;
        Ok(Row::printed(
            format!("pair, {count} streams in turn, 1 thread"),
            format!("{time:.1} ns"),
        ))
    };
    STREAMS.into_iter().map(row).collect()
}

/// The streams near a limit, and how much of it each has on average.
const NEAR: usize = 256;
const EACH: u64 = 4 * MIB;

/// Simulated nanoseconds of a request's work, which many streams have pending.
const WORK: u64 = 5_000_000;

/// How many requests are counted at most.
const REQUESTS: u64 = 2_000;

/// Event queries of requests near a limit, which each take four times what a stream has on average.
pub fn queries(bench: &Bench) -> Result<Vec<Row>> {
    const WHAT: &str = "event queries of a request, 256 streams near a limit: mean, most";
    let Some(machine) = bench.device.simulation() else {
        return Ok(vec![Row::printed(WHAT, "not here: the simulated device's".into())]);
    };
    let requests = (bench.arguments.pairs / 1_000).clamp(5, REQUESTS);
    let (mut sum, mut most, mut refusals) = (0, 0, 0);
    bench.fresh(
        |config| config.limit = Limit::Bytes(NEAR as u64 * EACH),
        NEAR,
        |_, client, streams| {
            let mut random = Random::new(1);
            let request = |stream: &Stream, size: u64| {
                let before = machine.count("cuEventQuery");
                let block = client.allocate_async(size, 0, 0, stream.0);
                let queries = machine.count("cuEventQuery") - before;
                if block != 0 {
                    let work = machine.launch(stream.0, WORK, &[(block as u64, size)]);
                    work.map_err(|code| Error::InvalidArgument(format!("work was refused with {code}")))?;
                    if !client.deallocate_async(block, stream.0) {
                        return Err(refused());
                    }
                }
                Ok((block != 0, queries))
            };
            // Each stream has something, so that nothing is left below the limit.
            for stream in streams.iter().chain(streams) {
                request(stream, EACH)?;
            }
            for _ in 0..requests {
                let stream = streams[random.below(NEAR as u64) as usize];
                let (met, queries) = request(&stream, 4 * EACH)?;
                (sum, most) = (sum + queries, most.max(queries));
                refusals += u64::from(!met);
            }
            bench.device.application().synchronize()?;
            Ok(())
        },
    )?;
    let refused = match refusals {
        0 => String::new(),
        _ => format!(", {refusals} refused"),
    };
    Ok(vec![Row::printed(
        WHAT,
        format!("{:.1}, {most}{refused}", sum as f64 / requests as f64),
    )])
}
