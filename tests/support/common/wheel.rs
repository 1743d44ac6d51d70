//! Packages from PyPI. What is fetched belongs to others: it is unpacked into the build's folder when it is needed, and
//! never kept here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// One at a time: two would share pip's cache and the network.
static FETCHING: Mutex<()> = Mutex::new(());

/// The folder that a wheel of that name and version is unpacked in, fetched where it is not there yet; why not, where
/// nothing may be downloaded.
pub fn fetch(name: &str, version: &str) -> Result<PathBuf, String> {
    super::may_download()?;
    fetch_unasked(name, version)
}

/// The same for a program that the user started with a request for the wheel.
pub fn fetch_unasked(name: &str, version: &str) -> Result<PathBuf, String> {
    let _one = FETCHING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{version}"));
    if dir.exists() {
        return Ok(dir);
    }
    // Moved into place when it is whole, so that one that was broken off is fetched again.
    let partial = dir.with_extension(format!("partial-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&partial);
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
    ]);
    pip.args([
        "--no-deps",
        "--no-compile",
        "--retries",
        "5",
        "--timeout",
        "60",
        "--target",
    ]);
    pip.arg(&partial).arg(format!("{name}=={version}"));
    let output = pip.output().map_err(|error| format!("python3: {error}"))?;
    if !output.status.success() {
        let _ = std::fs::remove_dir_all(&partial);
        // Before its last line pip tells of each attempt.
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("pip: {}", stderr.lines().last().unwrap_or_default()));
    }
    match std::fs::rename(&partial, &dir) {
        // Another process was faster.
        Err(_) if dir.exists() => {
            let _ = std::fs::remove_dir_all(&partial);
            Ok(dir)
        }
        moved => moved.map(|()| dir).map_err(|error| error.to_string()),
    }
}
