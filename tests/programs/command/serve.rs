//! `trtalloc bench serve`, with few requests.

use super::{expect, stderr, stdout, trtalloc};

const SHORT: [&str; 6] = ["bench", "serve", "--requests", "60", "--warm", "40"];

/// The rows of the table, each cell without blanks around it. Cells are at least two blanks apart.
fn cells(text: &str) -> Vec<Vec<String>> {
    let lines = text.lines().skip_while(|line| !line.starts_with("workload"));
    let table = lines.take_while(|line| !line.contains(" violations in "));
    let row = |line: &str| {
        let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        cells.map(str::to_owned).collect()
    };
    table.map(row).collect()
}

/// How many allocations the order checker judged. There must be no violation.
fn checked(text: &str) -> u64 {
    let last = text.lines().last().unwrap();
    let count = last
        .strip_prefix("0 violations in ")
        .unwrap_or_else(|| panic!("{text}"));
    count.strip_suffix(" allocations").unwrap().parse().unwrap()
}

#[test]
fn bench_serve_prints_a_row_for_each_workload() {
    let output = trtalloc(&SHORT);
    expect(&output, 0);
    let text = stdout(&output);
    assert!(checked(&text) > 30_000, "{text}");
    let table = cells(&text);
    let header = [
        "workload",
        "streams",
        "ahead",
        "calls",
        "device time",
        "allocator's",
        "memory",
        "waits",
        "longest",
        "missed",
    ];
    assert_eq!(table[0], header);
    for kind in [
        "one request at a time",
        "two contexts",
        "outputs live on",
        "weights cycle",
        "another stream frees",
        "a block grows",
        "rare largest shape",
        "engines come and go",
        "a captured context",
    ] {
        let row = table.iter().find(|row| row[0].starts_with(&format!("{kind}, ")));
        row.unwrap_or_else(|| panic!("no row {kind:?} in\n{text}"));
    }
    for row in &table[1..] {
        let number = |at: usize| row[at].parse::<f64>().unwrap_or_else(|_| panic!("{row:?}"));
        assert!([1.0, 2.0, 4.0, 8.0].contains(&number(1)), "{row:?}");
        assert!([1.0, 2.0, 4.0].contains(&number(2)), "{row:?}");
        let (calls, time, part, memory, waits) = (number(3), number(4), number(5), number(6), number(7));
        assert!(calls >= 0.0 && waits >= 0.0 && number(8) >= 0.0, "{row:?}");
        // A stream cannot complete its work in less time than it takes.
        assert!((1.0..9.0).contains(&time) && (0.9..9.0).contains(&part), "{row:?}");
        assert!((0.2..4.0).contains(&memory), "{row:?}");
        let missed = row.get(9).map_or("", String::as_str);
        assert_eq!(missed.contains("waits"), waits > 0.0, "{row:?}");
    }
    for streams in ["1", "2", "4", "8"] {
        assert!(table.iter().any(|row| row[1] == streams), "{streams} streams");
    }
    assert_eq!(stderr(&output), "");
}

/// Streams that serve one request at a time make no memory call, hold what they need, and do not wait for each other.
#[test]
fn streams_that_serve_one_request_at_a_time_meet_the_targets() {
    let rows = [
        "--rows",
        "one request at a time, 29",
        "--requests",
        "200",
        "--warm",
        "200",
    ];
    let text = stdout(&trtalloc(&[&["bench", "serve"][..], &rows].concat()));
    let table = cells(&text);
    assert_eq!(table.len(), 5, "{text}");
    for row in &table[1..] {
        assert_eq!(row.get(9), None, "a target is missed: {row:?}");
        assert_eq!(row[3], "0", "memory calls: {row:?}");
        assert!(row[6].parse::<f64>().unwrap() <= 1.05, "memory: {row:?}");
    }
}

#[test]
fn bench_serve_repeats_a_seed() {
    let run = |seed| {
        stdout(&trtalloc(
            &[&SHORT[..], &["--rows", "two contexts", "--seed", seed]].concat(),
        ))
    };
    let first = run("5");
    assert_eq!(cells(&first).len(), 3, "{first}");
    assert_eq!(run("5"), first);
    assert_ne!(cells(&run("6")), cells(&first));
}

#[test]
fn bench_serve_counts_refusals_under_a_limit() {
    let rows = ["--rows", "8 shapes", "--only-streams", "2", "--cap"];
    let refused = |cap: &str| {
        let output = trtalloc(&[&SHORT[..], &rows, &[cap]].concat());
        expect(&output, 0);
        let text = stdout(&output);
        let table = cells(&text);
        assert_eq!(table[0][9], "refused", "{text}");
        assert!(checked(&text) > 0, "{text}");
        assert_eq!(stderr(&output), "");
        let counts = table[1..].iter().map(|row| row[9].parse::<u64>().unwrap());
        counts.sum::<u64>()
    };
    assert_eq!(refused("2"), 0);
    assert!(refused("0.3") > 0, "the largest request does not fit");
    let output = trtalloc(&[&SHORT[..], &["--rows", "two contexts", "--limit", "16MiB"]].concat());
    expect(&output, 0);
    assert_eq!(cells(&stdout(&output))[0][9], "refused");
}

#[test]
fn bench_serve_refuses_other_devices() {
    for wrong in [&["--driver", "cuda"][..], &["--rows", "nothing"], &["--requests", "0"]] {
        let output = trtalloc(&[&SHORT[..2], wrong].concat());
        expect(&output, 2);
        assert_eq!(stdout(&output), "");
    }
    // Refused memory without a limit is no result.
    let output = trtalloc(&[&SHORT[..], &["--rows", "0.2 – 2.0 GiB", "--memory", "1"]].concat());
    expect(&output, 1);
    assert!(stdout(&output).contains("refused: "), "{}", stdout(&output));
}
