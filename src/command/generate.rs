//! `trtalloc trace NAME`: writes a generated trace.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use trtalloc::error::{Error, Result};
use trtalloc::trace::generate::{NAMES, generate};
use trtalloc::trace::{Trace, csv};

use super::Done;

#[derive(clap::Args)]
pub struct Arguments {
    /// serving, growing, varying, streams or large
    name: String,
    /// The file to write, compressed where its name ends in .gz; the default is stdout
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// The same seed makes the same trace
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub fn run(arguments: &Arguments) -> Result<Done> {
    let Some(trace) = generate(&arguments.name, arguments.seed) else {
        let known: String = NAMES
            .iter()
            .map(|(name, what)| format!("\n  {name:8} {what}"))
            .collect();
        return Err(Error::InvalidArgument(format!(
            "no trace is called {:?}; there are{known}",
            arguments.name
        )));
    };
    let (written, name) = match &arguments.output {
        Some(path) => (write_file(&trace, path), path.display().to_string()),
        None => (
            csv::write(&trace, BufWriter::new(std::io::stdout().lock())),
            "stdout".into(),
        ),
    };
    written
        .map(|()| Done::All)
        .map_err(|error| Error::Io(format!("{name}: {error}")))
}

fn write_file(trace: &Trace, path: &Path) -> std::io::Result<()> {
    let file = BufWriter::new(File::create(path)?);
    if path.extension().is_some_and(|suffix| suffix == "gz") {
        let mut packed = GzEncoder::new(file, Compression::default());
        csv::write(trace, BufWriter::new(&mut packed))?;
        packed.finish()?.flush()
    } else {
        csv::write(trace, file)
    }
}
