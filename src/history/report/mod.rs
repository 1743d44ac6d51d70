//! Reports on a snapshot: who held memory, when, and why requests were refused.
//!
//! A report is read from a file of PyTorch or trtalloc, or made from a [`Snapshot`](super::snapshot::Snapshot). It
//! can be followed event by event, and written as an HTML page.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::support::error::{Error, Result};

mod callers;
pub mod compare;
mod cursor;
mod from_snapshot;
mod json;
pub mod model;
mod names;
mod page;
mod pickle;
mod read;
mod refusal;
#[cfg(test)]
mod tests;
mod timeline;
mod values;

pub use cursor::Cursor;
pub use model::Report;
pub(in crate::history) use names::describe;
pub use refusal::{Refusal, bytes, printed_alike};
pub use timeline::{Life, MappedRange, Timeline};

/// The maximum size of a file, in bytes. The report refers to its values by numbers of 32 bits.
const MAX_FILE: u64 = u32::MAX as u64;

impl Report {
    /// Reads a snapshot of PyTorch or trtalloc: a pickle, or JSON with the same dictionary. The file's first byte
    /// shows which. Nothing in the file is executed. If the file is not a snapshot, the [`Error::Io`] gives the
    /// reason.
    pub fn read(path: &Path) -> Result<Report> {
        let failed = |reason: &dyn std::fmt::Display| Error::Io(format!("{}: {reason}", path.display()));
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(|error| failed(&error))?;
        file.take(MAX_FILE + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| failed(&error))?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(failed(&"more than 4 GiB"));
        }
        Report::of_bytes(&bytes).map_err(|fault| failed(&fault))
    }

    /// Parses a file's content.
    fn of_bytes(bytes: &[u8]) -> std::result::Result<Report, values::Fault> {
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
