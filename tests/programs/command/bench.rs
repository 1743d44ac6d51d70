//! `trtalloc bench`.

use crate::command::{SMALL, expect, file, stdout, through_libcuda, trtalloc};
use crate::common;

#[test]
fn bench_prints_every_figure_with_its_target() {
    common::slow("it takes 15 seconds, built without optimization");
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
        "pair with control=1 and share_budget, idle, streams=checked",
        "miss with 10000 holes",
        "reallocate inside committed pages",
        "library, preloading",
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
        "small miss beside a thread that loads engines",
        "small miss beside a thread whose block grows",
        "longest small miss beside 16 windows of decay",
        "longest small miss beside a trim of 10 free pieces",
        "longest small miss beside a trim of 10 cached ranges",
        "pair, 1 streams in turn, 1 thread",
        "pair, 2048 streams in turn, 1 thread",
        "event queries of a request, 256 streams near a limit",
        "allocated on one stream, freed on another",
        "the same by 2 threads",
        "cuMemAlloc and cuMemFree ",
        "cuMemAllocAsync and cuMemFreeAsync",
        "history=all, no stacks",
        "history with stacks of",
        "glibc's backtrace()",
        "100,000 events with stacks",
        "library, stripped",
        "an empty C library, stripped",
        "an empty Rust library, stripped",
        "an empty C library, preloading",
        "an empty Rust library, preloading",
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
    let output = trtalloc(&[&bench[..], &["/nowhere/libtrtalloc.so", "--only", "library"]].concat());
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
