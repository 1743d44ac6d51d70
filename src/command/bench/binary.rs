//! The library's size and what preloading it costs, beside those of libraries that contain nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

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

/// The sizes of the library and of the empty ones.
pub fn size_of_library(bench: &Bench) -> Result<Vec<Row>> {
    let file_size = |path: &Path| {
        let file = std::fs::read(path).map_err(|error| io(path, error))?;
        stripped(&file).ok_or_else(|| io(path, "not an ELF library"))
    };
    let bytes = file_size(&library(bench)?)?;
    let mut rows = vec![Row::judged(
        "library, stripped",
        size(bytes),
        "at most 1.6 MiB",
        bytes <= (16 << 20) / 10,
    )];
    let empty = EmptyLibraries::compile()?;
    for (what, path) in &empty.compiled {
        rows.push(Row::printed(format!("{what}, stripped"), size(file_size(path)?)));
    }
    for (what, compiler) in &empty.missing {
        rows.push(Row::printed(*what, format!("no {compiler} on this machine")));
    }
    Ok(rows)
}

/// What preloading the library adds to a process, and what the empty ones add. Rounds go through all of them in turn, and each is
/// compared with the process without a library in the same round, so that other load on the machine affects all alike.
pub fn loading(bench: &Bench) -> Result<Vec<Row>> {
    const ROUNDS: usize = 201;
    let empty = EmptyLibraries::compile()?;
    let ours = ("library, preloading".to_owned(), library(bench)?);
    let others = empty.compiled.iter();
    let libraries: Vec<(String, PathBuf)> = [ours]
        .into_iter()
        .chain(others.map(|(what, path)| (format!("{what}, preloading"), path.clone())))
        .collect();
    let mut differences = vec![Vec::with_capacity(ROUNDS); libraries.len()];
    for _ in 0..ROUNDS {
        let without = milliseconds(None)?;
        for ((_, path), differences) in libraries.iter().zip(&mut differences) {
            differences.push(milliseconds(Some(path))? - without);
        }
    }
    let rows = libraries.iter().zip(&mut differences).enumerate();
    let rows = rows.map(|(number, ((what, _), differences))| {
        differences.sort_by(f64::total_cmp);
        let median = differences[ROUNDS / 2];
        let what = format!("{what}, median of {ROUNDS} processes");
        let measured = format!("{median:.3} ms");
        match number {
            0 => Row::time(
                what,
                measured,
                "at most 0.10 ms",
                median <= 0.10,
                !cfg!(debug_assertions),
            ),
            _ => Row::printed(what, measured),
        }
    });
    Ok(rows.collect())
}

/// The time from the start to the end of a program that does nothing.
fn milliseconds(preload: Option<&Path>) -> Result<f64> {
    let program = Path::new("/bin/true");
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stderr(Stdio::null()).env_clear();
    if let Some(library) = preload {
        let absolute = std::path::absolute(library).map_err(|error| io(library, error))?;
        if !absolute.exists() {
            return Err(io(library, "not there"));
        }
        command.env("LD_PRELOAD", absolute);
    }
    let begun = Instant::now();
    let status = command.status().map_err(|error| io(program, error))?;
    match status.success() {
        true => Ok(begun.elapsed().as_secs_f64() * 1e3),
        false => Err(io(program, status)),
    }
}

/// Libraries with one function each, in a folder that is removed at the end.
struct EmptyLibraries {
    folder: PathBuf,
    compiled: Vec<(&'static str, PathBuf)>,
    /// Those without their compiler.
    missing: Vec<(&'static str, &'static str)>,
}

impl EmptyLibraries {
    /// Compiles a library for each language whose compiler is on this machine.
    fn compile() -> Result<EmptyLibraries> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "trtalloc-empty-{}-{}",
            std::process::id(),
            MADE.fetch_add(1, Ordering::Relaxed)
        );
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).map_err(|error| io(&folder, error))?;
        let mut libraries = EmptyLibraries {
            folder,
            compiled: Vec::new(),
            missing: Vec::new(),
        };
        let c = ("nothing.c", "int nothing(void) { return 1; }\n");
        let rust = (
            "nothing.rs",
            "#[no_mangle] pub extern \"C\" fn nothing() -> i32 { 1 }\n",
        );
        libraries.add("an empty C library", c, "cc", &["-O2", "-shared", "-fPIC"])?;
        libraries.add("an empty Rust library", rust, "rustc", &["-O", "--crate-type=cdylib"])?;
        Ok(libraries)
    }

    fn add(
        &mut self,
        what: &'static str,
        source: (&str, &str),
        compiler: &'static str,
        options: &[&str],
    ) -> Result<()> {
        let file = self.folder.join(source.0);
        std::fs::write(&file, source.1).map_err(|error| io(&file, error))?;
        let library = file.with_extension(format!("{compiler}.so"));
        let mut command = Command::new(compiler);
        command.args(options).arg("-o").arg(&library).arg(&file);
        match command.stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() => self.compiled.push((what, library)),
            Ok(output) => return Err(io(&file, String::from_utf8_lossy(&output.stderr).trim())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => self.missing.push((what, compiler)),
            Err(error) => return Err(io(Path::new(compiler), error)),
        }
        Ok(())
    }
}

impl Drop for EmptyLibraries {
    fn drop(&mut self) {
        // Nothing depends on its removal.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
