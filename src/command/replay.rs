//! `trtalloc replay TRACE`: runs a trace and measures it.

use std::collections::HashMap;
use std::path::PathBuf;

use indicatif::ProgressBar;
use trtalloc::allocator::Allocator;
use trtalloc::config::Limit;
use trtalloc::driver::Stream;
use trtalloc::error::{Error, Result};
use trtalloc::trace::replay::{Observer, Pass, replay};
use trtalloc::trace::{Trace, csv};

use super::device::{Device, Fallback};
use super::load::PaceArguments;
use super::table::{Table, mib, size};
use super::{AllocatorArguments, Done, above_zero, advise, from_zero, progress, say, snapshot};

#[derive(clap::Args)]
pub struct Arguments {
    /// The trace, as CSV: op,id,bytes[,stream[,thread[,time_us]]]; gzip is unpacked
    trace: PathBuf,
    #[command(flatten)]
    allocator: AllocatorArguments,
    /// Try settings with the load of the trace, on simulated devices whose memory calls take as long as on an A100: what each
    /// costs and holds, and which one is worth it
    #[arg(long, conflicts_with_all = ["work", "cap", "max_ratio", "max_remaps", "snapshot"])]
    advise: bool,
    #[command(flatten)]
    pace: PaceArguments,
    /// How often the trace is run; each pass is a row of the table [default: 1, and 3 with --advise]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,
    /// Queue work on every block, so that memory is pending when it is freed; the simulated device checks every
    /// allocation
    #[arg(long)]
    work: bool,
    /// Cap reserved memory at RATIO times the trace's peak in use, rounded up to whole handles
    #[arg(long, conflicts_with = "limit", value_name = "RATIO", value_parser = above_zero)]
    cap: Option<f64>,
    /// Fail where reserved ÷ peak is above this in any pass
    #[arg(long, value_parser = from_zero)]
    max_ratio: Option<f64>,
    /// Fail where the last pass remaps more than this for each thousand requests
    #[arg(long, value_parser = from_zero)]
    max_remaps: Option<f64>,
    #[command(flatten)]
    snapshot: snapshot::Argument,
}

pub fn run(arguments: &Arguments) -> Result<Done> {
    let mut config = arguments.allocator.config()?;
    if arguments.advise {
        return advise::run(&arguments.trace, config, &arguments.pace, arguments.repeat);
    }
    if arguments.pace.are_given() {
        let why = "--speed, --work-us and --ahead are for --advise";
        return Err(Error::InvalidArgument(why.into()));
    }
    // The rows are run as fast as they can be, so what is idle for long cannot be known.
    config.decay_ms = 0;
    let trace = csv::open(&arguments.trace)?;
    if trace.ops().is_empty() {
        return Err(Error::InvalidArgument(format!(
            "{}: no rows",
            arguments.trace.display()
        )));
    }
    let snapshot = arguments.snapshot.path()?;
    if snapshot.is_some() {
        let rows = trace.ops().len() as u64 * u64::from(repeat(arguments));
        snapshot::record(&mut config, rows, "none")?;
    }
    let device = Device::open(&config, Fallback::Fail)?;
    say(&head(arguments, &trace, &device));
    say("");
    if let Some(ratio) = arguments.cap {
        config.limit = Limit::Bytes(device.round_to_handles(((trace.peak() as f64 * ratio) as u64).max(1)));
    }
    let allocator = Allocator::with_driver(device.driver(), config)?;
    let result = passes(arguments, &trace, &device, &allocator);
    let written = snapshot.map_or(Ok(()), |path| snapshot::write(&allocator, path));
    // The pool must be closed before the streams and the context are destroyed.
    allocator.close();
    let passes = result?;
    say(&table(&passes, arguments.work));
    if snapshot.is_some() {
        say("recorded: the times include the recording");
    }
    written?;
    Ok(verdict(arguments, &trace, &device, &passes))
}

fn repeat(arguments: &Arguments) -> u32 {
    arguments.repeat.unwrap_or(1)
}

fn head(arguments: &Arguments, trace: &Trace, device: &Device) -> String {
    let streams = match trace.streams().len() {
        1 => "1 stream".to_string(),
        count => format!("{count} streams"),
    };
    let threads = match trace.threads().len() {
        0 | 1 => String::new(),
        count => format!(", {count} threads in order on one"),
    };
    format!(
        "trace   {}: {} rows, {streams}{threads}, peak in use {} MiB\ndevice  {device}",
        arguments.trace.display(),
        trace.ops().len(),
        mib(trace.peak()),
    )
}

/// Shows progress. With `--work` it also acts as an application: it uses each block on its stream, and orders streams
/// where a block is freed on another stream.
struct Watch<'a> {
    bar: ProgressBar,
    work_on: Option<&'a Device>,
    used_on: HashMap<u64, Stream>,
}

impl Observer for Watch<'_> {
    fn progress(&mut self, rows: u64) {
        self.bar.set_position(rows);
    }

    fn handed_out(&mut self, address: u64, size: u64, stream: Option<Stream>) -> Result<()> {
        let Some(device) = self.work_on else { return Ok(()) };
        device.handed_out(address, size, stream);
        if let Some(stream) = stream {
            self.used_on.insert(address, stream);
            device.work(stream, address, size)?;
        }
        Ok(())
    }

    fn resized(&mut self, old: u64, new: u64, size: u64, _: Option<Stream>) -> Result<()> {
        let Some(device) = self.work_on else { return Ok(()) };
        device.resized(old, new, size);
        if let Some(stream) = self.used_on.remove(&old) {
            self.used_on.insert(new, stream);
            device.work(stream, new, size)?;
        }
        Ok(())
    }

    fn giving_back(&mut self, address: u64, stream: Option<Stream>) -> Result<()> {
        let Some(device) = self.work_on else { return Ok(()) };
        match (self.used_on.remove(&address), stream) {
            (Some(used), Some(stream)) if used != stream => device.application().order(used, stream)?,
            _ => {}
        }
        device.giving_back(address, stream);
        Ok(())
    }
}

fn passes(arguments: &Arguments, trace: &Trace, device: &Device, allocator: &Allocator) -> Result<Vec<Pass>> {
    let streams = trace.streams().iter().map(|_| device.application().create_stream());
    let streams = streams.collect::<trtalloc::driver::Result<Vec<Stream>>>()?;
    let mut passes = Vec::new();
    for number in 1..=repeat(arguments) {
        let bar = progress::bar(trace.ops().len() as u64).with_message(format!("pass {number}"));
        let mut watch = Watch {
            bar,
            work_on: arguments.work.then_some(device),
            used_on: HashMap::new(),
        };
        let pass = replay(trace, allocator, &streams, &mut watch);
        watch.bar.finish_and_clear();
        passes.push(pass?);
        device.application().synchronize()?;
    }
    for stream in streams {
        allocator.stream_release(stream)?;
        device.application().destroy_stream(stream)?;
    }
    Ok(passes)
}

/// Formats the passes as a table. With `--work`, times are omitted since they include the queued work.
fn table(passes: &[Pass], work: bool) -> String {
    let mut table = Table::new(&[
        "pass",
        "ops",
        "ns/op",
        "peak MiB",
        "reserved MiB",
        "ratio",
        "remaps",
        "driver calls",
        "queries",
        "failures",
    ]);
    for (number, pass) in passes.iter().enumerate() {
        table.row(vec![
            (number + 1).to_string(),
            pass.ops.to_string(),
            if work {
                "-".to_string()
            } else {
                format!("{:.1}", pass.ns_per_op())
            },
            mib(pass.peak),
            mib(pass.reserved_peak),
            format!("{:.4}", pass.ratio()),
            pass.remaps.to_string(),
            pass.driver_calls.to_string(),
            pass.driver_queries.to_string(),
            pass.failures.to_string(),
        ]);
    }
    table.text()
}

/// Prints what failed.
fn verdict(arguments: &Arguments, trace: &Trace, device: &Device, passes: &[Pass]) -> Done {
    let mut faults = Vec::new();
    for (number, pass) in passes.iter().enumerate() {
        if let Some(reason) = &pass.first_failure {
            let count = pass.failures;
            faults.push(format!(
                "pass {}: {count} requests were refused, the first: {reason}",
                number + 1
            ));
        }
        if let Some(most) = arguments.max_ratio.filter(|&most| pass.ratio() > most) {
            let (reserved, peak) = (size(pass.reserved_peak), size(pass.peak));
            let ratio = pass.ratio();
            faults.push(format!(
                "pass {}: {reserved} reserved for {peak}, {ratio:.4} is above {most}",
                number + 1
            ));
        }
    }
    if let (Some(most), Some(last)) = (arguments.max_remaps, passes.last()) {
        let remaps = last.remaps_per_thousand(trace);
        if remaps > most {
            faults.push(format!(
                "the last pass remapped {remaps:.2} times for each 1,000 requests, above {most}"
            ));
        }
    }
    let violations = device.violations();
    if arguments.work && device.is_simulated() {
        say(&format!(
            "{} allocations checked, {} violations",
            device.checked(),
            violations.len()
        ));
    }
    faults.extend(violations.into_iter().take(3));
    for fault in &faults {
        say(&format!("failed: {fault}"));
    }
    if faults.is_empty() { Done::All } else { Done::NotAll }
}
