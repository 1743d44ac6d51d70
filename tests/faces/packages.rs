//! NVIDIA's libraries from PyPI. They are proprietary: installed into the build's folder when the tests run, never kept here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use crate::table::Outcome;

/// A wheel of libraries: its name, version, and the folder in it.
pub struct Package {
    pub name: &'static str,
    pub version: &'static str,
    pub folder: &'static str,
    got: OnceLock<Result<PathBuf, String>>,
}

/// One at a time: two would share pip's cache and the network.
static FETCHING: Mutex<()> = Mutex::new(());

impl Package {
    pub const fn new(name: &'static str, version: &'static str, folder: &'static str) -> Package {
        Package {
            name,
            version,
            folder,
            got: OnceLock::new(),
        }
    }

    /// The folder with its libraries, fetched where it is not there yet.
    pub fn libraries(&self) -> Result<&Path, Outcome> {
        let got = self.got.get_or_init(|| self.fetch());
        match got {
            Ok(dir) => Ok(dir),
            Err(reason) => Err(Outcome::Skipped(
                "tensorrt",
                format!("{} {}: {reason}", self.name, self.version),
            )),
        }
    }

    fn fetch(&self) -> Result<PathBuf, String> {
        let _one = FETCHING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{}", self.name, self.version));
        let libraries = dir.join(self.folder);
        if libraries.exists() {
            return Ok(libraries);
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
            "2",
            "--timeout",
            "30",
            "--target",
        ]);
        pip.arg(&partial).arg(format!("{}=={}", self.name, self.version));
        let output = pip.output().map_err(|error| format!("python3: {error}"))?;
        if !output.status.success() {
            let _ = std::fs::remove_dir_all(&partial);
            // Before its last line pip tells of each attempt.
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("pip: {}", stderr.lines().last().unwrap_or_default()));
        }
        std::fs::rename(&partial, &dir).map_err(|error| error.to_string())?;
        match libraries.exists() {
            true => Ok(libraries),
            false => Err(format!("no folder {} in it", self.folder)),
        }
    }
}
