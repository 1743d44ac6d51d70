//! `trtalloc demo`, snapshots, and all commands through libcuda.so.1.

use crate::command::{SMALL, command, expect, file, stderr, stdout, through_libcuda, trtalloc};
use crate::common;

#[test]
fn the_demo_violates_no_invariant_on_the_simulated_device() {
    let folder = common::scratch("command-demo");
    let mut demo = command(&["demo", "--short", "--driver", "sim"]);
    let output = demo.env("TMPDIR", &folder).output().unwrap();
    expect(&output, 0);
    let text = stdout(&output);
    // Another user's file of the same name could not be replaced in a folder that all users share.
    let user = std::os::unix::fs::MetadataExt::uid(&folder.metadata().unwrap());
    assert!(folder.join(format!("trtalloc-demo-{user}.pickle")).is_file(), "{text}");
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
        [
            " from Caller::",
            " caller.rs:",
            "512.0 MiB requested, 304.0 MiB too few"
        ]
        .iter()
        .all(|part| line.contains(part)),
        "{text}"
    );
}

#[test]
fn snapshots_are_written_on_request() {
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
fn the_demo_names_its_device() {
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
fn the_demo_reports_what_failed() {
    let output = trtalloc(&["demo", "--short", "--driver", "sim", "--limit", "1GiB"]);
    expect(&output, 1);
    assert!(
        stdout(&output).contains("FAILED  two engines load under the limit: out of memory"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn commands_work_through_libcuda() {
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
