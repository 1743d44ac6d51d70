//! Shared libraries in one process whose headers are of several TensorRTs, or of several trtallocs. The loader takes an inline
//! function for all of them from the library that came first, where its mangled name is the same.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common;
use crate::table;

/// The first version with each interface of an allocator, of outputs, and of engines' sizes, and the newest.
const VERSIONS: [(i32, [u32; 3]); 8] = [
    (8001, [8, 0, 1]),
    (8503, [8, 5, 3]),
    (8601, [8, 6, 1]),
    (9300, [9, 3, 0]),
    (100_000, [10, 0, 0]),
    (101_601, [10, 16, 1]),
    (110_400, [11, 4, 0]),
    (10_701, [1, 7, 1]),
];

/// Builds a shared library of a file of this folder, without optimization, so that no inline function is inlined.
fn library(dir: &Path, name: &str, source: &str, arguments: impl FnOnce(&mut Command)) -> PathBuf {
    let path = dir.join(format!("lib{name}.so"));
    let mut compile = common::cxx();
    arguments(&mut compile);
    compile.args(["-O0", "-shared", "-fPIC"]);
    compile.arg(common::root().join("tests/compatibility").join(source));
    compile.arg("-o").arg(&path);
    common::link(&mut compile, dir);
    common::run(&mut compile);
    path
}

/// A program that opens libraries in the order of its arguments and lets each check itself.
fn opener(dir: &Path) -> PathBuf {
    let path = dir.join("opener");
    let mut compile = common::cc();
    compile.arg(common::root().join("tests/compatibility/opener.c"));
    common::run(compile.arg("-o").arg(&path).arg("-ldl"));
    path
}

/// Opens each two of these libraries in both orders. Returns what failed.
fn in_pairs(opener: &Path, libraries: &[PathBuf]) -> Vec<String> {
    let mut failed = Vec::new();
    for (i, first) in libraries.iter().enumerate() {
        for (k, second) in libraries.iter().enumerate() {
            if i == k {
                continue;
            }
            let output = table::program(opener).args([first, second]).output().unwrap();
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                failed.push(format!("{first:?}, then {second:?}: {}: {said}", output.status));
            }
        }
    }
    failed
}

#[test]
fn two_tensorrts_in_one_process() {
    let dir = common::scratch("compat_generations");
    let libraries = VERSIONS.map(|(version, parts)| {
        let own = if parts[0] == 8 || parts[0] == 9 { "eight" } else { "ten" };
        library(&dir, &version.to_string(), "generation.cpp", |compile| {
            for (part, number) in ["MAJOR", "MINOR", "PATCH"].into_iter().zip(parts) {
                compile.arg(format!("-D{}_{part}={number}", own.to_uppercase()));
            }
            compile.arg(format!("-DVERSION={version}"));
            compile
                .arg("-I")
                .arg(common::root().join("tests/support/tensorrt").join(own));
        })
    });
    let failed = in_pairs(&opener(&dir), &libraries);
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// A later version of trtalloc.h has more fields of `trtalloc_stats` than an earlier one.
#[test]
fn two_versions_of_our_headers_in_one_process() {
    let dir = common::scratch("compat_header_versions");
    let text = std::fs::read_to_string(common::root().join("include/trtalloc/trtalloc.h")).unwrap();
    let end = "} trtalloc_stats;";
    let later = text.replace(end, &format!("uint64_t later[8];\n{end}"));
    assert_ne!(later, text);
    let libraries = [("earlier", &text), ("later", &later)].map(|(name, text)| {
        let header = dir.join(format!("{name}.h"));
        std::fs::write(&header, text).unwrap();
        // Its include guard leaves the other out.
        library(&dir, name, "header_version.cpp", |compile| {
            compile.arg("-include").arg(&header);
        })
    });
    let failed = in_pairs(&opener(&dir), &libraries);
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
