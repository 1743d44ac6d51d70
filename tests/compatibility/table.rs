//! The page docs/compatibility.md.

use std::fmt::Write;

pub use crate::rows::*;

const OPENING: &str = "\
# What trtalloc was tried with

Written by `TRTALLOC_BLESS=1 TRTALLOC_TEST_REQUIRE=all cargo test --test compatibility table`, and compared with every run that
tries all of it. Tried with what is the most real for each TensorRT: NVIDIA's library from PyPI, NVIDIA's headers (in the
crate trtx-sys), or a declaration of our own, for the headers of TensorRT 8 and 9 may not be copied. No row needed a GPU:
memory is the simulated device's, except where a row says that NVIDIA's library was asked to create objects or to build a
plan.

| TensorRT | language | tried with | what | result |
|---|---|---|---|---|
";

fn markdown(rows: &[Row]) -> String {
    let mut text = OPENING.to_owned();
    for Row {
        tensorrt,
        language,
        with,
        what,
        outcome,
    } in rows
    {
        let result = match outcome {
            Outcome::Passed => "passed".to_owned(),
            Outcome::Failed(_) => "**failed**".to_owned(),
            Outcome::Skipped(_, reason) => format!("not run: {}", reason.lines().next().unwrap_or_default()),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {tensorrt} | {language} | {with} | {what} | {result} |");
    }
    text
}

#[test]
fn the_table_is_what_was_tried() {
    let rows: Vec<Row> = crate::GROUPS.iter().flat_map(|group| group().iter().cloned()).collect();
    let text = markdown(&rows);
    println!("{text}");
    keep(
        "docs/compatibility.md",
        &text,
        &rows,
        "cargo test --test compatibility table",
    );
}
