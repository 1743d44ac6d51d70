//! The Ascend programs in examples/, and each of its allocation functions with its rule. They are linked with the
//! shared library and run over a stand-in for AscendCL's libraries, whose streams complete with a delay and which
//! reports work on freed memory.

use crate::common::{self, simcuda};

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
    // So slow that the model falls far behind the decoder, as on a device.
    command
        .env("LD_LIBRARY_PATH", libraries)
        .env("SIMASCEND_SPEED", "1")
        .env("TRTALLOC_LOG", "warn");
    command.output().unwrap()
}

/// Checks that the program succeeds and reports it, and that neither the allocator nor the device complains. Returns
/// its output.
fn works(source: &str, linked: &[&str]) -> String {
    let libraries = standin();
    let source = common::root().join(source);
    let name = source.file_stem().unwrap().to_str().unwrap();
    let output = run(&build(name, &source, &libraries, linked), &libraries);
    let (printed, complaints) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{}\n{printed}\n{complaints}", output.status);
    assert!(printed.contains(", 0 wrong"), "{printed}");
    // A refusal that the program causes on purpose is reported.
    let complaints: Vec<&str> = complaints
        .lines()
        .filter(|line| !line.contains(": 1 B requested"))
        .collect();
    assert!(complaints.is_empty(), "{complaints:?}\n{printed}");
    printed.into_owned()
}

#[test]
fn video_example_works() {
    works("examples/ascend_video.c", &["-lascendcl", "-lacl_dvpp_mpi"]);
}

#[test]
fn pictures_example_works() {
    works("examples/ascend_jpeg.c", &["-lascendcl", "-lacl_dvpp"]);
}

/// Most programs for Ascend are C++ and include such code unchanged.
#[test]
fn programs_compile_as_cpp() {
    let libraries = standin();
    for name in ["ascend_video", "ascend_jpeg"] {
        let mut compile = common::cxx();
        compile.args(["-x", "c++"]);
        let source = common::root().join(format!("examples/{name}.c"));
        let linked = ["-x", "none", "-lascendcl", "-lacl_dvpp", "-lacl_dvpp_mpi"];
        build_by(compile, &format!("{name}_cpp"), &source, &libraries, &linked);
    }
}

/// The manual's table again, over memory of the calls themselves.
#[test]
fn each_allocation_function_meets_its_rule() {
    let printed = works(
        "tests/support/c/ascend_calls.c",
        &["-lascendcl", "-lacl_dvpp", "-lacl_dvpp_mpi"],
    );
    assert_eq!(printed.lines().count(), 8, "{printed}");
}

/// The decoder does not get a frame that the model still reads. If it may not wait for the model, it gets none.
#[test]
fn decoder_gets_no_frames_that_the_model_reads() {
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
