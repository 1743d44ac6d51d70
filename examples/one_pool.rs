//! Two frameworks in one process on the simulated device: one pool for each, compared with one pool for both.
//!
//!     cargo run --release --example one_pool
//!
//! Two of the generated traces alternate, as a server alternates between PyTorch's and TensorRT's work for a request.
//! Each has its own streams and waits for its work before the other continues. Nothing is random: the figures are the
//! same everywhere. Without a cap each stream keeps what it needs, so one pool holds about as much as two. The program
//! fails if one pool does not fit under a smaller cap than two.

use std::process::ExitCode;
use std::sync::Arc;

use trtalloc::allocator::{Allocator, RESIZABLE, Request};
use trtalloc::config::Config;
use trtalloc::driver::Stream;
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::error::Result;
use trtalloc::trace::application::Application;
use trtalloc::trace::generate::generate;
use trtalloc::trace::random::Random;
use trtalloc::trace::{GRANULE, Op, OpKind, Trace};

/// The frameworks' parts: a trace for each, and a description.
const PARTS: [(&str, &str); 2] = [
    ("varying", "networks of varying shapes"),
    ("serving", "a language model"),
];
const SEED: u64 = 1;
/// The minimum and maximum of rows in one framework's turn.
const TURN: (u64, u64) = (20, 400);
const MIB: u64 = 1 << 20;

/// One framework: its trace, and the pool that it uses.
struct Part {
    trace: Trace,
    streams: Vec<Stream>,
    memory: Arc<Allocator>,
    next: usize,
    /// By slot: address and bytes.
    live: Vec<(u64, u64)>,
}

/// The results of a run.
#[derive(Debug, Default, Clone, Copy)]
struct Figures {
    in_use: u64,
    reserved: u64,
    refused: u64,
}

impl Part {
    fn step(&mut self, application: &Application, in_use: &mut u64) -> Result<bool> {
        let op: Op = self.trace.ops()[self.next];
        self.next += 1;
        let stream = op.stream.map(|at| self.streams[at as usize]);
        let slot = &mut self.live[op.block as usize];
        let round = |bytes: u64| bytes.next_multiple_of(GRANULE);
        match op.kind {
            OpKind::Alloc { resizable } => {
                let request = Request {
                    size: op.bytes,
                    alignment: 0,
                    flags: if resizable { RESIZABLE } else { 0 },
                    stream,
                    device: Some(0),
                };
                let Ok(address) = self.memory.allocate(request) else {
                    return Ok(false);
                };
                *slot = (address, op.bytes);
                application.launch(stream.unwrap_or(Stream::LEGACY), address, op.bytes)?;
                *in_use += round(op.bytes);
            }
            OpKind::Realloc if slot.0 != 0 => {
                let Ok(address) = self.memory.reallocate(slot.0, 0, op.bytes) else {
                    return Ok(false);
                };
                *in_use = *in_use - round(slot.1) + round(op.bytes);
                *slot = (address, op.bytes);
            }
            OpKind::Free if slot.0 != 0 => {
                self.memory.deallocate(slot.0, stream)?;
                *in_use -= round(slot.1);
                *slot = (0, 0);
            }
            _ => {}
        }
        Ok(true)
    }
}

/// Runs both parts in turns, over one pool for each limit; a limit of 0 is none.
fn run(traces: &[Trace], limits: &[u64]) -> Result<Figures> {
    let driver = SimDriver::new(SimConfig {
        memory: 80 << 30,
        checker: false,
        ..SimConfig::default()
    });
    let application = Application::new(driver.clone(), 0)?;
    let mut pools = Vec::new();
    for limit in limits {
        let config = Config::parse(&format!("limit={limit},wait_ms=50"))?;
        pools.push(Allocator::with_driver(driver.clone(), config)?);
    }
    let mut parts = Vec::new();
    for (at, trace) in traces.iter().enumerate() {
        let mut streams = Vec::new();
        for _ in trace.streams() {
            streams.push(application.create_stream()?);
        }
        parts.push(Part {
            trace: trace.clone(),
            streams,
            memory: pools[at % pools.len()].clone(),
            next: 0,
            live: vec![(0, 0); trace.blocks()],
        });
    }
    let mut figures = Figures::default();
    let (mut in_use, mut random, mut turn) = (0, Random::new(SEED), 0);
    while parts.iter().any(|part| part.next < part.trace.ops().len()) {
        let rows = random.between(TURN.0, TURN.1);
        let part = &mut parts[turn % traces.len()];
        for _ in 0..rows {
            if part.next == part.trace.ops().len() {
                break;
            }
            figures.refused += u64::from(!part.step(&application, &mut in_use)?);
            figures.in_use = figures.in_use.max(in_use);
        }
        application.synchronize()?;
        let mut reserved = 0;
        for pool in &pools {
            reserved += pool.stats(Some(0))?.reserved;
        }
        figures.reserved = figures.reserved.max(reserved);
        turn += 1;
    }
    Ok(figures)
}

/// The minimum limit, in steps of 1/128 of `maximum`, under which one pool refuses nothing of `traces`.
fn minimum(traces: &[Trace], maximum: u64) -> Result<u64> {
    let (mut low, mut high) = (64, 128 * 2);
    while low < high {
        let middle = (low + high) / 2;
        if run(traces, &[maximum * middle / 128])?.refused == 0 {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(maximum * high / 128)
}

fn compare() -> Result<bool> {
    let traces: Vec<Trace> = PARTS.iter().filter_map(|(name, _)| generate(name, SEED)).collect();
    let one = run(&traces, &[0])?;
    let two = run(&traces, &[0, 0])?;
    let mut caps = Vec::new();
    for alone in [&traces[..1], &traces[1..]] {
        caps.push(minimum(alone, run(alone, &[0])?.reserved)?);
    }
    let split: u64 = caps.iter().sum();
    let together = minimum(&traces, one.in_use)?;
    for ((name, what), (trace, cap)) in PARTS.iter().zip(traces.iter().zip(&caps)) {
        println!(
            "{name}: {what}, {} rows; alone it fits under {} MiB",
            trace.ops().len(),
            cap / MIB
        );
    }
    println!(
        "\n{:<24} {:>12} {:>16} {:>20}",
        "", "in use, peak", "reserved, peak", "least cap that fits"
    );
    let row = |name: &str, figures: Figures, cap: u64| {
        println!(
            "{name:<24} {:>8} MiB {:>12} MiB {:>16} MiB",
            figures.in_use / MIB,
            figures.reserved / MIB,
            cap / MIB
        );
    };
    row("a pool for each", two, split);
    row("one pool", one, together);
    Ok(one.refused + two.refused == 0 && one.reserved < two.reserved / 10 * 11 && together < split)
}

fn main() -> ExitCode {
    match compare() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("one pool does not fit under a smaller cap than two, or holds much more");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
