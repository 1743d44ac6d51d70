//! Snapshots in the formats that PyTorch's viewers read, a pickle or JSON, and as an HTML page.

use std::io::Write;
use std::path::Path;

use super::History;
use super::report::Report;
use super::state::DeviceState;
use crate::support::error::{Error, Result};

mod atomic_file;
mod consistent;
mod dictionary;
mod json;
mod pickle;
mod replay;
mod segments;
mod sink;
#[cfg(test)]
mod tests;

pub use atomic_file::write as write_file;
pub(in crate::history) use dictionary::{block_streams, replayable_history, segment_stream};

/// The state of all devices and their history.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The memory of each device.
    pub devices: Vec<DeviceState>,
    /// What led to that state.
    pub history: History,
    /// Whether the pool maps memory page by page.
    pub expandable: bool,
}

/// The format of a snapshot's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A Python pickle of protocol 4.
    Pickle,
    /// JSON.
    Json,
    /// An HTML page.
    Html,
}

impl Format {
    /// The format for a path's suffix.
    pub fn of(path: &Path) -> Result<Format> {
        let suffix = path.extension().and_then(|suffix| suffix.to_str());
        Format::of_suffix(suffix.unwrap_or_default()).ok_or_else(|| {
            Error::InvalidArgument(format!(
                "{}: a snapshot's name ends in .pickle, .json or .html",
                path.display()
            ))
        })
    }

    /// The format for a suffix.
    pub fn of_suffix(suffix: &str) -> Option<Format> {
        match suffix {
            "pickle" | "pkl" => Some(Format::Pickle),
            "json" => Some(Format::Json),
            "html" => Some(Format::Html),
            _ => None,
        }
    }
}

impl Snapshot {
    /// Writes the snapshot to `path`, in the format of its suffix. An error leaves the file at `path` unchanged.
    pub fn write(&self, path: &Path) -> Result<()> {
        let format = Format::of(path)?;
        atomic_file::write(path, |out| self.write_to(out, format, title(path)))
    }

    /// Writes the snapshot to `out`. A page has a title.
    pub fn write_to(&self, out: &mut dyn Write, format: Format, title: &str) -> std::io::Result<()> {
        match format {
            Format::Pickle => dictionary::write(self, &mut pickle::Pickle::new(out)),
            Format::Json => dictionary::write(self, &mut json::Json::new(out)),
            Format::Html => Report::of(self).write(title, out),
        }
    }
}

/// The page's title for a file at `path`.
fn title(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or("snapshot")
}
