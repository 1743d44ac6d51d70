//! The programs for Ascend in examples/, and each of its allocation functions with its rule: linked with the shared library
//! and over a stand-in for AscendCL's libraries, whose streams are done some time after they were given work, and which
//! reports work on memory that is gone.

mod common;
#[path = "common/simcuda.rs"]
mod simcuda;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn standin() -> PathBuf {
    simcuda::ascend().expect("the stand-in for AscendCL is there or can be built")
}

/// Compiles a program as its first lines say.
fn build(name: &str, source: &Path, libraries: &Path, linked: &[&str]) -> PathBuf {
    build_by(common::cc(), name, source, libraries, linked)
}

fn build_by(mut compile: Command, name: &str, source: &Path, libraries: &Path, linked: &[&str]) -> PathBuf {
    let dir = common::scratch(name);
    compile.arg("-I").arg(common::root().join("examples")).arg(source);
    compile.arg("-L").arg(libraries).args(linked);
    compile.arg("-o").arg(dir.join("program"));
    common::link(&mut compile, &dir);
    common::run(&mut compile);
    dir.join("program")
}

fn run(program: &Path, libraries: &Path) -> Output {
    let mut command = Command::new(program);
    // So slow that the model is far behind the decoder, as it is on a device.
    command
        .env("LD_LIBRARY_PATH", libraries)
        .env("SIMASCEND_SPEED", "1")
        .env("TRTALLOC_LOG", "warn");
    command.output().unwrap()
}

/// It ends well, says so, and nobody complains: neither the allocator nor the device.
fn works(source: &str, linked: &[&str]) -> String {
    let libraries = standin();
    let source = common::root().join(source);
    let name = source.file_stem().unwrap().to_str().unwrap();
    let output = run(&build(name, &source, &libraries, linked), &libraries);
    let (told, complaints) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{}\n{told}\n{complaints}", output.status);
    assert!(told.contains(", 0 wrong"), "{told}");
    // What is refused on purpose is told of.
    let complaints: Vec<&str> = complaints
        .lines()
        .filter(|line| !line.contains("1 bytes asked for"))
        .collect();
    assert!(complaints.is_empty(), "{complaints:?}\n{told}");
    told.into_owned()
}

#[test]
fn video() {
    works("examples/ascend_video.c", &["-lascendcl", "-lacl_dvpp_mpi"]);
}

#[test]
fn pictures() {
    works("examples/ascend_jpeg.c", &["-lascendcl", "-lacl_dvpp"]);
}

/// Most programs for Ascend are C++, and take such code over as it is.
#[test]
fn they_are_cpp_too() {
    let libraries = standin();
    for name in ["ascend_video", "ascend_jpeg"] {
        let mut compile = common::cxx();
        compile.args(["-x", "c++"]);
        let source = common::root().join(format!("examples/{name}.c"));
        let linked = ["-x", "none", "-lascendcl", "-lacl_dvpp", "-lacl_dvpp_mpi"];
        build_by(compile, &format!("{name}_cpp"), &source, &libraries, &linked);
    }
}

/// The manual's table once more, over what the calls themselves give.
#[test]
fn every_allocation_function() {
    let told = works(
        "tests/c/ascend_calls.c",
        &["-lascendcl", "-lacl_dvpp", "-lacl_dvpp_mpi"],
    );
    assert_eq!(told.lines().count(), 8, "{told}");
}

/// The decoder gets no frame that the model still reads: where it may not wait for the model, there is none left.
#[test]
fn frames_that_the_model_reads_are_held_back() {
    let libraries = standin();
    let text = std::fs::read_to_string(common::root().join("examples/ascend_video.c")).unwrap();
    let impatient = text.replace("rule=ascend-media", "rule=ascend-media,wait_ms=0");
    assert_ne!(text, impatient);
    let source = common::scratch("ascend_impatient_source").join("impatient.c");
    std::fs::write(&source, impatient).unwrap();
    let linked = ["-lascendcl", "-lacl_dvpp_mpi"];
    let output = run(&build("ascend_impatient", &source, &libraries, &linked), &libraries);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && complaints.contains("out of memory") && !complaints.contains(" 0 pending"),
        "{complaints}"
    );
}
