//! How long a small request that misses its cache takes while another thread keeps the pool busy.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trtalloc::allocator::{Allocator, RESIZABLE, Request};
use trtalloc::config::{Config, Limit};
use trtalloc::driver::Stream;
use trtalloc::driver::sim::model::functions::{Call, CallKind};
use trtalloc::error::Result;
use trtalloc::ffi::tensorrt::client::Client;
use trtalloc::trace::steady::Holes;

use super::super::device::{Device, Fallback};
use super::longest::Times;
use super::pairs::on_threads;
use super::time::refused;
use super::{Bench, Row};

const MIB: u64 = 1 << 20;

/// How many small requests are timed at most, how far apart they are, and for how long the other thread goes on.
const MISSES: u64 = 4_000;
const APART: Duration = Duration::from_micros(100);
const LONGEST: Duration = Duration::from_secs(1);

/// The holes of the stream that makes small requests.
const HOLES: usize = 1_000;

/// Nanoseconds of each call of the simulated driver, where calls cost time.
const CALL: u64 = 36_000;

/// While it exists, calls of a simulated driver cost time.
struct Costly<'a>(&'a Device);

impl Costly<'_> {
    fn begin(device: &Device) -> Costly<'_> {
        let costly = Costly(device);
        costly.set(|_| CALL, true);
        costly
    }

    fn set(&self, latency: impl Fn(Call) -> u64, on_host: bool) {
        if let Some(machine) = self.0.simulation() {
            for &call in Call::ALL.iter().filter(|call| call.kind() == CallKind::Call) {
                machine.set_latency(call.name(), latency(call));
            }
            machine.spend_host_time(on_host);
        }
    }
}

impl Drop for Costly<'_> {
    fn drop(&mut self) {
        if let Some(machine) = self.0.simulation() {
            let usual = machine.config().latencies;
            self.set(|call| usual.of(call), false);
        }
    }
}

/// The times of small requests on the second stream while `other` works on another thread with the first one. They end with
/// `other`, or after `most` of them or `LONGEST`; `other` is asked to end then.
fn small_requests(
    bench: &Bench,
    client: Client,
    (streams, holes): (&[Stream], &mut Holes),
    most: Option<u64>,
    other: impl Fn(Stream, &AtomicBool) -> Result<()> + Sync,
) -> Result<Times> {
    let (over, holes) = (AtomicBool::new(false), std::sync::Mutex::new(holes));
    let measure = || {
        let mut times = Times(Vec::new());
        let mut holes = holes.lock().unwrap_or_else(|held| held.into_inner());
        let begun = Instant::now();
        while !over.load(Ordering::Acquire) || times.0.is_empty() {
            if !times.of(|| holes.miss(client)) {
                return Err(refused());
            }
            if most.is_some_and(|most| times.0.len() as u64 >= most || begun.elapsed() > LONGEST) {
                break;
            }
            std::thread::sleep(APART);
        }
        Ok(times)
    };
    let times = on_threads(bench, streams, |number, stream| {
        let result = match number {
            0 => other(stream, &over).map(|()| Times(Vec::new())),
            _ => measure(),
        };
        over.store(true, Ordering::Release);
        result
    })?;
    times.into_iter().next_back().ok_or_else(refused)
}

fn half_and_longest(mut times: Times) -> String {
    let (half, longest) = (times.one_in(2), times.0.iter().max());
    let longest = f64::from(longest.copied().unwrap_or(0)) / 1e6;
    format!("{half:.1} µs, {longest:.2} ms")
}

/// Loads and unloads an engine of 64 MiB without a stream.
fn load(client: Client) -> bool {
    let block = client.allocate(64 * MIB, 0, 0);
    block != 0 && client.deallocate(block)
}

/// A block that grows from 64 to 512 MiB.
fn grow(client: Client) -> bool {
    let mut block = client.allocate(64 * MIB, 0, RESIZABLE);
    for step in 1..=28 {
        match client.reallocate(block, 0, 64 * MIB + step * 16 * MIB) {
            0 => return false,
            grown => block = grown,
        }
    }
    client.deallocate(block)
}

/// Beside a thread that calls the driver again and again.
pub fn engines(bench: &Bench) -> Result<Vec<Row>> {
    let most = (bench.arguments.pairs / 500).clamp(5, MISSES);
    type Neighbour = (&'static str, fn(Client) -> bool);
    let neighbours: [Neighbour; 2] = [
        ("a thread that loads engines of 64 MiB", load),
        ("a thread whose block grows", grow),
    ];
    let row = |(name, work): Neighbour| {
        let times = bench.fresh(
            |_| {},
            2,
            |allocator, client, streams| {
                let mut holes = Holes::make(allocator, streams[1], HOLES)?;
                let times = {
                    let _costly = Costly::begin(&bench.device);
                    small_requests(bench, client, (streams, &mut holes), Some(most), |_, over| {
                        while !over.load(Ordering::Acquire) {
                            if !work(client) {
                                return Err(refused());
                            }
                        }
                        Ok(())
                    })?
                };
                holes.end(allocator)?;
                Ok(times)
            },
        )?;
        let calls = match bench.device.is_simulated() {
            true => ", each driver call 36 µs",
            false => "",
        };
        Ok(Row::printed(
            format!("small miss beside {name}{calls}: half, longest"),
            half_and_longest(times),
        ))
    };
    neighbours.into_iter().map(row).collect()
}

/// How many free pieces and cached ranges there are with the default number of pairs.
const PIECES: u64 = 20_000;
const RANGES: u64 = 8_000;

/// The windows of decay in which idle memory is found and goes back.
const WINDOWS: usize = 16;

/// What returns memory to the driver.
#[derive(Clone, Copy)]
enum Return {
    Decay,
    Trim,
}

/// Beside decay and trims of a pool that is in many pieces.
pub fn returns(bench: &Bench) -> Result<Vec<Row>> {
    if !bench.device.is_simulated() {
        return rows_of_returns(bench);
    }
    let config = Config {
        sim_memory: 4 * PIECES * (2 * MIB),
        ..bench.config.clone()
    };
    let device = Device::open(&config, Fallback::Simulate)?;
    device.check_order(false);
    rows_of_returns(&Bench {
        device,
        config,
        arguments: bench.arguments,
    })
}

fn rows_of_returns(bench: &Bench) -> Result<Vec<Row>> {
    let page = bench.device.round_to_handles(1);
    let room = bench.device.memory() / 2 / page;
    let scaled = |count: u64| count.min(bench.arguments.pairs * count / 2_000_000).max(10);
    let (pieces, ranges) = (scaled(PIECES).min(room / 2), scaled(RANGES).min(room));
    let row = |(what, flags, count, by): (String, u32, u64, Return)| {
        let (times, (took, returned)) = bench.fresh(
            // With a limit, memory beyond an eighth of it comes in handles of a page each, which all go back.
            |config| config.limit = Limit::Bytes(4 * count * page),
            2,
            |allocator, client, streams| {
                let mut holes = Holes::make(allocator, streams[1], HOLES)?;
                let live = make_pieces(allocator, streams[0], (count, page, flags))?;
                let took = std::sync::Mutex::new(Duration::ZERO);
                let before = allocator.stats(None)?.reserved;
                let times = small_requests(bench, client, (streams, &mut holes), None, |_, _| {
                    let begun = Instant::now();
                    match by {
                        Return::Decay => (0..WINDOWS).for_each(|_| _ = allocator.end_window()),
                        Return::Trim => allocator.trim(None, 0).map(drop)?,
                    }
                    *took.lock().unwrap_or_else(|held| held.into_inner()) = begun.elapsed();
                    Ok(())
                })?;
                let returned = before.saturating_sub(allocator.stats(None)?.reserved) / page;
                holes.end(allocator)?;
                live.into_iter()
                    .try_for_each(|block| allocator.deallocate(block, Some(streams[0])))?;
                let took = took.into_inner().unwrap_or_else(|held| held.into_inner());
                Ok((times, (took, returned)))
            },
        )?;
        let longest = f64::from(times.0.iter().max().copied().unwrap_or(0)) / 1e6;
        Ok(Row::printed(
            format!("longest small miss beside {what}"),
            format!(
                "{longest:.2} ms of {:.1} ms, {returned} handles went",
                took.as_secs_f64() * 1e3
            ),
        ))
    };
    let rows = [
        (
            format!("{WINDOWS} windows of decay, {pieces} free pieces"),
            0,
            pieces,
            Return::Decay,
        ),
        (format!("a trim of {pieces} free pieces"), 0, pieces, Return::Trim),
        (
            format!("a trim of {ranges} cached ranges"),
            RESIZABLE,
            ranges,
            Return::Trim,
        ),
    ];
    rows.into_iter().map(row).collect()
}

/// Frees `count` blocks of a page each on `stream`, each between two that stay. Resizable blocks have ranges of their own, so
/// none has to stay between them. Returns those that stay.
fn make_pieces(allocator: &Allocator, stream: Stream, (count, page, flags): (u64, u64, u32)) -> Result<Vec<u64>> {
    let request = Request {
        size: page,
        alignment: 0,
        flags,
        stream: Some(stream),
        device: None,
    };
    let (mut free, mut live) = (Vec::new(), Vec::new());
    for _ in 0..count {
        free.push(allocator.allocate(request)?);
        if flags != RESIZABLE {
            live.push(allocator.allocate(request)?);
        }
    }
    for block in free {
        allocator.deallocate(block, Some(stream))?;
    }
    Ok(live)
}
