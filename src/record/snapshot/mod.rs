//! A snapshot as PyTorch's viewers read it: the same dictionary, as a pickle or as JSON; or as a page of our own.

use std::path::Path;

use super::History;
use super::report::Report;
use super::state::Device;
use crate::error::{Error, Result};

mod consistent;
mod dictionary;
mod file;
mod json;
mod pickle;
mod replay;
mod segments;
mod sink;
#[cfg(test)]
mod tests;

pub(super) use dictionary::told;
pub use file::for_process;
pub(super) use file::write as write_file;

/// What a snapshot says.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// What each device's memory is.
    pub devices: Vec<Device>,
    /// How it came to be so.
    pub history: History,
    /// Whether memory is mapped page by page.
    pub expandable: bool,
}

/// How a snapshot is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A Python pickle of protocol 4.
    Pickle,
    /// JSON.
    Json,
    /// A page for a browser.
    Html,
}

impl Format {
    /// The format that a path's suffix names.
    pub fn of(path: &Path) -> Result<Format> {
        match path.extension().and_then(|suffix| suffix.to_str()) {
            Some("pickle" | "pkl") => Ok(Format::Pickle),
            Some("json") => Ok(Format::Json),
            Some("html") => Ok(Format::Html),
            _ => Err(Error::InvalidArgument(format!(
                "{}: a snapshot's name ends in .pickle, .json or .html",
                path.display()
            ))),
        }
    }
}

impl Snapshot {
    /// Writes the snapshot to `path`, in the format of its suffix. The file appears when it is whole; on an error there is
    /// none, or the one that was there before.
    pub fn write(&self, path: &Path) -> Result<()> {
        let format = Format::of(path)?;
        file::write(path, |out| match format {
            Format::Pickle => dictionary::write(self, &mut pickle::Pickle::new(out)),
            Format::Json => dictionary::write(self, &mut json::Json::new(out)),
            Format::Html => Report::of(self).write(title(path), out),
        })
    }
}

/// What a page of that name is called.
fn title(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or("snapshot")
}
