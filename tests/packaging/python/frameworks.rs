//! Real PyTorch, ONNX Runtime, CuPy and Numba over stand-ins for CUDA's libraries, with the simulated libcuda.so.1 below; RMM over the
//! simulated device, and cuda.core over the second simulated driver.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};

use crate::common::{self, cudasim, simcuda, wheel as pypi};
use crate::python::environment::{PYTEST, environment, pip, pytest, wheel};

/// What is tested with, none of which is kept here. `--no-deps`: the frameworks' lists have gigabytes of NVIDIA's libraries.
const FRAMEWORKS: &[&str] = &["torch==2.6.0", "onnxruntime-gpu==1.22.0", "cupy-cuda12x==13.6.0"];
/// The newest that is known, over CUDA 13: its exceptions, figures and MemPools are others than those of 2.6.
const NEWEST: &[&str] = &["torch==2.15.0"];
/// Numba's own CUDA target, which calls the driver itself.
const NUMBA: &[&str] = &["numba==0.61.2", "llvmlite==0.44.0"];
/// RMM's Python, with its library.
const RMM: &[&str] = &[
    "rmm-cu12==26.10.0",
    "librmm-cu12==26.10.0",
    "rapids-logger==0.3.0",
    "cuda-bindings==12.9.10",
    "cuda-pathfinder==1.9.1",
];
/// cuda.core before and after its buffers are freed on their streams.
const CUDA_CORE: [&[&str]; 2] = [
    &["cuda-core==1.0.1", "cuda-bindings==12.9.10", "cuda-pathfinder==1.9.1"],
    &["cuda-core==1.2.2", "cuda-bindings==13.5.0", "cuda-pathfinder==1.9.1"],
];
const NEEDED: &[&str] = &[
    "coloredlogs==15.0.1",
    "fastrlock==0.8.3",
    "filelock==3.18.0",
    "flatbuffers==25.2.10",
    "fsspec==2025.5.1",
    "humanfriendly==10.0",
    "jinja2==3.1.6",
    "markupsafe==3.0.2",
    "mpmath==1.3.0",
    "networkx==3.4.2",
    "numpy==2.2.6",
    "packaging==25.0",
    "protobuf==6.31.1",
    "sympy==1.13.1",
    "typing_extensions==4.14.0",
];

/// An environment with frameworks, kept between runs in the build's folder.
fn with_frameworks(frameworks: &[&str]) -> Result<PathBuf, String> {
    let name = format!("frameworks-{}", frameworks[0].replace("==", "-"));
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let (python, whole) = (dir.join("bin/python"), dir.join("whole"));
    common::may_download()?;
    if whole.exists() {
        return Ok(python);
    }
    let _ = std::fs::remove_dir_all(&dir);
    environment(&dir)?;
    let mut arguments = vec!["install", "--no-deps", "--no-compile", "--no-cache-dir"];
    arguments.extend(frameworks.iter().chain(NEEDED));
    let installed = pip(&python, &arguments).and_then(|()| pip(&python, &["install", PYTEST]));
    if installed.is_err() {
        let _ = std::fs::remove_dir_all(&dir);
    }
    installed?;
    std::fs::write(whole, "").map_err(|error| error.to_string())?;
    Ok(python)
}

#[test]
fn frameworks_take_the_hooks() {
    take_the_hooks(
        FRAMEWORKS,
        &["torch/lib", "onnxruntime/capi"],
        &["test_torch.py", "test_onnxruntime.py", "test_cupy.py"],
    );
}

#[test]
fn the_newest_pytorch_takes_the_hooks() {
    if common::in_full() && cudasim::is_there() && runtime_of_the_second_driver().exists() {
        common::unsupported("the_newest_pytorch_captures_graphs runs the same over a runtime that has captures, too");
    }
    let _one = alone();
    take_the_hooks(NEWEST, &["torch/lib"], &["test_torch.py"]);
}

#[test]
fn numba_takes_the_pools_blocks() {
    take_the_hooks(NUMBA, &[], &["test_numba.py"]);
}

#[test]
fn rmm_takes_the_pools_blocks() {
    take_the_hooks(RMM, &[], &["test_rmm.py"]);
}

/// The bindings of CUDA ask for functions that the simulated libcuda.so.1 lacks.
#[test]
fn cuda_core_takes_the_pool_as_a_resource() {
    let driver = cudasim::folder(false);
    for version in CUDA_CORE {
        let (python, _) = installed(version, "hooks");
        pytest(
            &python,
            &["test_cuda_core.py"],
            &[("TRTALLOC_TEST_STANDIN", driver.to_str().unwrap())],
        );
    }
}

/// ONNX Runtime for CPUs shares an allocator of CUDA's memory, too, through its C functions.
#[test]
fn onnxruntime_shares_the_pool_of_its_header() {
    if !cfg!(target_arch = "x86_64") {
        common::skip("frameworks", "the wheel's name for its library is tried for x86-64");
    }
    let wheel = match pypi::fetch("onnxruntime", "1.31.1") {
        Ok(wheel) => wheel.join("onnxruntime/capi"),
        Err(reason) => common::skip("frameworks", &reason),
    };
    let dir = common::scratch("onnxruntime");
    let library = wheel.join("libonnxruntime.so.1.31.1");
    std::os::unix::fs::symlink(&library, dir.join("libonnxruntime.so.1")).unwrap();
    for (name, mut compile) in [("c", common::cc()), ("cpp", common::cxx())] {
        compile.args((name == "cpp").then_some("-xc++"));
        compile
            .arg("-isystem")
            .arg(common::root().join("tests/support/onnxruntime"));
        compile.arg(common::root().join("tests/support/c/onnxruntime.c"));
        compile.args(["-x", "none"]).arg(&library).arg("-o").arg(dir.join(name));
        common::link(&mut compile, &dir);
        common::run(&mut compile);
        common::run(Command::new(dir.join(name)).env("TRTALLOC_DRIVER", "sim"));
    }
}

/// Two tests install the package into the environment of the newest PyTorch.
fn alone() -> MutexGuard<'static, ()> {
    static NEWEST_IN_USE: Mutex<()> = Mutex::new(());
    NEWEST_IN_USE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What builds a CUDA runtime over the second driver.
fn runtime_of_the_second_driver() -> PathBuf {
    common::root().join("../shared/cudasim/build-runtime")
}

/// What needs a CUDA runtime with captures: graphs that share memory, torch.compile's graphs, MemPools. The newest PyTorch runs over
/// the one that `build-runtime` of the second driver makes.
#[test]
fn the_newest_pytorch_captures_graphs() {
    common::slow("it imports PyTorch some forty times");
    let _one = alone();
    let driver = cudasim::folder(false);
    let tool = runtime_of_the_second_driver();
    if !tool.exists() {
        common::skip("cudasim", "it has no build-runtime beside this checkout");
    }
    let (python, dir) = installed(NEWEST, "graphs");
    standins(&python, &["torch/lib"], &dir);
    // The runtime is linked with the driver beside it, and takes its headers from there.
    let runtime = dir.join("runtime");
    common::run(Command::new("cp").arg("-r").arg(&driver).arg(&runtime));
    common::run(Command::new(tool).arg(&runtime).arg("13"));
    let headers = std::fs::read_dir(runtime.join("headers")).unwrap();
    let toolkit = headers
        .map(|entry| entry.unwrap().path().join("nvidia/cu13"))
        .find(|toolkit| toolkit.join("include/cuda_runtime_api.h").exists())
        .expect("CUDA's headers are beside the runtime");
    let folders = format!("{}:{}", runtime.display(), dir.join("standin").display());
    let variables = [
        ("TRTALLOC_TEST_RUNTIME", folders.as_str()),
        ("TRTALLOC_TEST_STANDIN", folders.as_str()),
        ("CUDA_HOME", toolkit.to_str().unwrap()),
        ("TORCH_EXTENSIONS_DIR", dir.to_str().unwrap()),
    ];
    pytest(&python, &["test_torch.py", "test_torch_graphs.py"], &variables);
}

/// Runs those of the package's tests beside frameworks whose own libraries lie in `folders`.
fn take_the_hooks(frameworks: &[&str], folders: &[&str], tests: &[&str]) {
    let (python, dir) = installed(frameworks, "hooks");
    standins(&python, folders, &dir);
    let driver = simcuda::directory().expect("the simulated libcuda.so.1 is there or can be built");
    let standin = format!("{}:{}", dir.join("standin").display(), driver.display());
    pytest(&python, tests, &[("TRTALLOC_TEST_STANDIN", &standin)]);
}

/// The Python of an environment with frameworks and this checkout's package, and a folder for a test's files.
fn installed(frameworks: &[&str], test: &str) -> (PathBuf, PathBuf) {
    // The frameworks' wheels with CUDA, and the stand-ins' layouts, are for this machine.
    if !cfg!(target_arch = "x86_64") {
        common::skip("frameworks", "their wheels with CUDA are for x86-64");
    }
    let real = std::env::var("TRTALLOC_TEST_DRIVER").as_deref() == Ok("cuda");
    if real {
        // Kernels need all of NVIDIA's libraries; the interpreter with the application's own PyTorch is named instead.
        common::skip(
            "frameworks",
            "on a GPU: pip install the wheel beside PyTorch, then pytest python/tests",
        );
    }
    let python = match with_frameworks(frameworks) {
        Ok(python) => python,
        Err(reason) => common::skip("frameworks", &reason),
    };
    let dir = common::scratch(&format!("{}-{test}", frameworks[0].replace("==", "-")));
    let wheel = match wheel(&dir) {
        Ok(wheel) => wheel,
        Err(reason) => common::skip("hatchling", &reason),
    };
    let install = ["install", "--no-deps", "--no-index", "--force-reinstall"];
    pip(&python, &[&install[..], &[wheel.to_str().unwrap()]].concat()).unwrap();
    (python, dir)
}

/// Stand-ins in `standin` of the folder `dir` for NVIDIA's libraries, which the frameworks' libraries in `folders` need.
fn standins(python: &Path, folders: &[&str], dir: &Path) {
    let mut find = Command::new(python);
    find.args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]);
    let packages = PathBuf::from(String::from_utf8(common::run(&mut find).stdout).unwrap().trim());
    let mut build = Command::new(python);
    build
        .arg(common::root().join("python/tests/standin/build.py"))
        .arg(dir.join("standin"));
    for folder in folders {
        let entries = std::fs::read_dir(packages.join(folder)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        build.args(paths.filter(|path| path.to_str().unwrap().contains(".so")));
    }
    common::run(&mut build);
}
