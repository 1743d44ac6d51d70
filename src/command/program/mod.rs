//! A program before it starts: its file, the interpreter that runs it, and whether a library can be preloaded.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

mod elf;

use elf::SANITIZED;
pub use elf::{CREATORS, Elf};

/// With this option, AddressSanitizer's runtime need not be the first library of the process. It works all the same: the
/// library has none of the names that the runtime interposes.
pub const OPTION_OF_ASAN: &str = "verify_asan_link_order=0";

/// How many nested scripts the kernel follows.
const MAX_SCRIPTS: usize = 5;

/// A program and the file that the kernel executes for it.
pub struct Program {
    /// The file.
    pub path: PathBuf,
    /// The executed file: the program itself, or the interpreter that a script names.
    pub runs: PathBuf,
    /// The executed file's contents; `None` where it cannot be read or is not an ELF file.
    pub elf: Option<Elf>,
}

impl Program {
    /// Finds the file that `execvp` would take for `name`, or the error that it would give.
    pub fn find(name: &OsStr) -> io::Result<Program> {
        let path = search(name)?;
        let mut runs = path.clone();
        for _ in 0..MAX_SCRIPTS {
            match interpreter(&runs) {
                Some(next) => runs = next,
                None => break,
            }
        }
        let elf = Elf::read(&runs);
        Ok(Program { path, runs, elf })
    }

    /// A hint where `name` was not found and the current folder, which no shell searches, has such a file; else
    /// empty.
    pub fn hint(name: &OsStr, error: &io::Error) -> String {
        let bare = error.kind() == ErrorKind::NotFound && !name.as_bytes().contains(&b'/');
        let (here, shown) = (Path::new(".").join(name), name.to_string_lossy());
        if !bare || !here.is_file() {
            return String::new();
        }
        match executable(&here) {
            Ok(()) => format!("; it is in this folder: ./{shown} names it"),
            Err(_) => format!(
                "; {shown} is in this folder, but cannot be executed: name the program that runs it first, as in python3 {shown}"
            ),
        }
    }

    /// Whether an interpreter runs it.
    pub fn is_script(&self) -> bool {
        self.path != self.runs
    }

    /// The reason why the loader would not preload a library into it; `None` where it would or where that is unknown.
    pub fn refuses(&self) -> Option<String> {
        let name = self.runs.display();
        let elf = self.elf.as_ref()?;
        if !elf.is_native() {
            return Some(format!("{name} is for another machine than libtrtalloc.so"));
        }
        let Some(loader) = elf.loader() else {
            return Some(format!("{name} is linked statically"));
        };
        if is_musl(loader) {
            return Some(format!("{name} is linked with musl, and libtrtalloc.so needs glibc"));
        }
        gains_rights(&self.runs).map(|how| format!("{name} {how}, and then the loader ignores LD_PRELOAD"))
    }

    /// Whether AddressSanitizer's runtime is one of its libraries. That refuses to start behind a preloaded library, unless
    /// ASAN_OPTIONS has [`OPTION_OF_ASAN`].
    pub fn is_sanitized(&self) -> bool {
        self.elf.as_ref().is_some_and(|elf| elf.imports(SANITIZED))
    }

    /// Whether its loader would fail on a preloaded library made for glibc.
    pub fn breaks_with_preload(&self) -> bool {
        self.elf.as_ref().and_then(Elf::loader).is_some_and(is_musl)
    }
}

fn is_musl(loader: &Path) -> bool {
    let name = loader.file_name().unwrap_or_default().as_bytes();
    name.starts_with(b"ld-musl")
}

/// How the file gains rights when it is executed; `None` where it gains none.
fn gains_rights(path: &Path) -> Option<&'static str> {
    let metadata = path.metadata().ok()?;
    let mode = metadata.mode();
    // SAFETY: these calls only return a number.
    let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
    if mode & libc::S_ISUID != 0 && metadata.uid() != user {
        return Some("is setuid");
    }
    if mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0 && metadata.gid() != group {
        return Some("is setgid");
    }
    let file = CString::new(path.as_os_str().as_bytes()).ok()?;
    let (attribute, nowhere) = (c"security.capability", std::ptr::null_mut());
    // SAFETY: terminated names, and a buffer of size 0, to which nothing is written.
    let capable = unsafe { libc::getxattr(file.as_ptr(), attribute.as_ptr(), nowhere, 0) } > 0;
    (capable && user != 0).then_some("has capabilities")
}

/// Searches as `execvp` does.
fn search(name: &OsStr) -> io::Result<PathBuf> {
    if name.is_empty() {
        return Err(io::Error::from_raw_os_error(libc::ENOENT));
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return executable(&path).map(|()| path);
    }
    let folders = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut error = io::Error::from_raw_os_error(libc::ENOENT);
    for folder in std::env::split_paths(&folders) {
        let path = match folder.as_os_str().is_empty() {
            true => Path::new(".").join(name),
            false => folder.join(name),
        };
        match executable(&path) {
            Ok(()) => return Ok(path),
            // A file that exists but may not be executed is reported if no other is found.
            Err(refused) if refused.kind() == ErrorKind::PermissionDenied => error = refused,
            Err(_) => {}
        }
    }
    Err(error)
}

fn executable(path: &Path) -> io::Result<()> {
    if path.metadata()?.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    }
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a terminated name.
    match unsafe { libc::access(name.as_ptr(), libc::X_OK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The interpreter in a script's first line. For `env`, it is the program that `env` searches for.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    File::open(path).ok()?.take(256).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
        .map(OsStr::from_bytes);
    let name = PathBuf::from(words.next()?);
    if name.file_name() != Some(OsStr::new("env")) {
        return Some(name);
    }
    let mut behind = words.filter(|word| !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'='));
    behind.next().and_then(|word| search(word).ok()).or(Some(name))
}
