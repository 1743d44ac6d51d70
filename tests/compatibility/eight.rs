//! TensorRT 8 and 9: a caller compiled from our own declaration, and calls by the number of the slot.

use std::sync::OnceLock;

use crate::common;
use crate::headers;
use crate::table::{self, Outcome, Row};

/// The oldest and newest versions of each shape of the interface.
const VERSIONS: [(&str, i32, [u32; 3]); 7] = [
    ("8.0.1", 8001, [8, 0, 1]),
    ("8.1.0", 8100, [8, 1, 0]),
    ("8.2.0", 8200, [8, 2, 0]),
    ("8.5.3", 8503, [8, 5, 3]),
    ("8.6.1", 8601, [8, 6, 1]),
    ("9.0.0", 9000, [9, 0, 0]),
    ("9.3.0", 9300, [9, 3, 0]),
];

pub fn rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let mut rows = Vec::new();
        for (name, version, parts) in &VERSIONS {
            let what = "every method through IGpuAllocator*, and every slot by its number";
            let row = |what, body: &dyn Fn() -> Outcome| Row::of(*name, "C++", "own declaration", what, body);
            rows.push(row(what, &|| try_version(name, *version, parts)));
            // IOutputAllocator came with 8.5, and got a destructor with 8.6.
            if *version >= 8500 {
                let what = "outputs that grow through IOutputAllocator*, scratch memory that contexts share, whether contexts fit";
                rows.push(row(what, &|| {
                    let tried = headers::outputs(name, |compile| {
                        compile
                            .args(defines(parts))
                            .arg("-I")
                            .arg(common::root().join("tests/support/tensorrt/eight"));
                        Ok(())
                    });
                    tried.map_or_else(|outcome| outcome, |()| Outcome::Passed)
                }));
            }
        }
        rows
    })
}

/// What tells the header which version it is of.
fn defines([major, minor, patch]: &[u32; 3]) -> [String; 3] {
    [
        format!("-DEIGHT_MAJOR={major}"),
        format!("-DEIGHT_MINOR={minor}"),
        format!("-DEIGHT_PATCH={patch}"),
    ]
}

fn try_version(name: &str, version: i32, parts: &[u32; 3]) -> Outcome {
    let dir = common::scratch(&format!("compat_{name}"));
    let source = common::root().join("tests/compatibility");
    let mut compile = common::cxx();
    compile
        .args(defines(parts))
        .arg("-I")
        .arg(common::root().join("tests/support/tensorrt/eight"));
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

/// What docs/fit.md shows is what the program writes.
#[test]
fn fit_finds_a_weight_streaming_budget() {
    let dir = common::scratch("compat_fit");
    let source = common::root().join("tests/compatibility");
    let mut compile = common::cxx();
    compile
        .args(defines(&[8, 6, 1]))
        .arg("-I")
        .arg(common::root().join("tests/support/tensorrt/eight"));
    compile.arg(source.join("fit.cpp")).arg("-o").arg(dir.join("fit"));
    common::link(&mut compile, &dir);
    common::run(&mut compile);
    let output = common::run(&mut table::program(&dir.join("fit")));
    let stderr = String::from_utf8_lossy(&output.stderr);
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let page = words(&std::fs::read_to_string(common::root().join("docs/fit.md")).unwrap());
    assert_eq!(stderr.lines().count(), 4, "{stderr}");
    for line in stderr.lines() {
        assert!(
            page.contains(&words(line)),
            "docs/fit.md does not have:\n{line}\n{stderr}"
        );
    }
}

#[test]
fn eight_and_nine() {
    table::check(rows());
}
