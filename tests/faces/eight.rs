//! TensorRT 8 and 9: a caller compiled from our own declaration, and calls by the number of the slot.

use std::sync::OnceLock;

use crate::common;
use crate::table::{self, Outcome, Row};

/// The oldest and newest versions of each shape of the interface.
const VERSIONS: [(&str, i32, [u32; 3]); 6] = [
    ("8.0.1", 8001, [8, 0, 1]),
    ("8.1.0", 8100, [8, 1, 0]),
    ("8.2.0", 8200, [8, 2, 0]),
    ("8.6.1", 8601, [8, 6, 1]),
    ("9.0.0", 9000, [9, 0, 0]),
    ("9.3.0", 9300, [9, 3, 0]),
];

pub fn rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| {
        VERSIONS
            .iter()
            .map(|(name, version, parts)| {
                let what = "every method through IGpuAllocator*, and every slot by its number";
                Row::of(*name, "C++", "own declaration", what, || {
                    try_version(name, *version, parts)
                })
            })
            .collect()
    })
}

fn try_version(name: &str, version: i32, [major, minor, patch]: &[u32; 3]) -> Outcome {
    let dir = common::scratch(&format!("faces_{name}"));
    let source = common::root().join("tests/faces");
    let mut compile = common::cxx();
    compile
        .arg(format!("-DEIGHT_MAJOR={major}"))
        .arg(format!("-DEIGHT_MINOR={minor}"));
    compile
        .arg(format!("-DEIGHT_PATCH={patch}"))
        .arg("-I")
        .arg(source.join("eight"));
    // Each call is checked against the object's own type information, too.
    compile.args(["-pthread", "-g", "-fsanitize=undefined", "-fno-sanitize-recover=all"]);
    compile.arg(source.join("eight.cpp")).arg("-o").arg(dir.join("eight"));
    common::link(&mut compile, &dir);
    common::run(&mut compile);
    let output = common::run(&mut table::program(&dir.join("eight")));
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{version}\n"));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    Outcome::Passed
}

#[test]
fn eight_and_nine() {
    table::check(rows());
}
