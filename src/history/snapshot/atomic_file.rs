//! Writes a file without a name and gives it its name at the end, so readers never see a partial file, and a process that is
//! killed leaves none.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::error::{Error, Result};
use crate::support::process;

/// Writes through `body`, and then replaces the file at `path`. An error leaves no temporary file, and leaves the file at
/// `path` unchanged. Where the file system knows no files without a name, there is a temporary file next to `path` meanwhile.
pub fn write(path: &Path, body: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    if path.file_name().is_none() {
        return Err(failed(path, ErrorKind::InvalidInput.into()));
    }
    let written = process::without_write_signals(|| match unnamed(path) {
        Some(file) => fill(&file, body).and_then(|()| name(file, path)),
        None => through_temporary(path, body),
    });
    written.map_err(|error| failed(path, error))
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::Io(format!("{}: {error}", path.display()))
}

/// A file without a name in the folder of `path`. The kernel removes it where it gets none.
fn unnamed(path: &Path) -> Option<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE);
    // Where that fails, the attempt with a name has the reason.
    let file = options.open(folder.unwrap_or(Path::new("."))).ok()?;
    not_standard(file).ok()
}

/// The same file with a descriptor above those of stdin, stdout and stderr. Where a program has closed these, what it or the
/// log writes to them must not be in the file.
fn not_standard(file: File) -> std::io::Result<File> {
    if file.as_raw_fd() > libc::STDERR_FILENO {
        return Ok(file);
    }
    // SAFETY: duplicates an open descriptor.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1) } {
        -1 => Err(std::io::Error::last_os_error()),
        // SAFETY: a fresh descriptor, owned here alone.
        descriptor => Ok(unsafe { File::from_raw_fd(descriptor) }),
    }
}

/// Gives the file its name. A file that has the name is replaced, for which the new one has another name for a moment.
fn name(mut file: File, path: &Path) -> std::io::Result<()> {
    match link(&file, path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        // There is no /proc, for example.
        Err(_) => {
            file.rewind()?;
            return through_temporary(path, |out| std::io::copy(&mut file, out).map(drop));
        }
    }
    let temporary = loop {
        let temporary = temporary(path);
        match link(&file, &temporary) {
            Ok(()) => break temporary,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
        }
    };
    rename(&temporary, path)
}

fn link(file: &File, path: &Path) -> std::io::Result<()> {
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let (to, here) = (CString::new(path.as_os_str().as_bytes())?, libc::AT_FDCWD);
    // SAFETY: terminated paths.
    match unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), libc::AT_SYMLINK_FOLLOW) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The next name next to `path`.
fn temporary(path: &Path) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    // Short, so that the name is valid however long the name in `path` is.
    path.with_file_name(format!(".trtalloc-{}-{number}.tmp", std::process::id()))
}

fn through_temporary(path: &Path, body: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> std::io::Result<()> {
    let (file, temporary) = loop {
        let temporary = temporary(path);
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => {
                let file = not_standard(file).inspect_err(|_| _ = std::fs::remove_file(&temporary))?;
                break (file, temporary);
            }
            // A process that was killed left it: in containers, processes often have the same id.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
        }
    };
    match fill(&file, body) {
        Ok(()) => rename(&temporary, path),
        Err(error) => {
            let _ = std::fs::remove_file(&temporary);
            Err(error)
        }
    }
}

fn rename(temporary: &Path, path: &Path) -> std::io::Result<()> {
    std::fs::rename(temporary, path).inspect_err(|_| {
        let _ = std::fs::remove_file(temporary);
    })
}

fn fill(file: &File, body: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> std::io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 18, file);
    body(&mut out)?;
    out.flush()
}
