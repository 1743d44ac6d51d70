//! A trace as a load on the simulated device, for `bench serve --trace` and `replay --advise`.

use std::path::Path;

use trtalloc::allocator::Allocator;
use trtalloc::config::{Config, ReleaseThreshold};
use trtalloc::error::{Error, Result};
use trtalloc::trace::serve::{Load, Memory, Pace, Passes, RecordedRun, Simulated, WORK};
use trtalloc::trace::{Trace, csv};

use super::device::{Device, Fallback};

/// How a trace becomes a load.
#[derive(clap::Args, Clone)]
pub struct PaceArguments {
    /// Divide the time between calls by this; the work keeps its length. A large number makes requests come as fast as the
    /// device completes them [default: 1]
    #[arg(long, value_name = "FACTOR")]
    speed: Option<f64>,
    /// How many microseconds of work a request queues; the default is the trace's time from its first allocation to its
    /// first free, and 2000 where the trace has no times
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u64).range(1..=3_600_000_000))]
    work_us: Option<u64>,
    /// How many requests of a stream the host queues before it waits for the first of them [default: 2]
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u64).range(1..))]
    ahead: Option<u64>,
}

impl PaceArguments {
    /// Whether one of them was given.
    pub fn are_given(&self) -> bool {
        self.speed.is_some() || self.work_us.is_some() || self.ahead.is_some()
    }

    /// The pace of a load that is run so often.
    pub fn pace(&self, passes: u32) -> Result<Pace> {
        let speed = self.speed.unwrap_or(1.0);
        if !speed.is_finite() || speed < 1e-6 {
            return Err(Error::InvalidArgument(format!("--speed {speed}: at least 0.000001")));
        }
        Ok(Pace {
            speed,
            work: self.work_us.map(|work| work * 1000),
            ahead: self
                .ahead
                .map_or(2, |ahead| usize::try_from(ahead).unwrap_or(usize::MAX)),
            passes: passes as usize,
        })
    }
}

/// What a load is, in words: the file, its rows and requests, and where times and work come from.
pub fn head(path: &Path, trace: &Trace, load: &Load, pace: Pace) -> String {
    let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let times = match trace.has_times() {
        false => "the trace has no times: calls come as fast as they may".to_owned(),
        true => {
            let seconds = trace.length() as f64 / 1e6;
            match pace.speed {
                1.0 => format!("calls come at the trace's times, {seconds:.3} s"),
                speed => format!("calls come {speed} times as fast as in the trace, which lasts {seconds:.3} s"),
            }
        }
    };
    let work = match (pace.work, trace.has_times()) {
        (Some(work), _) => format!("{} µs", work / 1000),
        (None, false) => format!("{} µs", WORK / 1000),
        (None, true) => "the time from its first allocation to its first free".to_owned(),
    };
    format!(
        "trace        {}: {}, {} on {}\ntime         {times}; work of a request: {work}",
        path.display(),
        plural(trace.ops().len(), "row"),
        plural(load.requests(), "request"),
        plural(load.streams(), "stream"),
    )
}

/// Reads the trace in a file. A trace without rows is an error.
pub fn open(path: &Path) -> Result<Trace> {
    let trace = csv::open(path)?;
    match trace.ops().is_empty() {
        true => Err(Error::InvalidArgument(format!("{}: no rows", path.display()))),
        false => Ok(trace),
    }
}

/// Runs a load on a fresh simulated device. Returns what was seen in the first pass and in the others.
pub fn run(config: &Config, load: &Load, check_order: bool, progress: &mut dyn FnMut(u64)) -> Result<[Passes; 2]> {
    let mut config = config.clone();
    // In simulated time, on the one thread.
    let decay_ms = std::mem::take(&mut config.decay_ms);
    let keeps_all = config.release_threshold == ReleaseThreshold::All;
    let device = Device::open(&config, Fallback::Fail)?;
    device.check_order(check_order);
    let allocator = Allocator::with_driver(device.driver(), config)?;
    let computer = simulated(&device)?;
    let memory: &dyn Memory = allocator.as_ref();
    let result = RecordedRun::new(&computer, Some(memory), load, if keeps_all { 0 } else { decay_ms })
        .and_then(|run| run.run(progress));
    // After an error, too: the pool must be closed before the context is destroyed.
    allocator.close();
    result
}

/// The same without an allocator: the work alone.
pub fn run_work(config: &Config, load: &Load, progress: &mut dyn FnMut(u64)) -> Result<[Passes; 2]> {
    let device = Device::open(config, Fallback::Fail)?;
    device.check_order(false);
    RecordedRun::new(&simulated(&device)?, None, load, 0)?.run(progress)
}

/// The simulated computer of a device.
pub fn simulated(device: &Device) -> Result<Simulated<'_>> {
    match device.simulation() {
        Some(machine) => Ok(Simulated::new(device.application(), machine)),
        None => Err(Error::Unsupported("this needs the simulated device".into())),
    }
}
