//! PyTorch's own viewer, and what is to be held true of a snapshot that it opens.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use super as common;

/// An older and a newer `_memory_viz.py`.
const VERSIONS: [&str; 2] = ["2.6.0", "2.15.0"];

/// PyTorch's files, fetched where they are not there yet.
pub fn viewers() -> Result<&'static [PathBuf], &'static str> {
    static VIEWERS: OnceLock<Result<Vec<PathBuf>, String>> = OnceLock::new();
    let viewers = VIEWERS.get_or_init(|| {
        common::may_download()?;
        VERSIONS.iter().map(|version| fetch(version)).collect()
    });
    viewers.as_deref().map_err(String::as_str)
}

fn fetch(version: &str) -> Result<PathBuf, String> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = dir.join(format!("memory_viz-{version}.py"));
    if !file.exists() {
        let partial = dir.join(format!("memory_viz-{version}.{}", std::process::id()));
        let script = common::root().join("tests/support/common/fetch.py");
        let output = Command::new("python3").arg(script).arg(version).arg(&partial).output();
        let output = output.map_err(|error| format!("python3: {error}"))?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(reason.lines().last().unwrap_or("no reason").to_owned());
        }
        std::fs::rename(&partial, &file).unwrap();
    }
    Ok(file)
}

/// Ends the test where PyTorch's own viewer cannot be asked: `open` does without it where nothing may be downloaded.
pub fn require_pytorchs() {
    if let Err(reason) = viewers() {
        common::skip("torch", reason);
    }
}

/// What a snapshot has, as `check.py` prints it.
pub struct Seen(Value);

impl Seen {
    /// A figure, or how many events or blocks of that kind there are.
    pub fn number(&self, key: &str) -> u64 {
        let all = [&self.0, &self.0["actions"], &self.0["states"]];
        all.iter().find_map(|of| of[key].as_u64()).unwrap_or(0)
    }

    /// Whether the name of some frame contains `part`.
    pub fn names(&self, part: &str) -> bool {
        texts(&self.0["names"]).any(|name| name.contains(part))
    }

    /// Whether some stack has frames that contain these, innermost first and with whatever between them.
    pub fn stack(&self, parts: &[&str]) -> bool {
        self.0["stacks"].as_array().unwrap().iter().any(|stack| {
            let mut frames = texts(stack);
            parts.iter().all(|part| frames.any(|frame| frame.contains(part)))
        })
    }
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap())
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Reads a snapshot as a viewer does, and with PyTorch's own where it is there: what a viewer breaks on fails the test.
pub fn open(path: &Path) -> Seen {
    let script = common::root().join("tests/support/common/check.py");
    if Command::new("python3").arg("--version").output().is_err() {
        common::skip("python3", "not installed");
    }
    let viewers = viewers().unwrap_or_else(|reason| {
        assert!(!common::required("torch"), "torch is required, but: {reason}");
        &[]
    });
    let output = common::run(Command::new("python3").arg(script).arg(path).args(viewers));
    Seen(serde_json::from_slice(&output.stdout).unwrap())
}
