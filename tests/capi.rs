//! The C ABI through C and C++ programs that are linked with the shared library.

mod common;

use std::process::{Command, Output};

/// Compiles and runs one program of tests/c; the library may write nothing to stdout.
fn program(name: &str, environment: &[(&str, &str)]) -> Output {
    build_and_run(name, common::cc(), &format!("tests/c/{name}.c"), environment)
}

fn build_and_run(name: &str, mut compile: Command, source: &str, environment: &[(&str, &str)]) -> Output {
    let dir = common::scratch(&format!("c_{name}"));
    compile.arg(format!("-DTRTALLOC_EXPECTED_VERSION=\"{}\"", env!("CARGO_PKG_VERSION")));
    compile.arg(common::root().join(source));
    compile.arg("-o").arg(dir.join(name));
    common::link(&mut compile, &dir);
    common::run(&mut compile);
    let mut command = Command::new(dir.join(name));
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
