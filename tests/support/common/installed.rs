//! The package as CMake builds and installs it, for the tests of a binary together.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use super::table::Outcome;
use super::{root, run, scratch, slow};

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

/// Removes what cargo built of other sources than those at `root`. A cdylib's file has the same name for every version, so cargo
/// would take the other one's for its own where it has built both before.
fn leave_no_other_sources_library(root: &Path, target: &Path) {
    let note = target.join("built-from");
    let from = root.to_string_lossy();
    if std::fs::read_to_string(&note).is_ok_and(|built| built == from) {
        return;
    }
    if target.exists() {
        let mut clean = Command::new(env!("CARGO"));
        clean.args([
            "clean",
            "--quiet",
            "--offline",
            "--package",
            "trtalloc",
            "--manifest-path",
        ]);
        run(clean.arg(root.join("Cargo.toml")).arg("--target-dir").arg(target));
    }
    std::fs::create_dir_all(target).unwrap();
    std::fs::write(note, from.as_bytes()).unwrap();
}

/// Configures and builds the package of the sources at `root` in `dir`/build.
pub fn build_package(root: &Path, dir: &Path, prefix: &Path) {
    compiles_the_crate();
    // What cargo made is copied after cargo has let go of its folder.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let build = dir.join("build");
    leave_no_other_sources_library(root, &cargo_target("package"));
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(root.join("cmake")).arg("-B").arg(&build);
    configure.args([
        define("CMAKE_INSTALL_PREFIX", prefix),
        define("CARGO", Path::new(env!("CARGO"))),
        define("TRTALLOC_CARGO_TARGET_DIR", &cargo_target("package")),
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
        build_package(root(), &dir, Path::new("/usr/local"));
        let mut install = Command::new("cmake");
        run(install
            .arg("--install")
            .arg(dir.join("build"))
            .arg("--prefix")
            .arg(&prefix));
        prefix
    }))
}
