//! The package as CMake builds and installs it, for the tests of a binary together.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::table::Outcome;
use super::{library_dir, root, run, scratch, slow, write_program};

/// Whether a tool is there, or else what to say of it.
pub fn tool(name: &'static str) -> Result<(), Outcome> {
    let there = Command::new(name).arg("--version").output();
    match there.is_ok_and(|output| output.status.success()) {
        true => Ok(()),
        false => Err(Outcome::Skipped(name, format!("no {name}"))),
    }
}

pub fn define(key: &str, value: &Path) -> String {
    format!("-D{key}={}", value.display())
}

/// Where cargo builds for `user`: a folder of its own, for cargo gives the library one name whatever it is built for, and
/// what tests that run at the same time use must not be written over. It is kept, so that a second run has little to do.
pub fn cargo_target(user: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cargo-{user}"))
}

/// Ends a test that compiles the crate in a folder of its own, unless tests are done in full.
pub fn compiles_the_crate() {
    slow("it compiles the crate once more");
}

/// A program in cargo's place, in `dir`: it copies this build's library and command to where cargo would have built them.
pub fn copying_cargo(dir: &Path) -> PathBuf {
    let script = format!(
        "#!/bin/sh\nset -e\nwhile [ \"$1\" != --target-dir ]; do shift; done\nmkdir -p \"$2/debug\"\ncp '{}' '{}' \"$2/debug\"\n",
        library_dir().join("libtrtalloc.so").display(),
        env!("CARGO_BIN_EXE_trtalloc")
    );
    let program = dir.join("cargo");
    write_program(&program, script.as_bytes());
    program
}

/// Configures and builds the package in `dir`/build, of what this build has.
pub fn build_package(dir: &Path, prefix: &Path) {
    slow("it builds and installs with CMake");
    std::fs::create_dir_all(dir).unwrap();
    build_with(&copying_cargo(dir), root(), dir, &dir.join("cargo-target"), prefix);
}

/// As [`build_package`], of the sources at `root`, which cargo compiles.
pub fn build_package_of(root: &Path, dir: &Path, prefix: &Path) {
    compiles_the_crate();
    build_with(Path::new(env!("CARGO")), root, dir, &cargo_target("package"), prefix);
}

fn build_with(cargo: &Path, root: &Path, dir: &Path, target: &Path, prefix: &Path) {
    let build = dir.join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(root.join("cmake")).arg("-B").arg(&build);
    configure.args([
        define("CMAKE_INSTALL_PREFIX", prefix),
        define("CARGO", cargo),
        define("TRTALLOC_CARGO_TARGET_DIR", target),
        "-DTRTALLOC_PROFILE=dev".to_owned(),
    ]);
    run(&mut configure);
    run(Command::new("cmake").arg("--build").arg(&build));
}

/// The prefix under which the package is installed, once for all tests.
pub fn prefix() -> Result<&'static Path, Outcome> {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    tool("cmake")?;
    Ok(PREFIX.get_or_init(|| {
        let dir = scratch("compat_package");
        let prefix = dir.join("prefix");
        // Installed elsewhere than it was configured for, as `--prefix` does.
        build_package(&dir, Path::new("/usr/local"));
        let mut install = Command::new("cmake");
        run(install
            .arg("--install")
            .arg(dir.join("build"))
            .arg("--prefix")
            .arg(&prefix));
        prefix
    }))
}
