//! What a snapshot says, for whoever wants to know why memory is gone: read from a file of PyTorch's or of ours, or taken
//! from a [`Snapshot`](super::snapshot::Snapshot) itself, followed event by event, and written as one page.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};

mod callers;
mod course;
mod json;
pub mod model;
mod own;
mod page;
mod pickle;
mod read;
mod refusal;
#[cfg(test)]
mod tests;
mod values;
mod walk;

pub use course::{Course, Life, Range};
pub use model::Report;
pub use refusal::Refusal;
pub use walk::Walk;

/// Bytes of a file that is read. What is in it has numbers of 32 bits.
const MOST: u64 = u32::MAX as u64;

impl Report {
    /// Reads a snapshot: a pickle, of PyTorch's or of ours, or JSON with the same dictionary. What it is, its beginning says.
    /// Nothing in it is run; what is not a snapshot is an [`Error::Io`] that says why.
    pub fn read(path: &Path) -> Result<Report> {
        let failed = |reason: &dyn std::fmt::Display| Error::Io(format!("{}: {reason}", path.display()));
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(|error| failed(&error))?;
        file.take(MOST + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| failed(&error))?;
        if bytes.len() as u64 > MOST {
            return Err(failed(&"more than 4 GiB"));
        }
        Report::of_bytes(&bytes).map_err(|fault| failed(&fault))
    }

    /// The same of what was read.
    fn of_bytes(bytes: &[u8]) -> std::result::Result<Report, pickle::Fault> {
        let (values, top) = match bytes.first() {
            None => return Err("the file is empty".into()),
            Some(0x80) => pickle::read(bytes)?,
            Some(b'<') => return Err("a page, not a snapshot; it opens in a browser".into()),
            Some(b'{' | b'[' | b' ' | b'\t' | b'\r' | b'\n') => json::read(bytes)?,
            Some(_) => return Err("neither a pickle of protocol 2 or later nor JSON".into()),
        };
        read::report(&values, top, bytes.len())
    }
}
