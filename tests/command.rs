//! The command, run as a user runs it: what it prints, and its exit status.

#[macro_use]
extern crate trial;

mod common;
#[path = "common/simcuda.rs"]
mod simcuda;

use std::path::PathBuf;
use std::process::{Command, Output};

use trtalloc::trace::csv;
use trtalloc::trace::generate::generate;

fn main() -> std::process::ExitCode {
    common::harness::main()
}

fn trtalloc(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// The command, with none of the environment's options.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trtalloc"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TRTALLOC_")) {
        command.env_remove(name);
    }
    command.args(arguments);
    command
}

/// The command with a libcuda.so.1 in its way, behind which is the simulated device.
fn through_libcuda(arguments: &[&str]) -> Output {
    let folder = simcuda::directory().expect("the simulated libcuda.so.1 is there or can be built");
    command(arguments).env("LD_LIBRARY_PATH", folder).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[track_caller]
fn expect(output: &Output, status: i32) {
    assert_eq!(
        output.status.code(),
        Some(status),
        "stdout:\n{}stderr:\n{}",
        stdout(output),
        stderr(output)
    );
}

/// A file with that text, in a folder of its own.
fn file(name: &str, text: &str) -> PathBuf {
    let path = common::scratch(&format!("command-{name}")).join(name);
    std::fs::write(&path, text).unwrap();
    path
}

const SMALL: &str = "op,id,bytes,stream\nalloc,0,3145728,\nalloc,1,1000,5\nalloc,2,2097152,6\nfree,1,1000,5\n\
                     alloc,3,1000,5\nrealloc,2,4194304,6\nfree,2,4194304,6\nfree,3,1000,5\n";

#[test]
fn replay_prints_a_row_for_each_pass() {
    let path = file("small.csv", SMALL);
    let output = trtalloc(&["replay", path.to_str().unwrap(), "--driver", "sim", "--repeat", "2"]);
    expect(&output, 0);
    let text = stdout(&output);
    assert!(text.contains("8 rows, 2 streams, peak in use 7.0 MiB"), "{text}");
    assert!(text.contains("simulated"), "{text}");
    let table: Vec<Vec<&str>> = text
        .lines()
        .skip_while(|line| !line.starts_with("pass"))
        .map(|line| line.split("  ").collect())
        .collect();
    let cells = |row: usize| -> Vec<&str> {
        table[row]
            .iter()
            .map(|cell| cell.trim())
            .filter(|c| !c.is_empty())
            .collect()
    };
    assert_eq!(
        cells(0),
        [
            "pass",
            "ops",
            "ns/op",
            "peak MiB",
            "reserved MiB",
            "ratio",
            "remaps",
            "driver calls",
            "queries",
            "failures"
        ]
    );
    for pass in [1, 2] {
        let row = cells(pass);
        assert_eq!(
            (row[0], row[1], row[3]),
            (pass.to_string().as_str(), "8", "7.0"),
            "{text}"
        );
        assert_eq!(row[9], "0", "{text}");
        let (reserved, ratio): (f64, f64) = (row[4].parse().unwrap(), row[5].parse().unwrap());
        assert!((reserved / 7.0 - ratio).abs() < 0.02 && ratio > 1.0, "{text}");
    }
    assert_eq!(stderr(&output), "", "there is no terminal to show progress on");
}

#[test]
fn replay_survives_refusals_and_says_that_not_all_was_done() {
    let path = file(
        "large.csv",
        "op,id,bytes\nalloc,0,33554432\nalloc,1,67108864\nfree,0,0\nfree,1,0\n",
    );
    let output = trtalloc(&["replay", path.to_str().unwrap(), "--driver", "sim", "--limit", "64MiB"]);
    expect(&output, 1);
    assert!(stdout(&output).contains("failed: pass 1: 1 requests were refused, the first: out of memory"));
}

#[test]
fn a_cap_is_a_ratio_of_the_peak_in_whole_handles() {
    // 6 MiB in use: what is capped at 6 MiB fits, what is capped at half of it does not.
    let path = file(
        "cap.csv",
        "op,id,bytes\nalloc,0,2097152\nalloc,1,4194304\nfree,0,0\nfree,1,0\n",
    );
    let replay = |cap: &str| trtalloc(&["replay", path.to_str().unwrap(), "--driver", "sim", "--cap", cap]);
    let output = replay("0.9");
    expect(&output, 0);
    assert!(
        stdout(&output)
            .lines()
            .any(|line| line.starts_with("1 ") && line.contains(" 6.0 "))
    );
    expect(&replay("0.5"), 1);
}

#[test]
fn bounds_that_are_not_held_make_it_fail() {
    let path = file("bounds.csv", SMALL);
    let replay = |more: &[&str]| trtalloc(&[&["replay", path.to_str().unwrap(), "--driver", "sim"], more].concat());
    let output = replay(&["--max-ratio", "0.9"]);
    expect(&output, 1);
    assert!(stdout(&output).contains("is above 0.9"));
    expect(&replay(&["--max-ratio", "1000", "--max-remaps", "1000"]), 0);
}

#[test]
fn work_on_every_block_is_no_violation() {
    let path = file("work.csv", SMALL);
    expect(
        &trtalloc(&[
            "replay",
            path.to_str().unwrap(),
            "--driver",
            "sim",
            "--work",
            "--repeat",
            "3",
        ]),
        0,
    );
}

#[test]
fn a_trace_that_cannot_be_read_is_named_with_its_line() {
    let path = file("broken.csv", "op,id,bytes\nalloc,0,512\nfree,1,512\n");
    let output = trtalloc(&["replay", path.to_str().unwrap(), "--driver", "sim"]);
    expect(&output, 2);
    let said = stderr(&output);
    assert!(
        said.contains("broken.csv: line 3: free of id 1, which is not live"),
        "{said}"
    );
    let output = trtalloc(&["replay", "/nonexistent/trace.csv", "--driver", "sim"]);
    expect(&output, 1);
    assert!(stderr(&output).contains("/nonexistent/trace.csv: "));
    let output = trtalloc(&[
        "replay",
        file("empty.csv", "op,id,bytes\n").to_str().unwrap(),
        "--driver",
        "sim",
    ]);
    expect(&output, 2);
}

#[test]
fn arguments_without_meaning_are_refused() {
    let path = file("arguments.csv", SMALL);
    let path = path.to_str().unwrap();
    let cases: [&[&str]; 7] = [
        &[],
        &["dance"],
        &["replay", path, "--driver", "steam"],
        &["replay", path, "--driver", "sim", "--limit", "lots"],
        &["replay", path, "--driver", "sim", "--options", "colour=red"],
        &["replay", path, "--driver", "sim", "--repeat", "0"],
        &["trace", "nothing"],
    ];
    for arguments in cases {
        let output = trtalloc(arguments);
        expect(&output, 2);
        assert!(!stderr(&output).is_empty(), "{arguments:?}");
        assert_eq!(stdout(&output), "", "{arguments:?}");
    }
}

#[test]
fn a_misspelt_subcommand_is_hinted_at() {
    for (typed, meant) in [
        ("rn", "run"),
        ("dcotor", "doctor"),
        ("reply", "replay"),
        ("bnech", "bench"),
    ] {
        let output = trtalloc(&[typed]);
        expect(&output, 2);
        let said = stderr(&output);
        assert!(said.contains(&format!("'{typed}'")), "{said}");
        assert!(
            said.contains(&format!("a similar subcommand exists: '{meant}'")),
            "{said}"
        );
    }
    let output = trtalloc(&["juggle"]);
    expect(&output, 2);
    assert!(!stderr(&output).contains("similar"), "{}", stderr(&output));
}

#[test]
fn a_misspelt_option_is_named_with_the_nearest() {
    let path = file("misspelt.csv", SMALL);
    let replay = ["replay", path.to_str().unwrap(), "--driver", "sim"];
    let output = command(&replay).env("TRTALLOC_LIMTI", "1GiB").output().unwrap();
    expect(&output, 0);
    let said = "trtalloc: warn: TRTALLOC_LIMTI is no option; the nearest is TRTALLOC_LIMIT\n";
    assert_eq!(stderr(&output), said);
    let output = trtalloc(&[&replay[..], &["--options", "limti=1GiB"]].concat());
    expect(&output, 2);
    assert!(stderr(&output).contains("unknown option `limti`: the nearest is `limit`"));
    // A limit of the environment that cannot be read is no less than one that is typed.
    let output = command(&replay).env("TRTALLOC_LIMIT", "much").output().unwrap();
    expect(&output, 2);
    assert!(stderr(&output).contains("TRTALLOC_LIMIT: cannot read `much`"));
    let given = [&replay[..], &["--limit", "1GB"]].concat();
    expect(&command(&given).env("TRTALLOC_LIMIT", "much").output().unwrap(), 0);
}

#[test]
fn a_generated_trace_is_the_same_on_stdout_and_packed_in_a_file() {
    let trace = generate("growing", 7).unwrap();
    let mut text = Vec::new();
    csv::write(&trace, &mut text).unwrap();
    let output = trtalloc(&["trace", "growing", "--seed", "7"]);
    expect(&output, 0);
    assert_eq!(output.stdout, text);
    let path = file("growing.csv.gz", "");
    expect(
        &trtalloc(&["trace", "growing", "--seed", "7", "-o", path.to_str().unwrap()]),
        0,
    );
    assert!(std::fs::metadata(&path).unwrap().len() < text.len() as u64 / 2);
    assert_eq!(csv::open(&path).unwrap(), trace);
    expect(&trtalloc(&["trace", "growing", "-o", "/nonexistent/x.csv"]), 1);
}

#[test]
fn the_demo_holds_its_promises_on_the_simulated_device() {
    let output = trtalloc(&["demo", "--short", "--driver", "sim"]);
    expect(&output, 0);
    let text = stdout(&output);
    for phase in [
        "load two engines",
        "serve, shapes vary",
        "contexts come and go",
        "swap an engine",
        "unload everything",
    ] {
        assert!(text.lines().any(|line| line.starts_with(phase)), "{phase}:\n{text}");
    }
    assert!(
        text.lines().filter(|line| line.starts_with("ok ")).count() >= 10,
        "{text}"
    );
    assert!(text.contains("0 violations"), "{text}");
    assert!(!text.contains("FAILED"), "{text}");
    // The engine that is refused once says who has the memory, and the request that is too large is no alarm.
    let text = stderr(&output);
    let line = text
        .strip_prefix("trtalloc: warn: out of memory on device 0: ")
        .unwrap_or_default();
    assert_eq!(line.lines().count(), 1, "{text}");
    assert!(
        line.contains(" from trtalloc::command::demo::caller::Caller::"),
        "{text}"
    );
}

#[test]
fn a_run_that_is_recorded_leaves_a_snapshot() {
    let (trace, dir) = (file("recorded.csv", SMALL), common::scratch("command-snapshots"));
    for suffix in ["json", "pickle"] {
        let snapshot = dir.join(format!("replay.{suffix}"));
        let output = trtalloc(&[
            "replay",
            trace.to_str().unwrap(),
            "--driver",
            "sim",
            "--snapshot",
            snapshot.to_str().unwrap(),
        ]);
        expect(&output, 0);
        assert!(stdout(&output).contains(snapshot.to_str().unwrap()), "{output:?}");
    }
    let text = std::fs::read_to_string(dir.join("replay.json")).unwrap();
    for part in ["\"alloc\"", "\"free_completed\"", "\"segment_map\"", "\"dropped\":"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let snapshot = dir.join("demo.json");
    let output = trtalloc(&[
        "demo",
        "--short",
        "--driver",
        "sim",
        "--snapshot",
        snapshot.to_str().unwrap(),
    ]);
    expect(&output, 0);
    let text = std::fs::read_to_string(&snapshot).unwrap();
    for part in ["\"generator\"", "\"oom\"", "Session::infer"] {
        assert!(text.contains(part), "{part}");
    }
    for bad in ["x.txt", "x"] {
        let output = trtalloc(&["replay", trace.to_str().unwrap(), "--driver", "sim", "--snapshot", bad]);
        expect(&output, 2);
    }
    let nowhere = dir.join("none/x.pickle");
    let output = trtalloc(&[
        "demo",
        "--short",
        "--driver",
        "sim",
        "--snapshot",
        nowhere.to_str().unwrap(),
    ]);
    expect(&output, 1);
    assert!(stdout(&output).contains("FAILED"), "{output:?}");
}

#[test]
fn the_demo_says_which_device_it_took() {
    let output = trtalloc(&["demo", "--short"]);
    expect(&output, 0);
    let text = stdout(&output);
    assert!(text.starts_with("device  0: "), "{text}");
    assert!(
        text.contains("driver cuda") || text.contains("no GPU answers"),
        "{text}"
    );
}

#[test]
fn the_demo_says_what_it_could_not_do() {
    let output = trtalloc(&["demo", "--short", "--driver", "sim", "--limit", "1GiB"]);
    expect(&output, 1);
    assert!(
        stdout(&output).contains("FAILED  two engines load under the cap: out of memory"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn bench_prints_every_figure_with_its_target() {
    let library = common::library_dir().join("libtrtalloc.so");
    let bench = ["bench", "--driver", "sim", "--pairs", "1000", "--library"];
    let small = file("bench.csv", SMALL);
    let output = trtalloc(&[&bench[..], &[library.to_str().unwrap(), small.to_str().unwrap()]].concat());
    expect(&output, 0);
    let text = stdout(&output);
    assert!(text.contains("simulated device 0"), "{text}");
    assert!(
        text.lines()
            .any(|line| line.starts_with("machine  ") && line.contains(" cores, "))
    );
    let row = |what: &str| {
        let found = text.lines().find(|line| line.starts_with(what));
        found.unwrap_or_else(|| panic!("no row {what:?} in\n{text}"))
    };
    for times in [
        "pair, streams=checked, 1 thread ",
        "pair, streams=checked, 2 threads",
        "pair, streams=trusted, 4 threads",
        "miss with 10000 holes",
        "reallocate inside committed pages",
        "library, loading",
    ] {
        // Those of an unoptimized build mean nothing.
        let verdicts = if cfg!(debug_assertions) {
            ["not judged here"; 3]
        } else {
            ["  met", "MISSED", "not judged here"]
        };
        assert!(verdicts.iter().any(|verdict| row(times).ends_with(verdict)), "{text}");
    }
    for printed in [
        "pair without a stream",
        "pair, 2 threads",
        "allocated on one stream, freed on another",
        "the same by 2 threads",
        "cuMemAlloc and cuMemFree ",
        "cuMemAllocAsync and cuMemFreeAsync",
        "history=all, no stacks",
        "history with stacks of",
        "glibc's backtrace()",
        "100,000 events with stacks",
    ] {
        row(printed);
    }
    for promised in [
        "pair, streams=checked: driver calls and queries",
        "pair, streams=trusted: driver calls and queries",
        "1,000 such, back and forth: driver calls",
        "growing in place",
        "moving, 48 to 512 MiB: bytes copied",
    ] {
        assert!(row(promised).ends_with("  met"), "{text}");
    }
    for trace in ["serving", "growing", "varying", "streams", "bench.csv"] {
        for figure in ["reserved ÷ peak", "remaps", "requests refused", "a call"] {
            row(&format!("{trace}: {figure}"));
        }
    }
    // A figure that cannot be had is no success.
    let output = trtalloc(&[&bench[..], &["/nowhere/libtrtalloc.so"]].concat());
    expect(&output, 1);
    let text = stdout(&output);
    let missing = text.lines().filter(|line| line.ends_with("NOT MEASURED")).count();
    assert_eq!(missing, 2, "{text}");
}

#[test]
fn bench_measures_the_drivers_own_allocators() {
    common::slow("it takes 15 seconds, built without optimization");
    let library = common::library_dir().join("libtrtalloc.so");
    let output = through_libcuda(&["bench", "--pairs", "1000", "--library", library.to_str().unwrap()]);
    expect(&output, 0);
    let text = stdout(&output);
    assert!(text.contains("driver cuda"), "{text}");
    let row = |what: &str| {
        let found = text.lines().find(|line| line.starts_with(what));
        found.unwrap_or_else(|| panic!("no row {what:?} in\n{text}"))
    };
    assert!(row("cuMemAlloc and cuMemFree ").ends_with(" ns"), "{text}");
    // The simulated libcuda.so.1 has no memory pools.
    assert!(row("cuMemAllocAsync").ends_with("not in this driver"), "{text}");
    // What the driver's answers cost is none of ours.
    assert!(
        row("pair, streams=checked, 1 thread ").ends_with("not judged here"),
        "{text}"
    );
}

#[test]
fn through_libcuda_it_is_the_same() {
    let path = file("libcuda.csv", SMALL);
    let replay = ["replay", path.to_str().unwrap(), "--driver", "cuda", "--work"];
    let output = through_libcuda(&replay);
    expect(&output, 0);
    assert!(stdout(&output).contains("driver cuda"), "{}", stdout(&output));
    // Left to itself, it finds the GPU.
    let output = through_libcuda(&["demo", "--short"]);
    expect(&output, 0);
    let text = stdout(&output);
    assert!(
        text.contains("driver cuda") && !text.contains("no GPU answers"),
        "{text}"
    );
    assert!(
        !text.contains("FAILED") && text.contains("trim returns all of it"),
        "{text}"
    );
    let output = through_libcuda(&["doctor"]);
    expect(&output, 0);
    assert!(
        stdout(&output)
            .lines()
            .any(|line| line.starts_with("  cuda ") && line.contains("yes: ") && line.ends_with("devices: 1"))
    );
}
