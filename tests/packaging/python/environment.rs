//! Virtual environments, pip, hatchling and pytest: what the package is built, installed and tested with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex};

use crate::common;

pub const PYTEST: &str = "pytest==8.4.1";
pub const NUMPY: &str = "numpy==2.2.6";
/// Later ones (from 2.0 on) do not check for Python 3.9.
pub const MYPY: &str = "mypy==1.18.2";
/// What the wheel is built with.
const HATCHLING: &str = "hatchling==1.27.0";

/// One at a time: two would share pip's cache and the network.
static PIP: Mutex<()> = Mutex::new(());

/// Runs pip; what it says last where it fails.
pub fn pip(python: &Path, arguments: &[&str]) -> Result<(), String> {
    let _one = PIP.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]);
    pip.args(["--retries", "5", "--timeout", "60"]);
    pip.args(arguments)
        .env("TRTALLOC_LIBRARY", common::library_dir().join("libtrtalloc.so"));
    let output = pip.output().map_err(|error| format!("{}: {error}", python.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!("pip {arguments:?}: {}", stderr.trim_end()))
}

/// A virtual environment in `dir`; its Python.
pub fn environment(dir: &Path) -> Result<PathBuf, String> {
    let output = Command::new("python3").args(["-m", "venv"]).arg(dir).output();
    let output = output.map_err(|error| format!("python3: {error}"))?;
    let python = dir.join("bin/python");
    match output.status.success() && python.exists() {
        true => Ok(python),
        false => Err(format!(
            "python3 -m venv: {}",
            String::from_utf8_lossy(&output.stdout).trim_end()
        )),
    }
}

/// The only file of that kind in a folder.
pub fn file_in(folder: &Path, suffix: &str) -> PathBuf {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut found = paths.filter(|path| path.extension().is_some_and(|extension| extension == suffix));
    let file = found.next().expect("a file was written");
    assert_eq!(found.next(), None, "beside {}", file.display());
    file
}

/// The Python that builds the wheel, with hatchling.
pub fn builder() -> Result<&'static PathBuf, String> {
    static BUILDER: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
        common::may_download()?;
        let python = environment(&common::scratch("python_builder").join("environment"))?;
        pip(&python, &["install", HATCHLING])?;
        Ok(python)
    });
    BUILDER.as_ref().map_err(String::clone)
}

/// The wheel of `source`, with the library of this build.
pub fn wheel_of(builder: &Path, source: &Path, folder: &Path) -> PathBuf {
    let (to, source) = (folder.to_str().unwrap(), source.to_str().unwrap());
    let offline = ["wheel", "--no-deps", "--no-index", "--no-build-isolation"];
    pip(builder, &[&offline[..], &["-w", to, source]].concat()).unwrap();
    file_in(folder, "whl")
}

/// The wheel of the checkout; an error where there is nothing to build it with.
pub fn wheel(folder: &Path) -> Result<PathBuf, String> {
    Ok(wheel_of(builder()?, &common::root().join("python"), folder))
}

/// Runs the package's tests of those files, without the caller's options and outside the checkout's own package.
pub fn pytest(python: &Path, files: &[&str], variables: &[(&str, &str)]) {
    let tests = common::root().join("python/tests");
    let mut command = Command::new(python);
    command.args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]);
    command.args(files.iter().map(|file| tests.join(file)));
    command
        .current_dir(python.parent().unwrap())
        .env("PYTHONDONTWRITEBYTECODE", "1");
    for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("TRTALLOC_")) {
        command.env_remove(key);
    }
    let output = common::run(command.envs(variables.iter().copied()));
    println!("{}", String::from_utf8_lossy(&output.stdout));
}
