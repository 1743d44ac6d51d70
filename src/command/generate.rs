//! `trtalloc trace`: writes a generated trace, or what a program did according to a snapshot's history.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use trtalloc::error::{Error, Result};
use trtalloc::history::report::Report;
use trtalloc::history::snapshot::write_file;
use trtalloc::trace::from_history::{Recorded, from_history};
use trtalloc::trace::generate::{NAMES, generate};
use trtalloc::trace::{Trace, csv};

use super::{Done, check_stdout, remark};

#[derive(clap::Args)]
pub struct Arguments {
    /// serving, growing, varying, streams or large; or a snapshot with a history
    name: String,
    /// The file to write, compressed where its name ends in .gz; the default is stdout
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// The same seed makes the same trace [default: 1]
    #[arg(long)]
    seed: Option<u64>,
    /// The device, where a snapshot has the history of several
    #[arg(long)]
    device: Option<i32>,
}

pub fn run(arguments: &Arguments) -> Result<Done> {
    let Some(trace) = made(arguments)? else {
        let known: String = NAMES
            .iter()
            .map(|(name, what)| format!("\n  {name:8} {what}"))
            .collect();
        return Err(Error::InvalidArgument(format!(
            "no trace and no file is called {:?}; there are{known}",
            arguments.name
        )));
    };
    match &arguments.output {
        Some(path) => write(&trace, path)?,
        None => {
            check_stdout()?;
            match csv::write(&trace, BufWriter::new(std::io::stdout().lock())) {
                Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                    return Err(Error::Io(format!("stdout: {error}")));
                }
                _ => {}
            }
        }
    }
    Ok(Done::All)
}

/// The trace; `None` where neither a trace nor a file has that name.
fn made(arguments: &Arguments) -> Result<Option<Trace>> {
    let path = Path::new(&arguments.name);
    let refused = |why: &str| Err(Error::InvalidArgument(why.into()));
    if let Some(trace) = generate(&arguments.name, arguments.seed.unwrap_or(1)) {
        return match arguments.device {
            Some(_) => refused("--device is for a snapshot; a generated trace has one"),
            None => Ok(Some(trace)),
        };
    }
    if !path.exists() {
        return Ok(None);
    }
    if arguments.seed.is_some() {
        return refused("--seed is for a generated trace; a snapshot has its own");
    }
    let report = Report::read(path)?;
    let recorded = from_history(&report, arguments.device)?;
    // The trace itself may go to stdout.
    remark(&summary(&report, &recorded));
    Ok(Some(recorded.trace))
}

/// What the trace has, and what the history did not say.
fn summary(report: &Report, recorded: &Recorded) -> String {
    let trace = &recorded.trace;
    let mut text = format!(
        "device {}: {} calls on {} streams, at most {} bytes in use",
        recorded.device,
        trace.ops().len(),
        trace.streams().len(),
        trace.peak()
    );
    let dropped = report
        .recording
        .as_ref()
        .map_or(0, |recording| recording.dropped + recording.left_out);
    for (count, what) in [
        (dropped as usize, "events are missing in the history"),
        (
            recorded.before,
            "blocks are older than the history: the trace begins with them",
        ),
        (recorded.unfreed, "frees are missing in the history"),
        (recorded.refused, "refused requests are left out"),
    ] {
        if count > 0 {
            text += &format!("; {count} {what}");
        }
    }
    text
}

/// Replaces a file as a whole. What is no file on a disk, or is a link, is written to.
fn write(trace: &Trace, path: &Path) -> Result<()> {
    let pack = path.extension().is_some_and(|suffix| suffix == "gz");
    match path.symlink_metadata() {
        Ok(found) if !found.is_file() => File::create(path)
            .and_then(|file| write_to(trace, pack, BufWriter::new(file)))
            .map_err(|error| Error::Io(format!("{}: {error}", path.display()))),
        _ => write_file(path, |out| write_to(trace, pack, out)),
    }
}

fn write_to(trace: &Trace, pack: bool, mut out: impl Write) -> std::io::Result<()> {
    if pack {
        let mut packed = GzEncoder::new(&mut out, Compression::default());
        csv::write(trace, BufWriter::new(&mut packed))?;
        packed.finish()?;
        out.flush()
    } else {
        csv::write(trace, out)
    }
}
