//! `trtalloc bench`: measures the project's targets on this machine.

mod beside;
mod binary;
mod driver;
mod fill;
mod history;
mod longest;
mod machine;
mod many;
mod memory;
mod pairs;
mod serve;
mod time;

use std::path::PathBuf;
use std::sync::Arc;

use trtalloc::allocator::Allocator;
use trtalloc::config::Config;
use trtalloc::driver::Stream;
use trtalloc::error::{Error, Result};
use trtalloc::ffi::ExportedAllocator;
use trtalloc::ffi::tensorrt::client::Client;

use super::device::{Device, Fallback};
use super::table::Table;
use super::{AllocatorArguments, Done, say};

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    other: Option<Other>,
    #[command(flatten)]
    allocator: AllocatorArguments,
    /// How many pairs to time for each figure
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(5..))]
    pairs: u64,
    /// Traces to replay in addition to the generated ones
    traces: Vec<PathBuf>,
    /// The library to measure; the default is the one in this command's folder
    #[arg(long)]
    library: Option<PathBuf>,
    /// Measure only the groups whose name contains this, as `library` or `history`
    #[arg(long, value_name = "WORD", default_value = "")]
    only: String,
}

/// A measurement of its own.
#[derive(clap::Subcommand)]
enum Other {
    /// Measures what the allocator costs a server on the simulated device: memory calls, device time, memory, waits
    Serve(serve::Arguments),
}

/// How a figure compares with its target.
enum Verdict {
    Met,
    Missed,
    /// A time that cannot be compared with its target here: see [`Bench::judges_times`].
    NotJudged,
    /// There is no target.
    Printed,
    NotMeasured,
}

/// A figure in the table.
struct Row {
    what: String,
    measured: String,
    target: String,
    verdict: Verdict,
}

impl Row {
    fn judged(what: impl Into<String>, measured: String, target: &str, met: bool) -> Row {
        let verdict = if met { Verdict::Met } else { Verdict::Missed };
        Row {
            what: what.into(),
            measured,
            target: target.into(),
            verdict,
        }
    }

    fn printed(what: impl Into<String>, measured: String) -> Row {
        Row {
            what: what.into(),
            measured,
            target: String::new(),
            verdict: Verdict::Printed,
        }
    }

    /// A time, compared with its target only if `judge` is true.
    fn time(what: impl Into<String>, measured: String, target: &str, met: bool, judge: bool) -> Row {
        let mut row = Row::judged(what, measured, target, met);
        if !judge {
            row.verdict = Verdict::NotJudged;
        }
        row
    }

    fn cells(self) -> Vec<String> {
        let verdict = match self.verdict {
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::NotJudged => "not judged here",
            Verdict::Printed => "",
            Verdict::NotMeasured => "NOT MEASURED",
        };
        vec![self.what, self.measured, self.target, verdict.into()]
    }
}

/// What all measurements share.
struct Bench<'a> {
    device: Device,
    config: Config,
    arguments: &'a Arguments,
}

pub fn run(arguments: &Arguments) -> Result<Done> {
    if let Some(Other::Serve(arguments)) = &arguments.other {
        return serve::run(arguments);
    }
    let config = arguments.allocator.config()?;
    let bench = Bench {
        device: Device::open(&config, Fallback::Simulate)?,
        config,
        arguments,
    };
    bench.device.check_order(false);
    type Measurement<'a> = (&'a str, &'a dyn Fn(&Bench) -> Result<Vec<Row>>);
    let measurements: [Measurement; 20] = [
        ("pairs", &pairs::pairs),
        ("pairs with a name", &pairs::named),
        ("pairs with control and share_budget", &pairs::controlled),
        ("pairs on one stream", &pairs::on_one_stream),
        ("blocks passed on", &pairs::passed),
        ("the driver's own pairs", &driver::pairs),
        ("misses", &time::misses),
        ("longest calls", &longest::longest),
        ("small requests beside engines", &beside::engines),
        ("small requests beside decay and trims", &beside::returns),
        ("driver calls of a pair", &pairs::driver_calls),
        ("many streams in turn", &many::pairs),
        ("event queries of many streams", &many::queries),
        ("filling", &fill::fill),
        ("traces", &memory::traces),
        ("resizing", &time::resizes),
        ("history", &history::history),
        ("warming up", &time::warm_up),
        ("the library's size", &binary::size_of_library),
        ("loading the library", &binary::loading),
    ];
    let chosen: Vec<_> = measurements
        .iter()
        .filter(|(what, _)| what.contains(&arguments.only))
        .collect();
    if chosen.is_empty() {
        let names: Vec<&str> = measurements.iter().map(|(what, _)| *what).collect();
        return Err(Error::InvalidArgument(format!(
            "--only {}: no group's name contains that; they are: {}",
            arguments.only,
            names.join(", ")
        )));
    }
    say(&format!("machine  {}", machine::name()));
    say(&format!("device   {}", bench.device));
    if bench.device.is_simulated() {
        say("         a simulation: its calls cost next to nothing, so times are the allocator's own work;");
        say("         of one thread, its processor time; of several, wall-clock time");
    }
    if cfg!(debug_assertions) {
        say("build    not optimized: its times mean nothing");
    }
    say("pair     allocateAsync and deallocateAsync on one stream, through the C++ vtable\n");
    let mut table = Table::words(&["what", "measured", "target", ""]);
    let mut done = Done::All;
    for (what, measure) in chosen {
        let rows = measure(&bench).unwrap_or_else(|error| {
            done = Done::NotAll;
            vec![Row {
                what: (*what).into(),
                measured: error.to_string(),
                target: String::new(),
                verdict: Verdict::NotMeasured,
            }]
        });
        rows.into_iter().for_each(|row| table.row(row.cells()));
    }
    say(&table.text());
    Ok(done)
}

impl Bench<'_> {
    /// Whether times are compared with their targets. The targets are for the allocator's own work, so they need a
    /// driver whose calls cost next to nothing. On a GPU times are only printed.
    fn judges_times(&self) -> bool {
        self.device.is_simulated() && !cfg!(debug_assertions)
    }

    /// Runs `body` on a fresh allocator with so many streams, then closes the allocator and destroys the streams.
    fn fresh<T>(
        &self,
        change: impl FnOnce(&mut Config),
        streams: usize,
        body: impl FnOnce(&Arc<Allocator>, Client, &[Stream]) -> Result<T>,
    ) -> Result<T> {
        let mut config = self.config.clone();
        // Every run makes the same calls.
        config.decay_ms = 0;
        change(&mut config);
        let allocator = Allocator::with_driver(self.device.driver(), config)?;
        let application = self.device.application();
        let streams = (0..streams).map(|_| application.create_stream());
        let streams = streams.collect::<trtalloc::driver::Result<Vec<Stream>>>()?;
        let result = Client::new(ExportedAllocator::new(allocator.clone()))
            .and_then(|client| body(&allocator, client, &streams));
        // Trusted streams outlive the allocator.
        allocator.close();
        for stream in streams {
            application.destroy_stream(stream)?;
        }
        result
    }
}
