//! `--snapshot`: what was run is recorded, and written at its end.

use std::path::{Path, PathBuf};

use trtalloc::allocator::Allocator;
use trtalloc::config::Config;
use trtalloc::error::Result;
use trtalloc::record::options::{Mode, Options};
use trtalloc::record::snapshot::Format;

use super::say;

#[derive(clap::Args)]
pub struct Argument {
    /// Record everything, and write a snapshot at the end: .pickle (for PyTorch's memory viewer too), .json or .html
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
}

impl Argument {
    /// The file that was named, once it is known that it can be one.
    pub fn path(&self) -> Result<Option<&Path>> {
        let Some(path) = self.snapshot.as_deref() else {
            return Ok(None);
        };
        Format::of(path)?;
        Ok(Some(path))
    }
}

/// Has a run of about so many requests recorded, unless the options say how already.
pub fn record(config: &mut Config, requests: u64, stacks: &str) -> Result<()> {
    if config.history()?.mode != Mode::Off {
        return Ok(());
    }
    let entries = (4 * requests).clamp(100_000, Options::MAX_ENTRIES / 16);
    for (key, value) in [
        ("history", "all"),
        ("stacks", stacks),
        ("max_entries", &entries.to_string()),
    ] {
        config.set(key, value)?;
    }
    Ok(())
}

/// Writes it, and says so.
pub fn write(allocator: &Allocator, path: &Path) -> Result<()> {
    allocator.write_snapshot(path)?;
    say(&format!("snapshot  {}", path.display()));
    Ok(())
}
