//! The library's size, and what loading it costs.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use trtalloc::error::{Error, Result};

use super::super::table::size;
use super::{Bench, Row};

fn io(what: &Path, error: impl std::fmt::Display) -> Error {
    Error::Io(format!("{}: {error}", what.display()))
}

/// The library that `--library` names, or the one in this command's folder.
fn library(bench: &Bench) -> Result<PathBuf> {
    if let Some(path) = &bench.arguments.library {
        return Ok(path.clone());
    }
    let command = std::env::current_exe().map_err(|error| io(Path::new("this command"), error))?;
    let path = command.with_file_name("libtrtalloc.so");
    match path.exists() {
        true => Ok(path),
        false => Err(io(&path, "not there; --library names another")),
    }
}

/// The size after stripping: the file up to the end of its loaded segments. Symbols, line tables and section headers
/// follow them.
fn stripped(file: &[u8]) -> Option<u64> {
    let bytes = |at: usize, count: usize| -> Option<u64> {
        let field = file.get(at..at.checked_add(count)?)?;
        Some(field.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    };
    const LOAD: u64 = 1;
    const LITTLE_ENDIAN_64: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
    if !file.starts_with(&LITTLE_ENDIAN_64) {
        return None;
    }
    let (table, entry, count) = (bytes(32, 8)? as usize, bytes(54, 2)? as usize, bytes(56, 2)? as usize);
    let mut end = 0;
    for header in (0..count).map(|number| table + number * entry) {
        if bytes(header, 4)? == LOAD {
            end = end.max(bytes(header + 8, 8)?.checked_add(bytes(header + 32, 8)?)?);
        }
    }
    Some(end)
}

/// The library's size after stripping.
pub fn size_of_library(bench: &Bench) -> Result<Vec<Row>> {
    let path = library(bench)?;
    let file = std::fs::read(&path).map_err(|error| io(&path, error))?;
    let bytes = stripped(&file).ok_or_else(|| io(&path, "not an ELF library"))?;
    Ok(vec![Row::judged(
        "library, stripped",
        size(bytes),
        "at most 2 MiB",
        bytes <= 2 << 20,
    )])
}

/// The time to load the library, measured in a new process each time.
pub fn loading(bench: &Bench) -> Result<Vec<Row>> {
    const PROCESSES: usize = 31;
    let path = library(bench)?;
    let command = std::env::current_exe().map_err(|error| io(Path::new("this command"), error))?;
    let mut times = Vec::new();
    for _ in 0..PROCESSES {
        let child = Command::new(&command)
            .args(["bench", "--time-load"])
            .arg(&path)
            .output();
        let child = child.map_err(|error| io(&command, error))?;
        let nanoseconds = String::from_utf8_lossy(&child.stdout).trim().parse::<u64>();
        times.push(nanoseconds.map_err(|_| io(&path, String::from_utf8_lossy(&child.stderr).trim()))?);
    }
    times.sort();
    let middle = times[PROCESSES / 2] as f64 / 1e6;
    Ok(vec![Row::time(
        format!("library, loading, median of {PROCESSES} processes"),
        format!("{middle:.3} ms"),
        "below 0.2 ms",
        middle < 0.2,
        !cfg!(debug_assertions),
    )])
}

/// Loads a library and returns how long that took.
pub fn load(path: &Path) -> Result<Duration> {
    // The loader would search for a name without a slash.
    let absolute = std::path::absolute(path).map_err(|error| io(path, error))?;
    let name = CString::new(absolute.as_os_str().as_bytes()).map_err(|error| io(path, error))?;
    let begun = Instant::now();
    // SAFETY: a terminated name. The caller chose the library, whose constructors run.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    let time = begun.elapsed();
    if library.is_null() {
        return Err(io(path, "cannot be loaded"));
    }
    Ok(time)
}
