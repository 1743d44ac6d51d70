//! `trtalloc bench serve`: what the allocator costs a server whose work is pending and whose memory calls take as long
//! as on a GPU. It runs on the simulated device with `sim_latency=a100`.

mod recorded;
mod table;

use std::path::PathBuf;

use trtalloc::allocator::Allocator;
use trtalloc::config::{Config, Limit, LogLevel};
use trtalloc::driver::DriverChoice;
use trtalloc::driver::sim::{self, Latencies};
use trtalloc::error::{Error, Result};

use super::super::device::{Device, Fallback};
use super::super::{AllocatorArguments, Done, above_zero, from_zero, load, progress, say};
use trtalloc::trace::serve::{self, Client, Figures, Measured, Row, Run};

/// How many violations are printed of each row.
const PRINTED: usize = 3;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    allocator: AllocatorArguments,
    /// Run this trace instead of the generated workloads: its calls by stream, at its times, with work pending
    #[arg(long, value_name = "FILE", conflicts_with_all = ["requests", "warm", "seed", "rows", "only_streams"])]
    trace: Option<PathBuf>,
    #[command(flatten)]
    pace: load::PaceArguments,
    /// How often the trace is run; the first pass is not measured [default: 3]
    #[arg(long, requires = "trace", value_parser = clap::value_parser!(u32).range(2..=100))]
    repeat: Option<u32>,
    /// How many requests of each stream are measured
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,
    /// How many requests of each stream come before those
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    warm: u32,
    /// Where the requests are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The simulated device's memory in GiB
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u64).range(1..=4096))]
    memory: u64,
    /// A limit for each row, as a multiple of its needs
    #[arg(long, conflicts_with = "limit", value_parser = above_zero)]
    cap: Option<f64>,
    /// A reserve for each row, as a multiple of its needs
    #[arg(long, value_parser = from_zero)]
    reserve_part: Option<f64>,
    /// Only rows whose workload has this text
    #[arg(long)]
    rows: Option<String>,
    /// Only rows with so many streams
    #[arg(long)]
    only_streams: Option<usize>,
}

pub fn run(arguments: &Arguments) -> Result<Done> {
    let mut config = arguments.allocator.config()?;
    if ![DriverChoice::Auto, DriverChoice::Named(&sim::DRIVER)].contains(&config.driver) {
        let why = "bench serve counts calls and time of the simulated device: --driver sim";
        return Err(Error::InvalidArgument(why.into()));
    }
    let limited = arguments.cap.is_some() || config.limit != Limit::None;
    if limited && config.log == LogLevel::Warn {
        // The table counts refusals.
        trtalloc::log::init(LogLevel::Error);
    }
    config.driver = DriverChoice::Named(&sim::DRIVER);
    config.sim_latency = Latencies::A100;
    config.sim_memory = arguments.memory << 30;
    if let Some(path) = &arguments.trace {
        return recorded::run(path, arguments, config, limited);
    }
    if arguments.pace.are_given() {
        let why = "--speed, --work-us and --ahead are for a trace: --trace FILE";
        return Err(Error::InvalidArgument(why.into()));
    }
    let mut chosen = serve::rows();
    chosen.retain(|row| {
        let named = arguments.rows.as_ref().is_none_or(|text| row.name().contains(text));
        named && arguments.only_streams.is_none_or(|streams| streams == row.streams)
    });
    if chosen.is_empty() {
        return Err(Error::InvalidArgument(
            "no row is meant by --rows and --only-streams".into(),
        ));
    }
    say(&device_line(arguments));
    say(&format!(
        "measured     {} requests of each stream after {}, seed {}",
        arguments.requests, arguments.warm, arguments.seed
    ));
    say(table::LEGEND);
    let bar = progress::bar(chosen.len() as u64);
    let (mut done, mut measured) = (Done::All, Vec::new());
    for row in chosen {
        bar.set_message(row.kind.name());
        measured.push(measure(row, arguments, &config)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let lines: Vec<table::Line> = measured
        .iter()
        .map(|measured| table::Line::of(measured, limited))
        .collect();
    say(&table::table(&lines, if limited { "refused" } else { "missed" }).text());
    for Measured { row, figures, .. } in &measured {
        if let Some(reason) = figures.reason.as_ref().filter(|_| !limited) {
            done = Done::NotAll;
            say(&format!(
                "refused: {} in {}, the first: {reason}",
                figures.refused,
                row.name()
            ));
        }
    }
    let rows = measured.iter().map(|Measured { row, figures, .. }| {
        let name = format!("{}, {} streams", row.name(), row.streams);
        (name, figures)
    });
    if verdict(rows) == Done::NotAll {
        done = Done::NotAll;
    }
    Ok(done)
}

fn device_line(arguments: &Arguments) -> String {
    format!(
        "device       simulated, {} GiB, memory calls as long as on an A100; one thread makes all calls",
        arguments.memory
    )
}

/// Prints what the order checker found in each row, and whether it found nothing.
fn verdict<'a>(rows: impl Iterator<Item = (String, &'a Figures)>) -> Done {
    let (mut checked, mut violations) = (0, 0);
    for (name, figures) in rows {
        checked += figures.checked;
        violations += figures.violations.len();
        for violation in figures.violations.iter().take(PRINTED) {
            say(&format!("VIOLATION in {name}: {violation}"));
        }
    }
    say(&format!("{violations} violations in {checked} allocations"));
    match violations {
        0 => Done::All,
        _ => Done::NotAll,
    }
}

/// Runs a row twice, with the allocator and with none.
fn measure(row: Row, arguments: &Arguments, config: &Config) -> Result<Measured> {
    let requests = arguments.requests as usize + arguments.warm as usize;
    let clients = serve::clients(row.kind, row.sizes, row.streams, requests, arguments.seed);
    let needs = clients.iter().map(Client::needs).sum();
    let mut config = config.clone();
    if let Some(cap) = arguments.cap {
        config.limit = Limit::Bytes(((needs as f64 * cap) as u64).max(1));
    }
    // In simulated time, on the one thread.
    let decay = std::mem::take(&mut config.decay_ms);
    if let Some(part) = arguments.reserve_part {
        config.reserve = Limit::Bytes((needs as f64 * part) as u64);
    }
    let warm = arguments.warm as usize;
    let ideal = {
        let device = Device::open(&config, Fallback::Fail)?;
        Run::new(&load::simulated(&device)?, None, &clients, row.ahead, warm)?
            .run()?
            .device_time
    };
    let device = Device::open(&config, Fallback::Fail)?;
    let allocator = Allocator::with_driver(device.driver(), config)?;
    let computer = load::simulated(&device)?;
    let run = Run::new(&computer, Some(allocator.as_ref()), &clients, row.ahead, warm)?;
    let figures = run.with_decay(decay).run()?;
    Ok(Measured {
        row,
        figures,
        ideal,
        needs,
    })
}
