//! RMM, which is C++ but comes from PyPI too, and the headers of NVTX that it brings.

use std::path::PathBuf;
use std::process::Command;

use crate::common::{self, wheel};

/// RMM's library and headers, what it logs with, and the headers of CUDA's runtime with what they include.
const RMM: [(&str, &str); 4] = [
    ("librmm-cu12", "25.12.0"),
    ("rapids-logger", "0.2.3"),
    ("nvidia-cuda-runtime-cu12", "12.9.79"),
    ("nvidia-cuda-nvcc-cu12", "12.9.86"),
];

fn with_rmm() -> Result<[PathBuf; 4], String> {
    let mut folders = Vec::new();
    for (name, version) in RMM {
        folders.push(wheel::fetch(name, version)?);
    }
    folders.try_into().map_err(|_| "four wheels".to_owned())
}

#[test]
fn rmm_takes_the_pool_as_a_resource() {
    if !cfg!(target_arch = "x86_64") {
        common::skip("rmm", "its wheels are tried for x86-64 only");
    }
    let [rmm, logger, runtime, compiler] = match with_rmm() {
        Ok(folders) => folders,
        Err(reason) => common::skip("rmm", &reason),
    };
    for (name, macros) in [
        ("rmm", None),
        ("rmm_per_thread", Some("-DCUDA_API_PER_THREAD_DEFAULT_STREAM=1")),
    ] {
        let dir = common::scratch(name);
        let mut compile = common::cxx();
        for folder in [
            rmm.join("librmm/include/rapids"),
            rmm.join("librmm/include"),
            logger.join("rapids_logger/include"),
            runtime.join("nvidia/cuda_runtime/include"),
            compiler.join("nvidia/cuda_nvcc/include"),
        ] {
            compile.arg("-isystem").arg(folder);
        }
        compile
            .arg("-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE")
            .args(macros);
        compile.arg(common::root().join("tests/support/cpp/rmm.cpp"));
        compile.arg("-o").arg(dir.join("program"));
        common::link(&mut compile, &dir);
        let mut folders = vec![dir.display().to_string()];
        for folder in [
            rmm.join("librmm/lib64"),
            logger.join("rapids_logger/lib64"),
            runtime.join("nvidia/cuda_runtime/lib"),
        ] {
            folders.push(folder.display().to_string());
            compile.arg("-L").arg(folder);
        }
        compile.args(["-lrmm", "-lrapids_logger", "-l:libcudart.so.12"]);
        common::run(&mut compile);
        let mut program = Command::new(dir.join("program"));
        program
            .env("TRTALLOC_DRIVER", "sim")
            .env("LD_LIBRARY_PATH", folders.join(":"));
        common::run(&mut program);
    }
}

/// A tool that is compiled with NVIDIA's own headers, which RMM brings, receives heaps and blocks. Without a tool nothing is
/// reported.
#[test]
fn a_tool_receives_blocks_through_nvtx() {
    let headers = match with_rmm() {
        Ok([rmm, ..]) => rmm.join("librmm/include"),
        Err(reason) => common::skip("nvtx", &reason),
    };
    let dir = common::scratch("nvtx");
    let mut tool = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()));
    tool.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]);
    tool.arg("-isystem")
        .arg(headers)
        .arg(common::root().join("tests/support/c/nvtx_tool.c"));
    common::run(tool.arg("-o").arg(dir.join("tool.so")));
    let mut compile = common::cc();
    compile
        .arg(common::root().join("tests/support/c/nvtx.c"))
        .arg("-o")
        .arg(dir.join("program"));
    common::link(&mut compile, &dir);
    common::run(&mut compile);

    let lines = |with: bool| {
        let mut program = Command::new(dir.join("program"));
        program.env_remove("NVTX_INJECTION64_PATH").env("TRTALLOC_LOG", "off");
        if with {
            program.env("NVTX_INJECTION64_PATH", dir.join("tool.so"));
        }
        String::from_utf8(common::run(&mut program).stderr).unwrap()
    };
    let said = lines(true);
    let of = |who: &str| -> Vec<String> {
        let mine = said.lines().filter_map(|line| line.strip_prefix(who));
        mine.filter(|line| !line.starts_with("heap"))
            .map(str::to_owned)
            .collect()
    };
    let (received, expected) = (of("tool: "), of("expected: "));
    assert!(expected.len() == 12 && received == expected, "{said}");
    // A heap for the window, and one for the segment; both go with their allocator.
    let heaps: Vec<&str> = said.lines().filter(|line| line.contains("tool: heap")).collect();
    assert!(heaps.len() == 4 && heaps[0].ends_with("trtalloc"), "{said}");
    assert_eq!(heaps.iter().filter(|line| line.ends_with("gone")).count(), 2, "{said}");
    // A tool that is not there, or is none, does no harm.
    assert!(!lines(false).contains("tool:"));
}
