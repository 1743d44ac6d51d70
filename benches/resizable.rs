//! Blocks that grow, compared with allocate, copy and free, and with doubling. The simulated device's calls take the
//! times published for an A100 (kvcached's bench_vmm, for 2 MiB each), and it copies 2 TB a second. Then the keys and
//! values of a language model's requests: the memory reserved with one resizable block for each request, with a block
//! for the worst case, and with blocks that double.
//!
//! `cargo bench --bench resizable`. Times of calls are measured on this machine; all others are simulated.

use std::sync::Arc;
use std::time::Instant;

use trtalloc::allocator::{Allocator, RESIZABLE, Request};
use trtalloc::config::Config;
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::driver::{Driver, Stream};
use trtalloc::ffi::ExportedAllocator;
use trtalloc::ffi::tensorrt::client::Client;
use trtalloc::trace::application::Application;
use trtalloc::trace::kv::{self, AZURE, MOONCAKE, Way};
use trtalloc::trace::replay::replay;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const FROM: u64 = 2 * MIB;
const TO: u64 = 8 * GIB;

/// Microseconds for each driver call, as published.
const LATENCIES: [(&str, f64); 5] = [
    ("cuMemAddressReserve", 19.0),
    ("cuMemCreate", 193.0),
    ("cuMemMap", 1.45),
    ("cuMemSetAccess", 36.0),
    ("cuMemUnmap", 25.6),
];

struct Rig {
    driver: Arc<SimDriver>,
    application: Application,
    allocator: Arc<Allocator>,
    stream: Stream,
}

impl Rig {
    fn new(memory: u64) -> Rig {
        let driver = SimDriver::new(SimConfig {
            memory,
            checker: false,
            contents: false,
            bytes_per_ns: 2000,
            ..SimConfig::default()
        });
        for (call, microseconds) in LATENCIES {
            assert!(driver.machine().set_latency(call, (microseconds * 1e3) as u64));
        }
        let application = Application::new(driver.clone(), 0).unwrap();
        let allocator = Allocator::with_driver(driver.clone(), Config::parse("").unwrap()).unwrap();
        Rig {
            stream: application.create_stream().unwrap(),
            driver,
            application,
            allocator,
        }
    }

    fn get(&self, size: u64, flags: u32) -> u64 {
        let request = Request {
            size,
            alignment: 0,
            flags,
            stream: Some(self.stream),
            device: None,
        };
        self.allocator.allocate(request).unwrap()
    }

    /// Allocates a larger block, copies the contents, and frees the old block.
    fn exchange(&self, block: u64, had: u64, size: u64) -> u64 {
        let new = self.get(size, 0);
        self.driver.copy_async(new, block, had, self.stream).unwrap();
        self.allocator.deallocate(block, Some(self.stream)).unwrap();
        new
    }

    /// How often each of the six driver calls was made.
    fn calls(&self) -> [u64; 6] {
        let count = |call: &(&str, f64)| self.driver.machine().count(call.0);
        let [a, b, c, d, e] = LATENCIES.each_ref().map(count);
        [a, b, c, d, e, self.driver.machine().count("cuMemRelease")]
    }
}

/// Prints the bytes copied and the moves for one way to grow from 2 MiB to 8 GiB.
fn row(name: &str, grow: impl FnOnce(&Rig) -> (u64, u64)) {
    let rig = Rig::new(40 * GIB);
    // Creates the pool before the measurement begins.
    let first = rig.get(512, 0);
    let (before, calls) = (rig.driver.machine().now(), rig.calls());
    let submitted = rig.allocator.stats(Some(0)).unwrap().driver_calls;
    let (copied, moves) = grow(&rig);
    rig.application.synchronize().unwrap();
    let stats = rig.allocator.stats(Some(0)).unwrap();
    let now = rig.calls();
    let [reserve, create, map, access, unmap, release] = std::array::from_fn(|at| now[at] - calls[at]);
    println!(
        "{name:22} {copied:>18} {moves:>6} {:>7} {reserve:>7} {create:>6} {map:>6} {access:>6} {unmap:>6} {release:>7} {:>9.1} {:>10}",
        stats.driver_calls - submitted,
        (rig.driver.machine().now() - before) as f64 / 1e6,
        stats.reserved_peak / MIB,
    );
    let _ = first;
    rig.allocator.close();
}

fn growing() {
    println!("from 2 MiB to 8 GiB in steps of 1 MiB, {} steps", (TO - FROM) / MIB);
    println!(
        "{:22} {:>18} {:>6} {:>7} {:>7} {:>6} {:>6} {:>6} {:>6} {:>7} {:>9} {:>10}",
        "", "bytes moved", "moves", "calls", "reserve", "create", "map", "access", "unmap", "release", "ms", "peak MiB"
    );
    row("reallocate", |rig| {
        let mut block = rig.get(FROM, RESIZABLE);
        let mut moves = 0;
        for size in (FROM..=TO).step_by(MIB as usize).skip(1) {
            let new = rig.allocator.reallocate(block, 0, size).unwrap();
            moves += u64::from(new != block);
            block = new;
        }
        (rig.allocator.stats(Some(0)).unwrap().bytes_copied, moves)
    });
    row("allocate, copy, free", |rig| {
        let (mut block, mut had, mut copied) = (rig.get(FROM, 0), FROM, 0);
        for size in (FROM..=TO).step_by(MIB as usize).skip(1) {
            block = rig.exchange(block, had, size);
            copied += had;
            had = size;
        }
        (copied, (TO - FROM) / MIB)
    });
    row("doubling", |rig| {
        let (mut block, mut had, mut copied, mut moves) = (rig.get(FROM, 0), FROM, 0, 0);
        while had < TO {
            block = rig.exchange(block, had, had * 2);
            copied += had;
            (had, moves) = (had * 2, moves + 1);
        }
        (copied, moves)
    });
}

/// Resizes inside committed pages, through the C++ virtual function: steps that each reach a new peak, and back and
/// forth.
fn inside() {
    let rig = Rig::new(40 * GIB);
    let client = Client::new(ExportedAllocator::new(rig.allocator.clone())).unwrap();
    let mut block = client.allocate_async(FROM, 0, RESIZABLE, rig.stream.0);
    const RUN: u64 = 32;
    let mut times = Vec::new();
    let mut size = FROM;
    while size + RUN * MIB <= TO {
        let before = rig.calls();
        let begun = Instant::now();
        for _ in 0..RUN {
            size += MIB;
            block = client.reallocate(block, 0, size);
        }
        let time = begun.elapsed();
        assert_ne!(block, 0);
        if rig.calls() == before {
            times.push(time.as_nanos() as f64 / RUN as f64);
        }
    }
    let back_and_forth = time(|| {
        client.reallocate(block, 0, size - 512);
        client.reallocate(block, 0, size);
    });
    let lock = std::sync::Mutex::new(0u64);
    let locked = time(|| {
        *std::hint::black_box(&lock).lock().unwrap() += 1;
        *std::hint::black_box(&lock).lock().unwrap() += 1;
    });
    println!("\nreallocate inside committed pages, no driver calls, ns");
    println!("{:62} {:>6.1}", "each step a new peak, median", median(&mut times));
    println!("{:62} {:>6.1}", "each step a new peak, lowest", times[0]);
    println!("{:62} {:>6.1}", "back and forth by 512 bytes, median", back_and_forth);
    println!("{:62} {:>6.1}", "for scale: the standard library's mutex", locked);
    rig.allocator.close();
}

/// Nanoseconds for one of the two calls in `twice`.
fn time(mut twice: impl FnMut()) -> f64 {
    let mut rounds: Vec<f64> = (0..51)
        .map(|_| {
            let begun = Instant::now();
            (0..2000).for_each(|_| twice());
            begun.elapsed().as_nanos() as f64 / 4000.0
        })
        .collect();
    median(&mut rounds)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn serving() {
    // 32 layers, 8 heads of keys and of values, 128 numbers of 2 bytes each.
    const BYTES_OF_TOKEN: u64 = 128 << 10;
    println!(
        "\n300 requests to a language model, at most 16 at once, 128 KiB a token; a block for each, three ways; MiB"
    );
    println!(
        "{:10} {:14} {:>10} {:>10} {:>8} {:>10} {:>8} {:>7} {:>14}",
        "lengths", "block", "in use", "reserved", "÷ tokens", "resizes", "in place", "calls", "bytes copied"
    );
    for lengths in [AZURE, MOONCAKE] {
        let mut least = 0;
        for (name, way) in [
            ("resizable", Way::Resized),
            ("worst case", Way::Worst),
            ("doubled", Way::Doubled),
        ] {
            let (trace, copied) = kv::trace(&lengths, way, BYTES_OF_TOKEN, 1);
            least = if way == Way::Resized { trace.peak() } else { least };
            let rig = Rig::new(256 * GIB);
            let pass = replay(&trace, rig.allocator.as_ref(), &[rig.stream], &mut ()).unwrap();
            assert_eq!(pass.failures, 0, "{:?}", pass.first_failure);
            let stats = rig.allocator.stats(Some(0)).unwrap();
            println!(
                "{:10} {name:14} {:>10} {:>10} {:>8.3} {:>10} {:>8} {:>7} {:>14}",
                lengths.name,
                pass.peak / MIB,
                pass.reserved_peak / MIB,
                pass.reserved_peak as f64 / least as f64,
                stats.reallocations,
                pass.in_place,
                pass.driver_calls,
                copied + stats.bytes_copied,
            );
            rig.allocator.close();
        }
    }
}

fn main() {
    growing();
    inside();
    serving();
}
