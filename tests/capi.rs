//! The C ABI through C and C++ programs that are linked with the shared library.

mod common;
#[path = "common/simcuda.rs"]
mod simcuda;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Compiles and runs one program of tests/c; the library may write nothing to stdout.
fn program(name: &str, environment: &[(&str, &str)]) -> Output {
    build_and_run(name, common::cc(), &format!("tests/c/{name}.c"), environment)
}

fn build_and_run(name: &str, compile: Command, source: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(build(name, compile, source));
    for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("TRTALLOC_")) {
        command.env_remove(key);
    }
    let output = common::run(command.envs(environment.iter().copied()));
    assert!(
        output.stdout.is_empty(),
        "{name} wrote to stdout: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    output
}

fn build(name: &str, mut compile: Command, source: &str) -> PathBuf {
    let dir = common::scratch(&format!("c_{name}"));
    compile.arg(format!("-DTRTALLOC_EXPECTED_VERSION=\"{}\"", env!("CARGO_PKG_VERSION")));
    compile.arg(common::root().join(source));
    compile.arg("-o").arg(dir.join(name));
    common::link(&mut compile, &dir);
    common::run(&mut compile);
    dir.join(name)
}

#[test]
fn refusals() {
    let quiet = program("refusals", &[("TRTALLOC_LOG", "off")]);
    assert!(quiet.stderr.is_empty(), "{quiet:?}");
    let usual = program("refusals", &[]);
    let stderr = String::from_utf8_lossy(&usual.stderr);
    assert!(
        stderr.lines().all(|line| line.starts_with("trtalloc: warn: ")),
        "{stderr}"
    );
    assert!(
        stderr.contains("trtalloc_allocate: invalid argument: allocator is NULL"),
        "{stderr}"
    );
}

#[test]
fn memory() {
    program("memory", &[("TRTALLOC_DRIVER", "sim")]);
}

#[test]
fn no_driver() {
    // There is no AscendCL here, and the simulated device is not asked for.
    let output = program(
        "no_driver",
        &[("TRTALLOC_DRIVER", "ascend"), ("TRTALLOC_GUARD", "perhaps")],
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    let complaints = stderr.lines().filter(|line| line.contains("TRTALLOC_GUARD")).count();
    assert_eq!(complaints, 1, "{stderr}");
}

#[test]
fn raii() {
    build_and_run("raii", common::cxx(), "tests/cpp/raii.cpp", &[]);
}

/// Over memory of the program's own no driver is needed; but one that is there and cannot be opened may have work of others.
#[test]
fn memory_of_the_programs_own() {
    let program = build("given", common::cc(), "tests/c/given.c");
    let run = |libraries: Option<&Path>, devices: &str, expected: &str| {
        let mut command = Command::new(&program);
        command
            .arg(expected)
            .env("TRTALLOC_LOG", "off")
            .env("SIMCUDA_DEVICES", devices);
        libraries.map(|folder| command.env("LD_LIBRARY_PATH", folder));
        common::run(&mut command);
    };
    // Whatever this machine has.
    run(None, "1", "works");
    let folder = simcuda::directory().expect("the simulated libcuda.so.1 is there or can be built");
    run(Some(&folder), "1", "works");
    run(Some(&folder), "0", "works");
    let other = common::scratch("no_driver_at_all");
    std::fs::copy(common::library_dir().join("libtrtalloc.so"), other.join("libcuda.so.1")).unwrap();
    run(Some(&other), "1", "cuInit is missing");
}
