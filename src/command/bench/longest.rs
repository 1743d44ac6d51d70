//! How long single calls take on the host in the steady state of a server: requests of eight shapes, each of four blocks.

use std::time::Instant;

use trtalloc::driver::Stream;
use trtalloc::error::Result;
use trtalloc::ffi::tensorrt::client::Client;

use super::time::refused;
use super::{Bench, Row};

/// The tenths of a unit that a request's blocks have; its unit is a multiple of `STEP`.
const TENTHS: [u64; 4] = [40, 20, 10, 3];
const STEP: u64 = 4 << 20;
const SHAPES: u64 = 8;

/// How many requests come before the measured ones, and how many calls are measured.
const WARM: usize = 300;
const CALLS: usize = 1_000_000;

/// The times of calls in nanoseconds.
pub struct Times(pub Vec<u32>);

impl Times {
    pub fn of<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let answer = call();
        self.0.push(begun.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32);
        answer
    }

    /// The time in microseconds that all calls but one in so many stay below.
    pub fn one_in(&mut self, parts: usize) -> f64 {
        let at = self.0.len() - 1 - self.0.len() / parts;
        f64::from(*self.0.select_nth_unstable(at).1) / 1000.0
    }
}

/// One request on `stream`, whose calls are timed. Returns whether it was met.
fn request(client: Client, stream: Stream, shape: u64, times: &mut Times) -> bool {
    let unit = (shape + 1) * STEP;
    let blocks = TENTHS.map(|tenths| times.of(|| client.allocate_async(unit * tenths / 10, 0, 0, stream.0)));
    blocks
        .into_iter()
        .all(|block| block != 0 && times.of(|| client.deallocate_async(block, stream.0)))
}

/// The longest calls, without decay and with windows of 25 ms.
pub fn longest(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (decay_ms, name) in [(0, ""), (100, ", decay_ms=100")] {
        let mut times = bench.fresh(
            |config| config.decay_ms = decay_ms,
            2,
            |_, client, streams| {
                let mut random = 1u64;
                let mut serve = |times: &mut Times| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let shape = (random >> 33) % SHAPES;
                    streams.iter().all(|stream| request(client, *stream, shape, times))
                };
                let mut times = Times(Vec::with_capacity(CALLS));
                let calls = CALLS.min(bench.arguments.pairs as usize);
                if !(0..WARM).all(|_| serve(&mut times)) {
                    return Err(refused());
                }
                times.0.clear();
                while times.0.len() < calls {
                    if !serve(&mut times) {
                        return Err(refused());
                    }
                }
                Ok(times)
            },
        )?;
        let (half, most) = (times.one_in(2), times.one_in(10_000));
        rows.push(Row::time(
            format!("calls of requests of 8 shapes, 2 streams{name}: half, 99.99 %"),
            format!("{half:.2} µs, {most:.1} µs"),
            "at most 20 µs",
            most <= 20.0,
            bench.judges_times(),
        ));
    }
    Ok(rows)
}
