//! A program's own load: its history as a trace, and what `replay --advise` and `bench serve --trace` say of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use trtalloc::trace::{OpKind, csv};

use crate::command::{SMALL, expect, file, simcuda, stderr, stdout, trtalloc};
use crate::common;

/// Two streams whose requests overlap, with times; weights without a stream, and a block that another stream frees.
fn server() -> String {
    let mut text = String::from("op,id,bytes,stream,thread,time_us\nalloc,0,67108864,,1,0\n");
    for request in 1..=40 {
        let (at, stream) = (request * 10_000, 5 + request % 2);
        let (first, second) = (2 * request, 2 * request + 1);
        let size = (1 + request % 4) << 22;
        text += &format!(
            "alloc,{first},{size},{stream},1,{at}\nalloc,{second},1048576,{stream},1,{}\n",
            at + 50
        );
        text += &format!("free,{first},0,{stream},1,{}\n", at + 8_000);
        let frees = if request % 10 == 0 {
            5 + (request + 1) % 2
        } else {
            stream
        };
        text += &format!("free,{second},0,{frees},1,{}\n", at + 8_010);
    }
    text
}

fn path_of(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The rows of the table that begins with `header`, each cell without blanks around it.
fn table(text: &str, header: &str) -> Vec<Vec<String>> {
    let lines = text
        .lines()
        .skip_while(|line| !line.starts_with(&format!("{header}  ")));
    let rows = lines.take_while(|line| line.contains("  ") && !line.starts_with("advice"));
    let cells = |line: &str| {
        line.split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let rows: Vec<Vec<String>> = rows.map(cells).collect();
    assert!(rows.len() > 1, "{text}");
    rows
}

#[test]
fn a_trace_is_served_by_stream_at_its_times() {
    let path = file("served.csv", &server());
    let serve = |more: &[&str]| trtalloc(&[&["bench", "serve", "--trace", path_of(&path)], more].concat());
    let output = serve(&[]);
    expect(&output, 0);
    let text = stdout(&output);
    assert!(text.contains("161 rows, 41 requests on 2 streams"), "{text}");
    assert!(text.contains("calls come at the trace's times, 0.408 s"), "{text}");
    // 81 blocks, of which one stays from the first pass to the third.
    assert!(text.ends_with("0 violations in 241 allocations\n"), "{text}");
    let rows = table(&text, "workload");
    assert_eq!(rows[1][..3], ["served.csv", "2", "2"], "{text}");
    let number = |at: usize| rows[1][at].parse::<f64>().unwrap();
    // Each stream works for 8 of 20 ms.
    assert!((2.3..2.7).contains(&number(4)), "device time: {text}");
    assert!((0.99..1.01).contains(&number(5)), "allocator's: {text}");
    assert!((0.9..1.3).contains(&number(6)), "memory: {text}");
    assert_eq!((&rows[0][9][..], &rows[1][9][..]), ("refused", "0"));
    assert_eq!(stdout(&serve(&[])), text, "the same again");
    // As fast as the device completes them.
    let fast = stdout(&serve(&["--speed", "1000000", "--repeat", "2"]));
    let busy: f64 = table(&fast, "workload")[1][4].parse().unwrap();
    assert!((0.99..1.1).contains(&busy), "{fast}");
    assert!(
        fast.contains("measured     1 passes after the first") && fast.contains("in 161 allocations"),
        "{fast}"
    );
    let longer = stdout(&serve(&["--work-us", "20000", "--ahead", "4"]));
    assert!(longer.contains("work of a request: 20000 µs"), "{longer}");
    assert_eq!(table(&longer, "workload")[1][2], "4");
}

#[test]
fn a_load_that_does_not_fit_is_refused_and_says_so() {
    let path = file("tight.csv", &server());
    let serve = |more: &[&str]| trtalloc(&[&["bench", "serve", "--trace", path_of(&path)], more].concat());
    let output = serve(&["--cap", "0.5", "--options", "wait_ms=0"]);
    expect(&output, 0);
    let refused: u64 = table(&stdout(&output), "workload")[1][9].parse().unwrap();
    assert!(refused > 0);
    let large = file("too_large.csv", "op,id,bytes\nalloc,0,2147483648\nfree,0,0\n");
    let output = trtalloc(&["bench", "serve", "--trace", path_of(&large), "--memory", "1"]);
    expect(&output, 1);
    assert!(stdout(&output).contains("refused: 3 in too_large.csv, the first: out of memory"));
}

#[test]
fn odd_traces_are_served_or_named() {
    for (name, rows) in [
        ("one.csv", "alloc,0,5,,,0\n"),
        ("never_freed.csv", "alloc,0,5,1,,0\nalloc,1,5,2,,9\n"),
        (
            "without_streams.csv",
            "alloc,0,4096,,3,0\nfree,0,0,,4,700\nalloc,1,4096,,,800\nfree,1,0,,3,900\n",
        ),
        // Two streams free each other's blocks, before and after their own calls.
        (
            "crossed.csv",
            "alloc,0,4096,1,,0\nalloc,1,4096,2,,1\nfree,0,0,2,,2\nfree,1,0,1,,3\nalloc,2,512,1,,4\nrealloc,2,9999999,2,,5\n\
             alloc,3,99,,,6\nfree,3,0,1,,7\nfree,2,0,,,8\n",
        ),
        ("endless.csv", "alloc,0,5,1,,0\nfree,0,5,1,,18446744073709551615\n"),
    ] {
        let path = file(name, &format!("op,id,bytes,stream,thread,time_us\n{rows}"));
        for what in [
            &["bench", "serve", "--trace"][..],
            &["replay", "--driver", "sim"],
            &["replay", "--advise"],
        ] {
            let output = trtalloc(&[what, &[path_of(&path)]].concat());
            expect(&output, 0);
            assert_eq!(stderr(&output), "", "{name} {what:?}");
        }
    }
    // No device has so much memory.
    let immense = "alloc,0,18446744073709551615,1,,0\nalloc,1,9223372036854775808,2,,1\nfree,1,0,2,,9\n";
    let path = file("immense.csv", &format!("op,id,bytes,stream,thread,time_us\n{immense}"));
    for (what, status) in [
        (&["bench", "serve", "--trace"][..], 1),
        (&["replay", "--driver", "sim"], 1),
        (&["replay", "--driver", "sim", "--cap", "1e300"], 1),
        (&["replay", "--advise"], 0),
    ] {
        let output = trtalloc(&[what, &[path_of(&path)]].concat());
        expect(&output, status);
        assert!(!stderr(&output).contains("panicked"), "{what:?}: {}", stderr(&output));
    }
    for (name, rows, said) in [
        ("no_rows.csv", "", "no_rows.csv: no rows"),
        (
            "no_block.csv",
            "free,0,5,,,0\n",
            "line 2: free of id 0, which is not live",
        ),
        (
            "backwards.csv",
            "alloc,0,5,,,9\nfree,0,5,,,8\n",
            "line 3: time_us 8 is before 9",
        ),
        ("a_thread.csv", "alloc,0,5,,main,9\n", "line 2: thread \"main\""),
    ] {
        let path = file(name, &format!("op,id,bytes,stream,thread,time_us\n{rows}"));
        for what in [&["bench", "serve", "--trace"][..], &["replay", "--advise"]] {
            let output = trtalloc(&[what, &[path_of(&path)]].concat());
            expect(&output, 2);
            assert!(stderr(&output).contains(said), "{name}: {}", stderr(&output));
        }
    }
    for wrong in [
        &["bench", "serve", "--trace", "x.csv", "--rows", "two"][..],
        &["bench", "serve", "--trace", "x.csv", "--repeat", "1"],
        &["bench", "serve", "--speed", "2"],
        &["bench", "serve", "--repeat", "2"],
        &["replay", "x.csv", "--driver", "sim", "--ahead", "2"],
        &["replay", "x.csv", "--advise", "--driver", "cuda"],
        &["replay", "x.csv", "--advise", "--repeat", "1"],
        &["replay", "x.csv", "--advise", "--work"],
    ] {
        let output = trtalloc(wrong);
        expect(&output, 2);
        assert_eq!(stdout(&output), "");
    }
    let path = file("speed.csv", SMALL);
    for speed in ["0", "-1", "inf", "nan"] {
        expect(
            &trtalloc(&["bench", "serve", "--trace", path_of(&path), &format!("--speed={speed}")]),
            2,
        );
    }
}

/// A block is valid on its stream behind the work of the block that lay there before. Another stream that frees it without
/// use waits for that, too.
#[test]
fn a_stream_that_frees_a_block_of_another_one_waits_for_it() {
    let mut text = String::from("op,id,bytes,stream,thread,time_us\n");
    for (at, (op, id, stream)) in [
        ("alloc", 0, 1),
        ("free", 0, 1),
        ("alloc", 1, 1),
        ("free", 1, 2),
        ("alloc", 2, 2),
        ("free", 2, 2),
        ("alloc", 3, 1),
        ("free", 3, 1),
    ]
    .into_iter()
    .enumerate()
    {
        text += &format!("{op},{id},4194304,{stream},,{}\n", at * 10);
    }
    let path = file("foreign.csv", &text);
    let output = trtalloc(&["bench", "serve", "--trace", path_of(&path), "--work-us", "50000"]);
    expect(&output, 0);
    assert!(
        stdout(&output).ends_with("0 violations in 12 allocations\n"),
        "{}",
        stdout(&output)
    );
}

/// Weights of 256 MiB come and go without a stream: each free returns them to the driver, unless the option says otherwise.
fn reloading() -> String {
    let mut text = String::from("op,id,bytes,stream,thread,time_us\n");
    for load in 0..20 {
        let at = load * 10_000;
        text += &format!("alloc,{load},268435456,,1,{at}\nfree,{load},0,,1,{}\n", at + 4_000);
    }
    text
}

#[test]
fn a_setting_is_advised_only_where_it_is_clearly_better() {
    let path = file("reloading.csv", &reloading());
    let advise = |more: &[&str]| {
        let output = trtalloc(&[&["replay", path_of(&path), "--advise"], more].concat());
        expect(&output, 0);
        stdout(&output)
    };
    let text = advise(&[]);
    let rows = table(&text, "setting");
    let row = |name: &str| {
        rows.iter()
            .find(|row| row[0] == name)
            .unwrap_or_else(|| panic!("no {name}: {text}"))
    };
    assert_eq!(
        row("setting")[1..],
        [
            "held",
            "÷ in use",
            "mean",
            "calls",
            "later",
            "ms in calls",
            "longest",
            "waits",
            "refused"
        ]
    );
    let number = |name: &str, at: usize| row(name)[at].parse::<f64>().unwrap();
    assert!(number("as it is", 5) > 10.0, "it goes back each time: {text}");
    assert!(
        number("release_threshold=all", 5) < number("as it is", 5) / 2.0,
        "{text}"
    );
    for setting in [
        "release_threshold=0",
        "decay_ms=1000",
        "backing=malloc",
        "passthrough=1",
    ] {
        assert_eq!(number(setting, 9), 0.0, "{text}");
    }
    let last = text.lines().last().unwrap();
    let advised = "advice       release_threshold=all (in the environment TRTALLOC_RELEASE_THRESHOLD=all): ";
    let how_much = last.strip_prefix(advised).unwrap_or_else(|| panic!("{text}"));
    assert!(
        how_much.contains(" ms less in calls (") && how_much.contains(" held ("),
        "{how_much}"
    );
    // Simulated time only, so it is the same each time, and with that setting nothing is better.
    assert_eq!(advise(&[]), text);
    let then = advise(&["--options", "release_threshold=all"]);
    assert!(
        then.lines()
            .last()
            .unwrap()
            .starts_with("advice       change nothing: "),
        "{then}"
    );
    // Under a limit that is too low, what is refused comes first.
    let low = advise(&["--limit", "128MiB", "--options", "wait_ms=0", "--repeat", "2"]);
    assert_eq!(table(&low, "setting")[1][9], "40", "{low}");
}

/// tests/support/c/load.c on the simulated driver; returns its snapshot.
fn snapshot_of_program() -> PathBuf {
    let folder = common::scratch("load-program");
    let (program, snapshot) = (folder.join("load"), folder.join("load.pickle"));
    let mut compiler = common::cc();
    compiler
        .arg("-pthread")
        .arg(common::root().join("tests/support/c/load.c"))
        .arg("-o")
        .arg(&program);
    common::link(&mut compiler, &folder);
    common::run(compiler.arg("-ldl"));
    let driver = simcuda::directory().expect("the simulated libcuda.so.1 is there or can be built");
    let mut command = Command::new(&program);
    for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("TRTALLOC_")) {
        command.env_remove(key);
    }
    command.envs([("TRTALLOC_HISTORY", "all"), ("TRTALLOC_DRIVER", "cuda")]);
    common::run(command.env("LD_LIBRARY_PATH", driver).env("SNAPSHOT", &snapshot));
    snapshot
}

/// From a C program's calls to advice on its options.
#[test]
fn the_history_of_a_c_program_is_replayed_served_and_advised_on() {
    let snapshot = snapshot_of_program();
    let path = snapshot.with_extension("csv.gz");
    let output = trtalloc(&["trace", path_of(&snapshot), "-o", path_of(&path)]);
    expect(&output, 0);
    assert!(
        stderr(&output).starts_with("device 0: 2004 calls on 3 streams, at most "),
        "{}",
        stderr(&output)
    );
    let trace = csv::open(&path).unwrap();
    let ops = trace.ops();
    let count = |is: fn(&OpKind) -> bool| ops.iter().filter(|op| is(&op.kind)).count();
    // Weights and a block on the default stream, and two blocks and a resize of each request.
    assert_eq!(count(|kind| matches!(kind, OpKind::Alloc { .. })), 802);
    assert_eq!(count(|kind| *kind == OpKind::Realloc), 400);
    assert_eq!((ops.len(), trace.leftovers().count()), (2_004, 0));
    assert_eq!((ops[0].stream, ops[0].bytes), (None, 48 << 20));
    assert_eq!(ops[1].stream.map(|at| trace.streams()[at as usize]), Some(0));
    assert_eq!(ops[2_002].stream, ops[1].stream);
    assert_eq!(ops[2_003].stream, None);
    // The main thread and two that serve, each on a stream of its own.
    assert_eq!(
        (
            trace.threads().len(),
            ops.iter().filter(|op| op.thread.is_none()).count()
        ),
        (3, 0)
    );
    for thread in [1, 2] {
        let of_thread: Vec<_> = ops.iter().filter(|op| op.thread == Some(thread)).collect();
        assert_eq!(of_thread.len(), 1_000);
        let streams = of_thread.iter().filter_map(|op| op.stream);
        let streams: std::collections::BTreeSet<u16> = streams.collect();
        assert_eq!(streams.len(), 1, "{streams:?}");
        for request in of_thread.chunks(5) {
            let sizes: Vec<u64> = request.iter().map(|op| op.bytes >> 20).collect();
            assert_eq!(sizes[1..], [1, 3, sizes[0], 3], "{request:?}");
        }
    }
    assert!(trace.has_times() && ops.is_sorted_by_key(|op| op.time));
    expect(
        &trtalloc(&["replay", path_of(&path), "--driver", "sim", "--work", "--repeat", "2"]),
        0,
    );
    let output = trtalloc(&["bench", "serve", "--trace", path_of(&path), "--work-us", "500"]);
    expect(&output, 0);
    let text = stdout(&output);
    assert!(text.contains("2004 rows, 402 requests on 3 streams"), "{text}");
    assert!(text.contains("0 violations in 3606 allocations"), "{text}");
    let output = trtalloc(&["replay", path_of(&path), "--advise", "--work-us", "500"]);
    expect(&output, 0);
    let text = stdout(&output);
    assert!(text.lines().last().unwrap().starts_with("advice       "), "{text}");
    assert!(table(&text, "setting").len() > 9, "{text}");
}

/// The recorded step of a training, where it is there.
#[test]
fn a_recorded_training_step_is_served() {
    let path = common::root().join("../shared/traces/training_step.csv.gz");
    if !path.exists() {
        common::skip("traces", "the recorded training step is not there");
    }
    let output = trtalloc(&["bench", "serve", "--trace", path_of(&path), "--repeat", "2"]);
    expect(&output, 0);
    let text = stdout(&output);
    let memory: f64 = table(&text, "workload")[1][6].parse().unwrap();
    assert!((1.0..1.2).contains(&memory), "{text}");
}
