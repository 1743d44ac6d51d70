//! Compares this project with other pools, in one process on one machine. `cargo bench --bench compare [-- WORD]`
//! prints tables in Markdown, of the rows whose names contain WORD; `serve` is the table of servers. Without `--bench`, every case is run once without
//! timing, and blocks are checked not to overlap.
//!
//! The rounds of all pools alternate, and a ratio is the median of the rounds' ratios, so that other load on the
//! machine affects all pools.

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod contest;
#[path = "../../src/command/bench/machine.rs"]
mod machine;
mod plain;
mod pools;
mod rmm;
mod serve;
#[path = "../../tests/support/common/mod.rs"]
mod tools;

use std::hint::black_box;

use cases::{CASES, Case};
use common::Rig;
use rmm::Rmm;
use trtalloc::driver::Driver;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let measured = arguments.iter().any(|argument| argument == "--bench");
    let word = arguments.iter().find(|argument| !argument.starts_with('-'));
    // Compiling RMM takes longer than all the rest, so tests compile it only if nothing may be skipped.
    let required = std::env::var_os("TRTALLOC_TEST_REQUIRE").is_some();
    let rmm = Rmm::open(measured || required)
        .inspect_err(|reason| assert!(!tools::required("rmm"), "rmm is required, but: {reason}"))
        .ok();
    let rmm = rmm.as_ref();
    // A process with a CUDA driver has threads. In a process with one thread, the C library's mutex needs no locked
    // instruction.
    let (_stay, end) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || end.recv());

    let chosen = CASES
        .iter()
        .filter(|case| word.is_none_or(|word| case.name().contains(word)));
    let chosen: Vec<_> = chosen.copied().collect();
    if !measured {
        contest::check(rmm);
        for case in chosen.into_iter().map(Case::short) {
            contest::contest(case, rmm, measured);
            println!("ran: {}", case.name());
        }
        serve::compare(rmm, measured);
        return;
    }
    preamble(rmm);
    if word.is_none_or(|word| serve::NAME.contains(word)) {
        serve::compare(rmm, measured);
    }
    let mut head = Head("ns (times the first)");
    for &case in &chosen {
        head.row(&case.name(), contest::contest(case, rmm, measured));
    }
    let mut head = Head("memory ÷ peak in use, from nothing");
    for (case, peak) in chosen.iter().filter_map(|&case| Some((case, case.peak()?))) {
        head.row(&case.name(), contest::memory(case, peak, rmm));
    }
}

/// A table's header, printed before its first row.
struct Head(&'static str);

impl Head {
    fn row(&mut self, name: &str, (columns, cells): (Vec<String>, Vec<String>)) {
        if !self.0.is_empty() {
            println!("\n| {} | {} |", self.0, columns.join(" | "));
            println!("|---|{}", "---:|".repeat(columns.len()));
            self.0 = "";
        }
        println!("| {name} | {} |", cells.join(" | "));
    }
}

/// Prints what is measured, and on which machine.
fn preamble(rmm: Option<&Rmm>) {
    let rig = Rig::new("");
    let (driver, stream): (&dyn Driver, _) = (rig.driver.as_ref(), rig.stream);
    let answers = cases::timed(cases::OWN, 1_000_000, || {
        black_box((
            driver.stream_id(black_box(stream)),
            driver.stream_capture(black_box(stream)),
        ))
        .0
        .is_ok()
    });
    let answers = answers.expect("the stream is alive");
    println!("* Machine: {}.", machine::name());
    println!("* One thread: its processor time. Several threads: wall-clock time.");
    println!(
        "* trtalloc: through the C++ vtable, over the simulated device. Its two queries for a `checked` pair take \
         {answers:.1} ns of that; `trusted` makes none."
    );
    match rmm {
        Some(_) => println!(
            "* {}: over a CUDA runtime that returns at once and does nothing.",
            rmm::NAME
        ),
        None => println!("* RMM is not here."),
    }
    println!(
        "* One mutex: the standard library's, with its maps. These two ignore streams, so they are no substitute."
    );
}
