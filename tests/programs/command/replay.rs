//! `trtalloc replay` and `trtalloc trace`.

use std::path::Path;

use trtalloc::history::report::Report;
use trtalloc::trace::generate::generate;
use trtalloc::trace::{OpKind, csv};

use crate::command::{SMALL, expect, file, stderr, stdout, trtalloc};

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
fn refused_requests_do_not_end_a_replay_and_fail_it() {
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
fn exceeded_bounds_fail_the_replay() {
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
fn an_unreadable_trace_is_named_with_its_line() {
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
fn a_generated_trace_is_the_same_on_stdout_and_in_a_gzip_file() {
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

/// The history of a program as a trace has the program's calls, in their order, and its peak.
#[test]
fn a_recorded_history_is_replayed() {
    let snapshot = file("recorded.pickle", "");
    let (snapshot, path) = (snapshot.to_str().unwrap(), file("recorded.csv.gz", ""));
    expect(
        &trtalloc(&["demo", "--driver", "sim", "--short", "--snapshot", snapshot]),
        0,
    );
    let output = trtalloc(&["trace", snapshot, "-o", path.to_str().unwrap()]);
    expect(&output, 0);
    // 11,016 blocks and 1,362 resizes.
    let said = stderr(&output);
    assert!(
        said.starts_with("device 0: 23394 calls on 4 streams, at most "),
        "{said}"
    );
    assert!(said.ends_with("; 2 refused requests are left out\n"), "{said}");
    let trace = csv::open(&path).unwrap();
    assert_eq!(trace.ops().len(), 23_394);
    let resizes = trace.ops().iter().filter(|op| op.kind == OpKind::Realloc).count();
    assert_eq!((resizes, trace.threads().len(), trace.length() > 0), (1_362, 1, true));
    assert_eq!(trace.leftovers().count(), 0);
    let report = Report::read(Path::new(snapshot)).unwrap();
    let peak = report.devices[0].figures.unwrap().stats.allocated_peak;
    assert!(trace.peak().abs_diff(peak) < peak / 100, "{} and {peak}", trace.peak());
    expect(&trtalloc(&["replay", path.to_str().unwrap(), "--driver", "sim"]), 0);
    // On stdout, and where there is no history.
    assert!(stdout(&trtalloc(&["trace", snapshot])).starts_with("op,id,bytes,stream,thread,time_us\nalloc,"));
    let without = file("state.json", r#"{"segments":[],"device_traces":[]}"#);
    let output = trtalloc(&["trace", without.to_str().unwrap()]);
    expect(&output, 2);
    assert!(
        stderr(&output).contains("the snapshot has no history"),
        "{}",
        stderr(&output)
    );
    let output = trtalloc(&["trace", snapshot, "--device", "1"]);
    expect(&output, 2);
    assert!(stderr(&output).contains("device 1 has no history; there is one of 0"));
}
