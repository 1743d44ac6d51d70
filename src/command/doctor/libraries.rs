//! The installed TensorRT libraries, where a program would find them, and whether trtalloc supports their interface.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use trtalloc::ffi::tensorrt::abi::AllocatorAbi;

use super::findings::Findings;
use crate::command::{Done, say};

/// Names under which TensorRT and TensorRT-RTX are installed, before `.so`.
const NAMES: [&str; 4] = [
    "libnvinfer",
    "libnvinfer_lean",
    "libnvinfer_dispatch",
    "libtensorrt_rtx",
];

/// Precedes the version in the output of the process that loads a library. The library may write to the same output.
const MARK: &str = "trtalloc doctor: version ";

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

/// Reports the version of one library, and whether trtalloc supports it.
pub fn one(path: &Path, findings: &mut Findings) {
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
    for folder in folders_of_python(Path::new("python3")) {
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

/// The folders in which a Python interpreter searches for packages.
pub fn folders_of_python(python: &Path) -> Vec<PathBuf> {
    let path = "import sys; print('\\n'.join(path for path in sys.path if path))";
    let folders = output(Command::new(python).args(["-c", path]));
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
pub fn output(command: &mut Command) -> String {
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
    while child.try_wait().map_err(|error| error.to_string())?.is_none() {
        if start.elapsed() > TIMEOUT {
            // The child may have ended meanwhile; then both calls fail and nothing is lost.
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("did not load within {} seconds", TIMEOUT.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match text.lines().rev().find_map(|line| line.split_once(MARK)) {
        Some((_, answer)) => answer.trim().parse().map_err(|_| answer.trim().to_owned()),
        None => Err(format!("loading it ends the process ({})", output.status)),
    }
}

/// In a process of its own: loads the library and prints its version.
pub fn print_version(library: &Path) -> Done {
    match load_version(library) {
        Ok(version) => {
            say(&format!("{MARK}{version}"));
            Done::All
        }
        Err(reason) => {
            say(&format!("{MARK}{reason}"));
            Done::NotAll
        }
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
