//! RMM and CCCL, which are C++ but come from PyPI too, and the headers of NVTX that RMM brings.

use std::path::PathBuf;
use std::process::Command;

use crate::common::{self, wheel};

/// A version of RMM, what it logs with, and the oldest C++ that it compiles with.
struct Rmm {
    version: &'static str,
    logger: &'static str,
    standard: &'static str,
}

const fn rmm(version: &'static str, logger: &'static str, standard: &'static str) -> Rmm {
    Rmm {
        version,
        logger,
        standard,
    }
}

/// The oldest one, and those from which on something in it differs for `rmm.hpp` and `mr.hpp`.
const VERSIONS: [Rmm; 8] = [
    rmm("24.12.1", "0.2.3", "c++17"),
    // It has a library and no longer only headers.
    rmm("25.6.0", "0.2.3", "c++17"),
    rmm("25.12.0", "0.2.3", "c++17"),
    rmm("26.2.0", "0.2.3", "c++17"),
    // It needs no macro for CCCL's resources.
    rmm("26.4.0", "0.2.3", "c++17"),
    // Resources are values.
    rmm("26.6.0", "0.2.3", "c++17"),
    rmm("26.8.0", "0.2.3", "c++17"),
    // Streams are cuda::stream_ref.
    rmm("26.10.0", "0.3.0", "c++20"),
];

/// CCCL as CUDA 13.1, 13.2 and 13.3 have it: 3.1, 3.2 and 3.5.
const CCCL: [&str; 3] = ["13.1.115", "13.2.86", "13.3.5.0.6"];

/// CUDA's runtime and what its headers include.
const RUNTIME: [(&str, &str); 2] = [
    ("nvidia-cuda-runtime-cu12", "12.9.79"),
    ("nvidia-cuda-nvcc-cu12", "12.9.86"),
];

/// How a program is compiled: which stream null is.
const LEGACY: &str = "legacy";
const PER_THREAD: &str = "per_thread";

/// Ends the test on a machine whose wheels are not tried.
fn need_x86_64() {
    if !cfg!(target_arch = "x86_64") {
        common::skip("rmm", "its wheels are tried for x86-64 only");
    }
}

/// The folder of a package; the test ends here where it cannot be fetched.
fn fetched(name: &str, version: &str) -> PathBuf {
    wheel::fetch(name, version).unwrap_or_else(|reason| common::skip("rmm", &reason))
}

/// Compiles a program of `tests/support/cpp` without a warning, with the headers in `includes` and the libraries in `libraries`
/// that `names` names, and runs it over the simulated device.
fn run(program: &str, name: &str, flags: &[&str], includes: &[PathBuf], libraries: &[PathBuf], names: &[&str]) {
    let dir = common::scratch(name);
    let mut compile = common::cxx();
    // Of several standards the last one holds.
    compile.args(flags);
    let [runtime, compiler] = RUNTIME.map(|(name, version)| fetched(name, version));
    let cuda = [
        runtime.join("nvidia/cuda_runtime/include"),
        compiler.join("nvidia/cuda_nvcc/include"),
    ];
    for folder in includes.iter().chain(&cuda) {
        compile.arg("-isystem").arg(folder);
    }
    compile.arg(common::root().join("tests/support/cpp").join(program));
    compile.arg("-o").arg(dir.join("program"));
    common::link(&mut compile, &dir);
    let mut found = vec![dir.display().to_string()];
    for folder in libraries.iter().chain([&runtime.join("nvidia/cuda_runtime/lib")]) {
        found.push(folder.display().to_string());
        compile.arg("-L").arg(folder);
    }
    compile.args(names).arg("-l:libcudart.so.12");
    common::run(&mut compile);
    let mut program = Command::new(dir.join("program"));
    program
        .env("TRTALLOC_DRIVER", "sim")
        .env("LD_LIBRARY_PATH", found.join(":"));
    common::run(&mut program);
}

impl Rmm {
    /// As the number in its version, without the point: 2412.
    fn number(&self) -> u32 {
        let mut parts = self.version.split('.').map(|part| part.parse::<u32>().unwrap());
        parts.next().unwrap() * 100 + parts.next().unwrap()
    }

    /// Runs a program with this RMM, compiled for each of the default streams.
    fn run(&self, program: &str, streams: &[&str]) {
        let rmm = fetched("librmm-cu12", self.version).join("librmm");
        let logger = fetched("rapids-logger", self.logger).join("rapids_logger");
        let headers = rmm.join("include");
        let includes = [
            headers.join("rapids/libcudacxx"),
            headers.join("rapids"),
            headers,
            logger.join("include"),
        ];
        let libraries = [rmm.join("lib64"), logger.join("lib64")];
        let names: &[&str] = match self.number() < 2506 {
            true => &[],
            false => &["-lrmm", "-lrapids_logger"],
        };
        let standard = format!("-std={}", self.standard);
        for stream in streams {
            let mut flags = vec![standard.as_str()];
            flags.extend((*stream == PER_THREAD).then_some("-DCUDA_API_PER_THREAD_DEFAULT_STREAM=1"));
            if self.number() < 2604 {
                flags.push("-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE");
            }
            let name = format!("{program}-{}-{stream}", self.version);
            run(program, &name, &flags, &includes, &libraries, names);
        }
    }
}

/// The newest RMM and, where tests are done in full, every one.
fn versions() -> &'static [Rmm] {
    match common::in_full() {
        true => &VERSIONS,
        false => &VERSIONS[VERSIONS.len() - 1..],
    }
}

#[test]
fn rmm_takes_the_pool_as_a_resource() {
    need_x86_64();
    for version in versions() {
        version.run("rmm.cpp", &[LEGACY, PER_THREAD]);
    }
}

#[test]
fn rmm_with_a_newer_cccl_compiles_its_resource() {
    need_x86_64();
    for version in versions().iter().filter(|version| version.number() >= 2512) {
        version.run("mr.cpp", &[PER_THREAD]);
    }
}

#[test]
fn rmm_owns_the_resource_as_a_value() {
    need_x86_64();
    for version in versions().iter().filter(|version| version.number() >= 2606) {
        let version = rmm(version.version, version.logger, "c++20");
        version.run("rmm_containers.cpp", &[LEGACY]);
    }
}

#[test]
fn the_pool_is_a_resource_of_cccl() {
    need_x86_64();
    let versions = if common::in_full() {
        &CCCL[..]
    } else {
        &CCCL[CCCL.len() - 1..]
    };
    for version in versions {
        let headers = fetched("nvidia-cuda-cccl", version).join("nvidia/cu13/include/cccl");
        for standard in ["-std=c++17", "-std=c++20"] {
            let flags = [standard, "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE"];
            let name = format!("cccl-{version}{standard}");
            run("mr.cpp", &name, &flags, std::slice::from_ref(&headers), &[], &[]);
        }
    }
}

/// A tool that is compiled with NVIDIA's own headers, which RMM brings, receives heaps and blocks. Without a tool nothing is
/// reported.
#[test]
fn a_tool_receives_blocks_through_nvtx() {
    let headers = match wheel::fetch("librmm-cu12", "25.12.0") {
        Ok(rmm) => rmm.join("librmm/include"),
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
