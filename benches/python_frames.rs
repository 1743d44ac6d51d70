//! What frames of Python add to an event, with the interpreter's lock and without it, for each CPython from 3.9 to 3.13 that
//! pyenv has installed, or else for `python3`.
//!
//! `cargo bench --bench python_frames [ROUNDS]`. Each round takes a thousand pairs with stacks and a thousand without, so
//! that other load on the machine affects both.

use std::path::{Path, PathBuf};
use std::process::Command;

fn interpreters() -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pyenv"));
    let root = std::env::var_os("PYENV_ROOT").map(PathBuf::from).or(home);
    let versions = root.map(|root| root.join("versions"));
    let installed = |minor: u32| {
        let entries = versions.iter().flat_map(std::fs::read_dir).flatten().flatten();
        let of_version =
            entries.filter(move |entry| entry.file_name().to_string_lossy().starts_with(&format!("3.{minor}.")));
        let python = of_version
            .map(|entry| entry.path().join("bin/python3"))
            .find(|path| path.exists());
        python.into_iter().collect::<Vec<_>>()
    };
    let found: Vec<PathBuf> = (9..=13).flat_map(installed).collect();
    if found.is_empty() {
        vec!["python3".into()]
    } else {
        found
    }
}

/// The rounds' nanoseconds, sorted.
fn measure(python: &Path, library: &Path, depth: u32, way: &str, rounds: u32) -> Option<Vec<f64>> {
    let mut command = Command::new(python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/python_frames.py"));
    command
        .arg(library)
        .args([&depth.to_string(), way, &rounds.to_string()]);
    let output = command.output().ok()?;
    if !output.status.success() {
        eprintln!("{}: {}", python.display(), String::from_utf8_lossy(&output.stderr));
        return None;
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut rounds: Vec<f64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    rounds.sort_by(f64::total_cmp);
    (!rounds.is_empty()).then_some(rounds)
}

fn main() {
    // cargo's own arguments begin with dashes. As a test, two rounds are enough.
    let given = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    let rounds: u32 = given.unwrap_or(if is_measured { 41 } else { 2 });
    let library = std::env::current_exe().unwrap().with_file_name("libtrtalloc.so");
    assert!(library.exists(), "no {}", library.display());
    println!("| Python | frames | with the lock | without it | without it, functions met with it before |");
    println!("|---|---|---|---|---|");
    for python in interpreters() {
        let version = Command::new(&python)
            .args(["-c", "import platform; print(platform.python_version())"])
            .output();
        let Ok(version) = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()) else {
            println!("no python3");
            return;
        };
        for depth in [5, 30] {
            let cells: Vec<String> = ["held", "released", "met"]
                .iter()
                .map(|way| match measure(&python, &library, depth, way, rounds) {
                    Some(rounds) => {
                        let at = |part: usize| rounds[(rounds.len() - 1) * part / 4];
                        format!("{:.0} ns ({:.0} – {:.0})", at(2), at(1), at(3))
                    }
                    None => "failed".to_owned(),
                })
                .collect();
            println!("| {version} | {depth} | {} |", cells.join(" | "));
        }
    }
}
