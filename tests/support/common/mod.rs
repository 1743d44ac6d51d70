//! What several test files need. Each uses a part of it.
#![allow(dead_code, unused_imports)]

pub mod cudasim;
pub mod exports;
pub mod harness;
pub mod headers;
pub mod installed;
pub mod packages;
pub mod simcuda;
pub mod table;
pub mod viewer;
pub mod wheel;

pub use harness::{in_full, may_download, required, skip, skip_part, slow, unsupported};

use std::io::Write;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The folder that has the libtrtalloc.so of this build.
pub fn library_dir() -> PathBuf {
    // cargo builds the library beside the test executables; the copy a folder higher may be of an earlier build.
    let executable = std::env::current_exe().unwrap();
    let dir = executable.parent().unwrap().to_owned();
    assert!(
        dir.join("libtrtalloc.so").exists(),
        "no libtrtalloc.so in {}",
        dir.display()
    );
    dir
}

/// A fresh folder for one test, in the build's own: below one of this binary and one of the caller's file or folder in it, so
/// that names need to differ only there.
#[track_caller]
pub fn scratch(name: &str) -> PathBuf {
    let caller = Path::new(std::panic::Location::caller().file());
    let mut inside = PathBuf::new();
    for part in caller
        .components()
        .skip_while(|part| part.as_os_str() != "tests")
        .skip(1)
    {
        match part {
            // A module that another binary has, too.
            Component::ParentDir => drop(inside.pop()),
            part => inside.push(part),
        }
    }
    let binary = env!("CARGO_CRATE_NAME");
    let inside = inside.strip_prefix(binary).unwrap_or(&inside);
    let area = inside
        .components()
        .next()
        .map_or("".as_ref(), |part| Path::new(part.as_os_str()));
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(binary)
        .join(area.with_extension(""))
        .join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs to the end; a failure shows everything it wrote.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// Makes an executable file with these bytes. Another process writes it. If this process wrote it, a child that another thread
/// forks meanwhile would hold it open until its own program begins, and execve would fail with ETXTBSY.
pub fn write_program(path: &Path, bytes: &[u8]) {
    let mut install = Command::new("install");
    install
        .args(["-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped());
    let mut child = install.spawn().expect("install is of coreutils");
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    assert!(child.wait().unwrap().success(), "{}", path.display());
}

/// Copies an executable file as [`write_program`] makes one.
pub fn copy_program(from: &Path, to: &Path) {
    write_program(to, &std::fs::read(from).unwrap());
}

/// Whether an emulator runs this test (`.ci/aarch64`). Then programs of the machine itself are for another processor, and
/// cannot load a library of this build.
pub fn is_emulated() -> bool {
    std::env::var_os("TRTALLOC_TEST_EMULATED").is_some()
}

/// Ends a test of `program`, which the machine brings, under an emulator.
#[track_caller]
pub fn not_emulated(program: &str) {
    if is_emulated() {
        unsupported(&format!(
            "{program} of this machine cannot load a library for {}",
            std::env::consts::ARCH
        ));
    }
}

/// The C compiler, with the warnings that headers of ours must not raise.
pub fn cc() -> Command {
    compiler("CC", "cc", "-std=c99")
}

/// The C++ compiler, likewise.
pub fn cxx() -> Command {
    compiler("CXX", "c++", "-std=c++17")
}

/// The compiler for the machine that this test runs on: the crate cc knows the same names.
fn compiler(variable: &str, usual: &str, standard: &str) -> Command {
    let of_machine = format!("{variable}_{}_unknown_linux_gnu", std::env::consts::ARCH);
    let named = [of_machine.as_str(), variable].into_iter().find_map(std::env::var_os);
    let mut command = Command::new(named.unwrap_or_else(|| usual.into()));
    command.args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    command.arg("-I").arg(root().join("include"));
    command
}

/// Adds what links a program of `dir` with the library, so that it is found at run time.
pub fn link(command: &mut Command, dir: &Path) {
    let library = library_dir().join("libtrtalloc.so");
    for name in ["libtrtalloc.so", env!("TRTALLOC_SONAME")] {
        let link = dir.join(name);
        if !link.exists() {
            std::os::unix::fs::symlink(&library, link).unwrap();
        }
    }
    command
        .arg("-L")
        .arg(dir)
        .arg("-ltrtalloc")
        .arg(format!("-Wl,-rpath,{}", dir.display()));
}
