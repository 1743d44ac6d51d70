//! The cost of preloading the library into programs that do not use TensorRT, from start to end, compared with an
//! empty library and with one that needs the system's C++ runtime.
//!
//! `cargo bench --bench preload [ROUNDS]`. Rounds alternate between all programs and libraries, so that other load on
//! the machine affects all of them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The programs, in order of their running time.
fn programs() -> Vec<Vec<String>> {
    let mut programs: Vec<Vec<String>> = ["true", "sh -c :", "bash -c :", "git --version"]
        .map(|line| line.split(' ').map(str::to_owned).collect())
        .into();
    // The interpreter's own path: the name may lead to a script that starts it.
    let find = Command::new("python3")
        .args(["-c", "import sys; print(sys.executable)"])
        .output();
    if let Ok(path) = find.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()) {
        programs.push([&path, "-S", "-c", "pass"].map(str::to_owned).into());
    }
    programs.retain(|program| time(program, None).is_some());
    programs
}

/// Compiles a library from source; `None` where there is no compiler.
fn library(name: &str, source: &str) -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("preload");
    std::fs::create_dir_all(&dir).ok()?;
    let (file, library) = (dir.join(format!("{name}.cpp")), dir.join(format!("lib{name}.so")));
    std::fs::write(&file, source).ok()?;
    let mut compile = Command::new("c++");
    compile
        .args(["-O2", "-shared", "-fPIC", "-Wl,--no-as-needed"])
        .arg(file)
        .arg("-o")
        .arg(&library);
    if name == "empty" {
        compile.arg("-nostdlib");
    }
    compile.status().is_ok_and(|status| status.success()).then_some(library)
}

/// The time from the program's start to its end.
fn time(program: &[String], preload: Option<&Path>) -> Option<Duration> {
    let mut command = Command::new(&program[0]);
    command
        .args(&program[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .env_remove("LD_PRELOAD");
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let begun = Instant::now();
    let status = command.status().ok()?;
    status.success().then(|| begun.elapsed())
}

fn main() {
    // cargo's own arguments begin with dashes. As a test, two rounds are enough.
    let given = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let rounds: usize = given.unwrap_or(if std::env::args().any(|argument| argument == "--bench") {
        301
    } else {
        2
    });
    let ours = std::env::current_exe().unwrap().with_file_name("libtrtalloc.so");
    assert!(ours.exists(), "no {}", ours.display());
    let programs = programs();
    let ways = [
        ("without", None),
        (
            "an empty library",
            library("empty", "extern \"C\" int nothing_of_note() { return 1; }\n"),
        ),
        ("trtalloc", Some(ours)),
        (
            "one that needs libstdc++",
            library("runtime", "#include <iostream>\nvoid say() { std::cout << 1; }\n"),
        ),
    ];
    let mut times = vec![vec![Vec::with_capacity(rounds); ways.len()]; programs.len()];
    for _ in 0..rounds {
        for (program, times) in programs.iter().zip(&mut times) {
            for ((way, library), times) in ways.iter().zip(times) {
                if *way == "without" || library.is_some() {
                    times.push(time(program, library.as_deref()).expect("it ran before"));
                }
            }
        }
    }
    let microseconds = |time: Duration| time.as_nanos() as f64 / 1e3;
    println!("from start to end, microseconds of {rounds}; in brackets what it is above that without");
    for (program, times) in programs.iter().zip(&mut times) {
        println!("\n{}", program.join(" "));
        let mut without = None;
        for ((way, _), times) in ways.iter().zip(times) {
            times.sort();
            let (Some(lowest), Some(median)) = (times.first(), times.get(times.len() / 2)) else {
                println!("  {way:<26} not measured: no C++ compiler");
                continue;
            };
            let now = [*lowest, *median].map(microseconds);
            let [lowest, median] = *without.get_or_insert(now);
            println!(
                "  {way:<26} lowest {:>6.0} ({:>+5.0})  median {:>6.0} ({:>+5.0})",
                now[0],
                now[0] - lowest,
                now[1],
                now[1] - median
            );
        }
    }
}
