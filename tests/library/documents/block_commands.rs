//! The documents' commands. Our own are run, or where they start a program that is not here, are run over `true` instead; what
//! their lines name is made beforehand. Of other programs only those are known that something else here runs.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use super::blocks::{self, Block};
use crate::common;

/// The beginnings of commands that are run elsewhere, and where.
const ELSEWHERE: [(&str, &str); 15] = [
    (".ci/packages", ".ci/run"),
    ("cargo test", "this"),
    ("cargo build --release", ".ci/run"),
    ("cargo rustc --profile shipped", ".ci/packages, by CMake"),
    ("pip uninstall trtalloc", "tests/packaging/packages.rs"),
    ("pip install target/packages/", "tests/packaging/packages.rs"),
    ("pip wheel ./python", "tests/packaging/python, with pip's options"),
    ("cmake -S cmake -B build", "tests/compatibility/installed.rs"),
    ("cmake --build build", "tests/compatibility/installed.rs"),
    ("cmake --install build --prefix", "tests/compatibility/installed.rs"),
    ("sudo apt-get remove trtalloc", "tests/packaging/packages.rs, by dpkg"),
    (
        "sudo apt-get install ",
        "tests/packaging/packages.rs, and nothing: it changes the system",
    ),
    (
        "sudo cmake --install build",
        "tests/compatibility/installed.rs, without the right to write to /usr/local",
    ),
    ("sudo ldconfig", "nothing: it changes the system"),
    (
        "cc main.c $(pkg-config --cflags --libs trtalloc)",
        "tests/library/documents/blocks.rs and installed.rs",
    ),
];

/// The commands of a block, without comments and what stands between them.
fn commands(block: &Block) -> Vec<String> {
    let uncommented = |line: &str| line.split(" #").next().unwrap_or_default().trim().to_owned();
    let lines = block.body.lines().map(uncommented);
    lines
        .flat_map(|line| line.split(" && ").map(str::to_owned).collect::<Vec<_>>())
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect()
}

/// `KEY=value` in front of a command, and the command.
fn variables(command: &str) -> (Vec<(String, String)>, Vec<String>) {
    let mut words = command.split_whitespace().map(str::to_owned).peekable();
    let mut variables = Vec::new();
    while let Some((key, value)) = words.peek().and_then(|word| word.split_once('=')) {
        if !key.chars().all(|c| c.is_ascii_uppercase() || c == '_') {
            break;
        }
        variables.push((key.to_owned(), value.to_owned()));
        words.next();
    }
    (variables, words.collect())
}

fn ours(dir: &Path, words: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trtalloc"));
    command.args(words).current_dir(dir);
    command
}

fn succeeded(place: &str, command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "{place}: {command:?}: {}\n{text}",
        output.status
    );
    output
}

/// What it finds is the machine's, so its status may be 1; 2 is that of arguments that make no sense.
fn answered(place: &str, command: &mut Command) {
    let status = command.output().unwrap().status;
    assert!(
        status.code().is_some_and(|code| code < 2),
        "{place}: {command:?}: {status}"
    );
}

/// Makes what a command reads: a trace or a snapshot.
fn make(dir: &Path, name: &str) {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    if dir.join(name).exists() {
        return;
    }
    if name.ends_with(".csv.gz") {
        succeeded(name, &mut ours(dir, &words(&format!("trace streams -o {name}"))));
    } else if name.ends_with(".pickle") {
        make(dir, "made.csv.gz");
        let replay = format!("replay made.csv.gz --driver sim --snapshot {name}");
        succeeded(name, &mut ours(dir, &words(&replay)));
    }
}

/// Runs one of our own commands.
fn run_ours(place: &str, dir: &Path, words: &[String]) {
    let what = words.first().map(String::as_str).unwrap_or_default();
    match what {
        "run" => {
            let at = words.iter().position(|word| word == "--").expect("run -- PROGRAM");
            let mut with = words[..=at].to_vec();
            // The options are read as they stand, and the program is one that is here.
            with.push("true".to_owned());
            let mut command = ours(dir, &with[..1]);
            command
                .arg("--library")
                .arg(common::library_dir().join("libtrtalloc.so"));
            succeeded(place, command.args(&with[1..]));
        }
        "bench" if !common::in_full() => {
            common::skip_part("slow", "a bench takes 20 seconds, built without optimization")
        }
        "doctor" if words.len() > 1 => {
            let program = Path::new(&words[1]);
            std::fs::copy("/bin/true", dir.join(program)).unwrap();
            answered(place, &mut ours(dir, words));
        }
        "doctor" => answered(place, &mut ours(dir, words)),
        // There is no such process; tests/programs/control does this with one.
        "ctl" => answered(place, &mut ours(dir, words)),
        "demo" => {
            let mut short = words.to_vec();
            short.extend(["--short", "--driver", "sim"].map(str::to_owned));
            succeeded(place, &mut ours(dir, &short));
        }
        _ => {
            if what != "trace" {
                let files = if what == "compare" { 2 } else { 1 };
                words.iter().skip(1).take(files).for_each(|name| make(dir, name));
            }
            succeeded(place, &mut ours(dir, words));
        }
    }
}

#[test]
fn documented_commands_are_accepted() {
    let blocks = blocks::of("sh");
    assert!(blocks.len() >= 9);
    let mut own = BTreeSet::new();
    for block in blocks {
        let (dir, place) = (block.scratch(), block.place());
        for line in commands(&block) {
            let (variables, words) = variables(&line);
            let line = words.join(" ");
            let own_words = match &words[..] {
                [program, rest @ ..] if program == "trtalloc" => Some(rest),
                [cargo, run, release, dashes, rest @ ..]
                    if [cargo, run, release, dashes] == ["cargo", "run", "--release", "--"] =>
                {
                    Some(rest)
                }
                _ => None,
            };
            // The environment's options are read as those of `run` are.
            let mut options = vec!["run".to_owned()];
            for (key, value) in &variables {
                match key.strip_prefix("TRTALLOC_") {
                    Some(key) => options.extend([format!("--{}", key.to_lowercase()), value.clone()]),
                    None => assert_eq!(key, "LD_PRELOAD", "{place}: {line}"),
                }
            }
            if options.len() > 1 {
                options.extend(["--".to_owned(), "./program".to_owned()]);
                if own.insert(options.clone()) {
                    run_ours(&place, &dir, &options);
                }
            }
            if let Some(words) = own_words {
                // Documents repeat each other's commands.
                if own.insert(words.to_vec()) {
                    run_ours(&place, &dir, words);
                }
            } else if line.starts_with("export ") {
                assert!(line.contains('='), "{place}: {line}");
            } else {
                let stands_for_a_program = !variables.is_empty() && words.len() == 1 && line.starts_with("./");
                let is_known = ELSEWHERE.iter().any(|(beginning, _)| line.starts_with(beginning));
                assert!(is_known || stands_for_a_program, "{place}: {line:?} is run nowhere");
            }
        }
    }
    assert!(own.len() >= 12, "{own:?}");
}
