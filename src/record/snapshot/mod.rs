//! A snapshot as PyTorch's viewers read it: the same dictionary, as a pickle or as JSON.

use std::path::Path;

use super::History;
use super::state::Device;
use crate::error::{Error, Result};

mod consistent;
mod dictionary;
mod file;
mod json;
mod pickle;
mod sink;

pub use file::for_process;

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
}

impl Format {
    /// The format that a path's suffix names.
    pub fn of(path: &Path) -> Result<Format> {
        match path.extension().and_then(|suffix| suffix.to_str()) {
            Some("pickle" | "pkl") => Ok(Format::Pickle),
            Some("json") => Ok(Format::Json),
            Some("html") => Err(Error::Unsupported(
                "a snapshot as .html comes with a later version".into(),
            )),
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
        })
    }
}
