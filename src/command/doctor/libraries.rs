//! The installed TensorRT libraries, where a program would find them, and whether trtalloc supports their interface.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use trtalloc::ffi::tensorrt::abi::AllocatorAbi;

use super::findings::Findings;
use crate::command::Done;

/// Names under which TensorRT and TensorRT-RTX are installed, before `.so`.
const NAMES: [&str; 4] = [
    "libnvinfer",
    "libnvinfer_lean",
    "libnvinfer_dispatch",
    "libtensorrt_rtx",
];

/// The longest answer of the process that loads a library, in bytes. A pipe takes it at once.
const ANSWER: usize = 4096;

/// How long a library may take to load.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Reports the version of each library found, and whether trtalloc supports it.
pub fn all(findings: &mut Findings) {
    let found = search();
    if found.is_empty() {
        findings.found(
            "libraries",
            "none: no libnvinfer.so.N (TensorRT) and no libtensorrt_rtx.so.N (TensorRT-RTX)",
        );
        findings.advice(
            "Searched: LD_LIBRARY_PATH, the loader's cache, and the packages of python3. Where it is elsewhere, put its \
             folder into LD_LIBRARY_PATH.",
        );
    }
    for (path, place) in found {
        one(&path, findings);
        findings.found("", &format!("{} ({place})", path.display()));
    }
}

/// Reports the version of one library, which is loaded, and whether trtalloc supports it.
fn one(path: &Path, findings: &mut Findings) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match version(path) {
        Ok(version) => match AllocatorAbi::of(version) {
            Ok(_) => findings.found(&name, &format!("{}: served", in_words(version))),
            Err(_) => {
                findings.found(&name, &format!("{}: its interface is not known", in_words(version)));
                findings.advice("A newer trtalloc may know it: trtalloc_tensorrt_allocator gives NULL for it here.");
            }
        },
        Err(reason) => {
            findings.found(&name, &format!("no: {reason}"));
            findings.advice("Programs that need it cannot start either: is its package whole, and for this machine?");
        }
    }
}

/// Reports the version of one library as far as its file's name says it, and whether trtalloc supports it. The library is not
/// loaded.
pub fn named(path: &Path, findings: &mut Findings) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let file = file.file_name().unwrap_or_default().to_string_lossy();
    let Some((words, version)) = from_name(&file).or_else(|| from_name(&name)) else {
        findings.found(&name, "unknown: its name has no version");
        findings.advice("It is not loaded: without PROGRAM, the doctor loads the libraries that it finds.");
        return;
    };
    match AllocatorAbi::of(version) {
        Ok(_) => findings.found(&name, &format!("{words}, as its name says: served")),
        Err(_) => {
            findings.found(&name, &format!("{words}, as its name says: its interface is not known"));
            findings.advice("A newer trtalloc may know it: trtalloc_tensorrt_allocator gives NULL for it here.");
        }
    }
}

/// The version in a library's name in words, and its first part as a version number: `libnvinfer.so.10.16.1`.
fn from_name(file: &str) -> Option<(String, i32)> {
    let (name, version) = file.split_once(".so.")?;
    let major: i32 = version.split('.').next()?.parse().ok()?;
    let (product, unit) = match name {
        "libtensorrt_rtx" => ("TensorRT-RTX", 10_000),
        _ if major < 10 => ("TensorRT", 1000),
        _ => ("TensorRT", 10_000),
    };
    Some((format!("{product} {version}"), major.checked_mul(unit)?))
}

/// Formats a version number as TensorRT documents it.
pub fn in_words(version: i32) -> String {
    let (name, unit) = match version {
        10_000..20_000 => ("TensorRT-RTX", 10_000),
        20_000.. => ("TensorRT", 10_000),
        _ => ("TensorRT", 1000),
    };
    format!("{name} {}.{}.{}", version / unit, version % unit / 100, version % 100)
}

/// All libraries, each once, with the place where it was found.
fn search() -> Vec<(PathBuf, &'static str)> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    let mut add = |path: PathBuf, place| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if is_tensorrt(name)
            && let Ok(file) = path.canonicalize()
            && seen.insert(file)
        {
            found.push((path, place));
        }
    };
    let variable = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    for folder in std::env::split_paths(&variable).filter(|folder| !folder.as_os_str().is_empty()) {
        entries(&folder)
            .into_iter()
            .for_each(|path| add(path, "LD_LIBRARY_PATH"));
    }
    for program in ["/sbin/ldconfig", "ldconfig"] {
        let cache = output(Command::new(program).arg("-p"));
        let paths = cache.lines().filter_map(|line| line.split_once(" => "));
        paths.for_each(|(_, path)| add(path.trim().into(), "the loader's cache"));
    }
    for folder in folders_of_python() {
        for package in entries(&folder) {
            let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with("tensorrt") && package.is_dir() {
                entries(&package)
                    .into_iter()
                    .for_each(|path| add(path, "a package of python3"));
            }
        }
    }
    found
}

/// The folders in which python3 searches for packages, as it says itself.
fn folders_of_python() -> Vec<PathBuf> {
    let path = "import sys; print('\\n'.join(path for path in sys.path if path))";
    let folders = output(Command::new("python3").args(["-c", path]));
    folders.lines().map(PathBuf::from).collect()
}

/// Whether a file's name is that of a TensorRT library: `libnvinfer.so.10` and the like, but not
/// `libnvinfer_plugin.so.10`.
pub fn is_tensorrt(file: &str) -> bool {
    let Some((name, rest)) = file.split_once(".so") else {
        return false;
    };
    NAMES.contains(&name) && rest.chars().all(|c| c == '.' || c.is_ascii_digit())
}

/// The entries of a folder, sorted by name; empty where it cannot be read.
pub fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<_> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    all.sort();
    all
}

/// A program's output; empty where it cannot be run.
fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
    output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

/// The version that a library reports. A process of its own loads the library, since it may be broken, and several
/// TensorRTs in one process may conflict.
fn version(path: &Path) -> Result<i32, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(own)
        .args(["doctor", "--library"])
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            break status;
        }
        if start.elapsed() > TIMEOUT {
            // The child may have ended meanwhile; then both calls fail and nothing is lost.
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("did not load within {} seconds", TIMEOUT.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = child.stdout.take().map(answer).unwrap_or_default();
    match text.trim() {
        "" => Err(format!("loading it ends the process ({status})")),
        answer => answer.parse().map_err(|_| answer.to_owned()),
    }
}

/// What a process that has ended left in the pipe. A process that the library started may still have the pipe open.
fn answer(mut pipe: ChildStdout) -> String {
    // SAFETY: these calls take numbers only, and the descriptor is open.
    let is_set = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } == 0;
    let mut bytes = [0; ANSWER];
    // Without an answer the pipe is empty, and reading fails or has nothing.
    let read = if is_set { pipe.read(&mut bytes).unwrap_or(0) } else { 0 };
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

/// In a process of its own: loads the library and writes its version, or why there is none. What the library itself writes is
/// dropped.
pub fn print_version(library: &Path) -> Done {
    let output = drop_output();
    let version = output.as_ref().map_err(ToString::to_string);
    let version = version.and_then(|_| load_version(library));
    let text = version.as_ref().map_or_else(String::clone, i32::to_string);
    let text = &text.as_bytes()[..text.len().min(ANSWER)];
    let written = match output {
        Ok(mut output) => output.write_all(text),
        Err(_) => std::io::stdout().write_all(text),
    };
    match version.is_ok() && written.is_ok() {
        true => Done::All,
        false => Done::NotAll,
    }
}

/// Redirects this process's output to nowhere, and returns where it went before.
fn drop_output() -> std::io::Result<File> {
    let before = std::io::stdout().as_fd().try_clone_to_owned()?;
    let nowhere = File::options().write(true).open("/dev/null")?;
    // SAFETY: the call takes numbers only, and both descriptors are open.
    match unsafe { libc::dup2(nowhere.as_raw_fd(), libc::STDOUT_FILENO) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(before.into()),
    }
}

fn load_version(library: &Path) -> Result<i32, String> {
    let path = CString::new(library.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: a terminated name. The library runs its constructors and stays loaded until the process ends.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: null, or a terminated text that is valid until the thread's next call of the loader.
        let text = unsafe { libc::dlerror().as_ref().map(|text| CStr::from_ptr(text)) };
        return Err(text.map_or("cannot be loaded".into(), |text| text.to_string_lossy().into_owned()));
    }
    // SAFETY: an open library and a terminated name.
    let function = unsafe { libc::dlsym(handle, c"getInferLibVersion".as_ptr()) };
    if function.is_null() {
        return Err("reports no version: it has no getInferLibVersion".into());
    }
    // SAFETY: TensorRT's documented function of this name takes nothing and returns a 32-bit integer.
    Ok(unsafe { std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn() -> i32>(function)() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tensorrt() {
        for name in [
            "libnvinfer.so.8",
            "libnvinfer.so",
            "libnvinfer_lean.so.10.16.1",
            "libtensorrt_rtx.so.1",
        ] {
            assert!(is_tensorrt(name), "{name}");
        }
        for name in [
            "libnvinfer_plugin.so.10",
            "libnvinfer.so.10.py",
            "libnvonnxparser.so.10",
            "libnvinfer.a",
            "",
        ] {
            assert!(!is_tensorrt(name), "{name}");
        }
    }

    #[test]
    fn versions_in_words() {
        assert_eq!(in_words(8601), "TensorRT 8.6.1");
        assert_eq!(in_words(10_701), "TensorRT-RTX 1.7.1");
        assert_eq!(in_words(101_601), "TensorRT 10.16.1");
        assert_eq!(in_words(110_400), "TensorRT 11.4.0");
    }
}
