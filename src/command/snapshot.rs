//! `--snapshot`: records a run and writes a snapshot at its end.

use std::path::{Path, PathBuf};

use trtalloc::allocator::Allocator;
use trtalloc::config::Config;
use trtalloc::config::history::{RecordingMode, RecordingOptions};
use trtalloc::error::Result;
use trtalloc::history::snapshot::Format;

use super::say;

#[derive(clap::Args)]
pub struct Argument {
    /// Record everything, and write a snapshot at the end: .pickle (for PyTorch's memory viewer too), .json or .html
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
}

impl Argument {
    /// The file that was named, if its suffix names a format.
    pub fn path(&self) -> Result<Option<&Path>> {
        let Some(path) = self.snapshot.as_deref() else {
            return Ok(None);
        };
        Format::of(path)?;
        Ok(Some(path))
    }
}

/// Enables recording for about this many requests, unless the options configure it already.
pub fn record(config: &mut Config, requests: u64, stacks: &str) -> Result<()> {
    if config.history()?.mode != RecordingMode::Off {
        return Ok(());
    }
    let entries = (4 * requests).clamp(100_000, RecordingOptions::MAX_ENTRIES / 16);
    for (key, value) in [
        ("history", "all"),
        ("stacks", stacks),
        ("max_entries", &entries.to_string()),
    ] {
        config.set(key, value)?;
    }
    Ok(())
}

/// Writes the snapshot and prints its path.
pub fn write(allocator: &Allocator, path: &Path) -> Result<()> {
    allocator.write_snapshot(path)?;
    say(&format!("snapshot  {}", path.display()));
    Ok(())
}
