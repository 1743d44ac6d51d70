//! Writes to a temporary file and renames it, so readers never see a partial file.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::error::{Error, Result};

/// Writes through `body` to a temporary file next to `path`, and renames it to `path`. An error leaves no temporary
/// file, and leaves the file at `path` unchanged.
pub fn write(path: &Path, body: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let failed = |error: std::io::Error| Error::Io(format!("{}: {error}", path.display()));
    if path.file_name().is_none() {
        return Err(failed(ErrorKind::InvalidInput.into()));
    }
    let (file, temporary) = loop {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // Short, so that the name is valid however long the name in `path` is.
        let temporary = path.with_file_name(format!(".trtalloc-{}-{number}.tmp", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => break (file, temporary),
            // A process that was killed left it: in containers, processes often have the same id.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(failed(error)),
        }
    };
    let outcome = fill(file, body).and_then(|()| std::fs::rename(&temporary, path));
    outcome.map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        failed(error)
    })
}

fn fill(file: File, body: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> std::io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 18, file);
    body(&mut out)?;
    out.flush()
}
