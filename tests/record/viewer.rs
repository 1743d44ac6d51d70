//! PyTorch's own viewer, and what is to be held true of a snapshot that it opens.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::common;

/// An older and a newer `_memory_viz.py`.
const VERSIONS: [&str; 2] = ["2.6.0", "2.15.0"];

/// PyTorch's files, fetched where they are not there yet.
fn viewers() -> &'static [PathBuf] {
    static VIEWERS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    VIEWERS.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let fetched = VERSIONS.iter().filter_map(|version| {
            let file = dir.join(format!("memory_viz-{version}.py"));
            if file.exists() {
                return Some(file);
            }
            let partial = dir.join(format!("memory_viz-{version}.{}", std::process::id()));
            let script = common::root().join("tests/record/fetch.py");
            let output = Command::new("python3").arg(script).arg(version).arg(&partial).output();
            match output {
                Ok(output) if output.status.success() => {
                    std::fs::rename(&partial, &file).unwrap();
                    Some(file)
                }
                Ok(output) => {
                    let reason = String::from_utf8_lossy(&output.stderr).into_owned();
                    common::skip("torch", reason.lines().last().unwrap_or("no reason"));
                    None
                }
                Err(error) => {
                    common::skip("python3", &error.to_string());
                    None
                }
            }
        });
        fetched.collect()
    })
}

/// What a snapshot has.
pub struct Seen(String);

impl Seen {
    fn after(&self, key: &str) -> &str {
        self.0.split_once(&format!("\"{key}\": ")).map_or("", |(_, rest)| rest)
    }

    /// A number by its key; 0 where it is not there.
    pub fn number(&self, key: &str) -> u64 {
        let digits: String = self.after(key).chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    }

    /// The name of some frame that contains `part`.
    pub fn names(&self, part: &str) -> bool {
        self.after("names").split(']').next().unwrap_or_default().contains(part)
    }

    /// Whether some stack has these, innermost first and with whatever between them.
    pub fn stack(&self, parts: &[&str]) -> bool {
        self.after("stacks").split(']').any(|stack| {
            let mut rest = stack;
            parts
                .iter()
                .all(|part| rest.split_once(part).map(|(_, after)| rest = after).is_some())
        })
    }
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads a snapshot as a viewer does; what a viewer breaks on fails the test. None where there is no Python.
pub fn open(path: &Path) -> Option<Seen> {
    let script = common::root().join("tests/record/check.py");
    if Command::new("python3").arg("--version").output().is_err() {
        common::skip("python3", "not installed");
        return None;
    }
    let output = common::run(Command::new("python3").arg(script).arg(path).args(viewers()));
    Some(Seen(String::from_utf8(output.stdout).unwrap()))
}
