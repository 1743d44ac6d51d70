//! The tables in docs/injection.md.

use std::fmt::Write;

use crate::common;
use crate::inject::standin::VERSIONS;
use crate::inject::table::{self, Outcome, Row};
use crate::inject::{matrix, real};

const PAGE: &str = "docs/injection.md";

/// The page up to this line is written by hand.
const MARK: &str = "<!-- The rest is written by the tests. -->\n";

fn cell(row: &Row) -> String {
    match &row.outcome {
        Outcome::Passed => row.what.to_owned(),
        Outcome::Failed(_) => "**failed**".to_owned(),
        Outcome::Skipped(..) => "not run".to_owned(),
    }
}

/// A row for each way, a column for each TensorRT.
fn crossed(rows: &[Row]) -> String {
    let names = VERSIONS.each_ref().map(|version| version.name);
    let mut text = format!("| TensorRT is | trtalloc is | {} |\n", names.join(" | "));
    text += &format!("|---|---|{}\n", "---|".repeat(names.len()));
    for way in rows.chunks(names.len()) {
        let cells: Vec<String> = way.iter().map(cell).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} |",
            way[0].language,
            way[0].with,
            cells.join(" | ")
        );
    }
    text
}

fn tables(matrix: &[Row], real: &[Row]) -> String {
    let mut text = format!("{MARK}\nWith stand-ins:\n\n{}", crossed(matrix));
    text += "\nWith NVIDIA's own libraries, without a GPU:\n\n| TensorRT | program | trtalloc is | result |\n|---|---|---|---|\n";
    for row in real {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            row.tensorrt,
            row.language,
            row.with,
            cell(row)
        );
    }
    text
}

#[test]
fn table_matches_the_results() {
    let (matrix, real) = (matrix::rows(), real::rows());
    let tables = tables(matrix, real);
    println!("{tables}");
    let page = std::fs::read_to_string(common::root().join(PAGE)).unwrap();
    let (by_hand, _) = page.split_once(MARK).expect("the mark is in the page");
    let rows: Vec<Row> = matrix.iter().chain(real).cloned().collect();
    table::keep(
        PAGE,
        &format!("{by_hand}{tables}"),
        &rows,
        "cargo test --test programs inject::page",
    );
}
