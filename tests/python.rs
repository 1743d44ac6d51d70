//! The Python package: its wheel into a fresh environment, its doctor, its tests; TensorRT's own bindings; real PyTorch, ONNX
//! Runtime and CuPy over stand-ins for CUDA's libraries, with the simulated libcuda.so.1 below; and RMM, which is C++ but comes
//! from there too.

#[macro_use]
extern crate trial;

mod common;

use common::{simcuda, wheel};

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex};

fn main() -> std::process::ExitCode {
    common::harness::main()
}

/// What is tested with, none of which is kept here. `--no-deps`: the frameworks' lists have gigabytes of NVIDIA's libraries.
const FRAMEWORKS: &[&str] = &["torch==2.6.0", "onnxruntime-gpu==1.22.0", "cupy-cuda12x==13.6.0"];
/// The newest that is known, over CUDA 13: its exceptions, figures and MemPools are others than those of 2.6.
const NEWEST: &[&str] = &["torch==2.15.0"];
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
const PYTEST: &str = "pytest==8.4.1";
/// What the wheel is built with.
const HATCHLING: &str = "hatchling==1.27.0";

/// One at a time: two would share pip's cache and the network.
static PIP: Mutex<()> = Mutex::new(());

/// Runs pip; what it says last where it fails.
fn pip(python: &Path, arguments: &[&str]) -> Result<(), String> {
    let _one = PIP.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]);
    pip.args(["--retries", "5", "--timeout", "60"]);
    pip.args(arguments)
        .env("TRTALLOC_LIBRARY", common::library_dir().join("libtrtalloc.so"));
    let output = pip.output().map_err(|error| format!("{}: {error}", python.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!("pip {arguments:?}: {}", stderr.trim_end()))
}

/// A virtual environment in `dir`; its Python.
fn environment(dir: &Path) -> Result<PathBuf, String> {
    let output = Command::new("python3").args(["-m", "venv"]).arg(dir).output();
    let output = output.map_err(|error| format!("python3: {error}"))?;
    let python = dir.join("bin/python");
    match output.status.success() && python.exists() {
        true => Ok(python),
        false => Err(format!(
            "python3 -m venv: {}",
            String::from_utf8_lossy(&output.stdout).trim_end()
        )),
    }
}

/// The only file of that kind in a folder.
fn file_in(folder: &Path, suffix: &str) -> PathBuf {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut found = paths.filter(|path| path.extension().is_some_and(|extension| extension == suffix));
    let file = found.next().expect("a file was written");
    assert_eq!(found.next(), None, "beside {}", file.display());
    file
}

/// The Python that builds the wheel, with hatchling.
fn builder() -> Result<&'static PathBuf, String> {
    static BUILDER: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
        common::may_download()?;
        let python = environment(&common::scratch("python_builder").join("environment"))?;
        pip(&python, &["install", HATCHLING])?;
        Ok(python)
    });
    BUILDER.as_ref().map_err(String::clone)
}

/// The wheel of `source`, with the library of this build.
fn wheel_of(builder: &Path, source: &Path, folder: &Path) -> PathBuf {
    let (to, source) = (folder.to_str().unwrap(), source.to_str().unwrap());
    let offline = ["wheel", "--no-deps", "--no-index", "--no-build-isolation"];
    pip(builder, &[&offline[..], &["-w", to, source]].concat()).unwrap();
    file_in(folder, "whl")
}

/// The wheel of the checkout; an error where there is nothing to build it with.
fn wheel(folder: &Path) -> Result<PathBuf, String> {
    Ok(wheel_of(builder()?, &common::root().join("python"), folder))
}

/// Runs the package's tests of those files, without the caller's options and outside the checkout's own package.
fn pytest(python: &Path, files: &[&str], variables: &[(&str, &str)]) {
    let tests = common::root().join("python/tests");
    let mut command = Command::new(python);
    command.args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]);
    command.args(files.iter().map(|file| tests.join(file)));
    command
        .current_dir(python.parent().unwrap())
        .env("PYTHONDONTWRITEBYTECODE", "1");
    for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("TRTALLOC_")) {
        command.env_remove(key);
    }
    let output = common::run(command.envs(variables.iter().copied()));
    println!("{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_package_has_the_librarys_version() {
    let text = std::fs::read_to_string(common::root().join("python/trtalloc/_library.py")).unwrap();
    let version = concat!("VERSION = \"", env!("CARGO_PKG_VERSION"), "\"");
    assert!(text.lines().any(|line| line == version), "_library.py has no {version}");
}

#[test]
fn the_wheel_installs_into_a_fresh_environment_and_its_tests_pass() {
    let dir = common::scratch("python");
    let python = match environment(&dir.join("environment")) {
        Ok(python) => python,
        Err(reason) => common::skip("python", &reason),
    };
    let wheel = match wheel(&dir) {
        Ok(wheel) => wheel,
        Err(reason) => common::skip("hatchling", &reason),
    };
    pip(
        &python,
        &["install", "--no-deps", "--no-index", wheel.to_str().unwrap()],
    )
    .unwrap();
    // As a user would, with nothing but the wheel.
    let mut doctor = Command::new(&python);
    doctor.args(["-m", "trtalloc", "doctor"]).current_dir(&dir);
    let output = common::run(doctor.env("TRTALLOC_DRIVER", "sim"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.contains(env!("CARGO_PKG_VERSION")) && said.contains("allocates"),
        "{said}"
    );
    match common::may_download().and_then(|()| pip(&python, &["install", PYTEST])) {
        Ok(()) => pytest(&python, &["test_package.py"], &[]),
        Err(reason) => common::skip_part("pytest", &reason),
    }
}

/// The names in an archive, and the text of its member that ends with `member`.
fn contents(python: &Path, archive: &Path, member: &str) -> (Vec<String>, String) {
    const PROGRAM: &str = "import sys, tarfile, zipfile\n\
        path, member = sys.argv[1:]\n\
        archive = zipfile.ZipFile(path) if path.endswith('.whl') else tarfile.open(path)\n\
        names = archive.namelist() if path.endswith('.whl') else archive.getnames()\n\
        name = next(name for name in names if name.endswith(member))\n\
        text = archive.read(name) if path.endswith('.whl') else archive.extractfile(name).read()\n\
        print('\\n'.join(names), text.decode(), sep='\\n\\n')";
    let output = common::run(Command::new(python).args(["-c", PROGRAM]).arg(archive).arg(member));
    let text = String::from_utf8(output.stdout).unwrap();
    let (names, text) = text.split_once("\n\n").unwrap();
    (names.lines().map(str::to_owned).collect(), text.to_owned())
}

#[test]
fn wheels_carry_the_library_and_name_its_platform() {
    let builder = match builder() {
        Ok(builder) => builder,
        Err(reason) => common::skip("hatchling", &reason),
    };
    let dir = common::scratch("python_wheels");
    let checkout = wheel(&dir.join("checkout")).unwrap();
    // A source distribution has no library. Its wheel is the same where one is named.
    let sources = dir.join("sources");
    let mut build = Command::new(builder);
    build
        .args(["-m", "hatchling", "build", "-t", "sdist", "-d"])
        .arg(&sources);
    common::run(build.current_dir(common::root().join("python")));
    let sources = file_in(&sources, "gz");
    let again = wheel_of(builder, &sources, &dir.join("again"));
    assert_eq!(std::fs::read(&checkout).unwrap(), std::fs::read(again).unwrap());

    let license = std::fs::read_to_string(common::root().join("LICENSE")).unwrap();
    for archive in [&checkout, &sources] {
        assert_eq!(contents(builder, archive, "LICENSE").1.trim_end(), license.trim_end());
    }
    let (names, _) = contents(builder, &checkout, "WHEEL");
    for name in [
        "trtalloc/__init__.py",
        "trtalloc/__main__.py",
        "trtalloc/libtrtalloc.so",
    ] {
        assert!(names.iter().any(|there| there == name), "no {name} in {names:?}");
    }
    assert!(!names.iter().any(|name| name.contains("tests")), "{names:?}");

    // The newest libc that the library names.
    let mut nm = Command::new("nm");
    nm.args(["-D", "--undefined-only", "--with-symbol-versions"]);
    let symbols = common::run(nm.arg(common::library_dir().join("libtrtalloc.so"))).stdout;
    let symbols = String::from_utf8(symbols).unwrap();
    let minor = |text: &str| -> Option<u32> { text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok() };
    let newest = symbols.split("@GLIBC_2.").skip(1).filter_map(minor).max().unwrap();
    let expected = format!(
        "trtalloc-{}-py3-none-manylinux_2_{newest}_{}.whl",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH
    );
    assert_eq!(checkout.file_name().unwrap().to_str(), Some(expected.as_str()));
}

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
    take_the_hooks(NEWEST, &["torch/lib"], &["test_torch.py"]);
}

/// Runs those of the package's tests beside frameworks whose own libraries lie in `folders`.
fn take_the_hooks(frameworks: &[&str], folders: &[&str], tests: &[&str]) {
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
    let dir = common::scratch(&frameworks[0].replace("==", "-"));
    let wheel = match wheel(&dir) {
        Ok(wheel) => wheel,
        Err(reason) => common::skip("hatchling", &reason),
    };
    let install = ["install", "--no-deps", "--no-index", "--force-reinstall"];
    pip(&python, &[&install[..], &[wheel.to_str().unwrap()]].concat()).unwrap();

    let mut find = Command::new(&python);
    find.args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]);
    let packages = PathBuf::from(String::from_utf8(common::run(&mut find).stdout).unwrap().trim());
    let mut build = Command::new(&python);
    build
        .arg(common::root().join("python/tests/standin/build.py"))
        .arg(dir.join("standin"));
    for folder in folders {
        let entries = std::fs::read_dir(packages.join(folder)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        build.args(paths.filter(|path| path.to_str().unwrap().contains(".so")));
    }
    common::run(&mut build);
    let driver = simcuda::directory().expect("the simulated libcuda.so.1 is there or can be built");
    let standin = format!("{}:{}", dir.join("standin").display(), driver.display());
    pytest(&python, tests, &[("TRTALLOC_TEST_STANDIN", &standin)]);
}

/// TensorRT's own bindings as a Python program imports them: the module, and the wheels that it is made of.
const BINDINGS: [(&str, &[(&str, &str)]); 3] = [
    (
        "tensorrt_rtx",
        &[
            ("tensorrt-rtx-cu12", "1.7.1.116"),
            ("tensorrt-rtx-cu12-bindings", "1.7.1.116"),
            ("tensorrt-rtx-cu12-libs", "1.7.1.116"),
        ],
    ),
    (
        "tensorrt_lean_bindings",
        &[
            ("tensorrt-lean-cu12-bindings", "10.16.1.11"),
            ("tensorrt-lean-cu12-libs", "10.16.1.11"),
        ],
    ),
    (
        "tensorrt_lean_bindings",
        &[
            ("tensorrt-lean-cu12-bindings", "11.4.0.106"),
            ("tensorrt-lean-cu12-libs", "11.4.0.106"),
        ],
    ),
];

/// As python/tests/test_tensorrt.py takes them: JSON of modules and the folders to find them in.
fn bindings() -> Result<String, String> {
    let mut all = Vec::new();
    for (module, wheels) in BINDINGS {
        let mut folders = Vec::new();
        for (name, version) in wheels {
            folders.push(wheel::fetch(name, version)?.display().to_string());
        }
        all.push(format!("[\"{module}\", \"{}\"]", folders.join(":")));
    }
    Ok(format!("[{}]", all.join(", ")))
}

#[test]
fn tensorrts_bindings_take_the_pool() {
    let bindings = match bindings() {
        Ok(bindings) => bindings,
        Err(reason) => common::skip("tensorrt", &reason),
    };
    let dir = common::scratch("python_tensorrt");
    let python = match environment(&dir.join("environment")) {
        Ok(python) => python,
        Err(reason) => common::skip("python", &reason),
    };
    let wheel = match wheel(&dir) {
        Ok(wheel) => wheel,
        Err(reason) => common::skip("hatchling", &reason),
    };
    let install = ["install", "--no-deps", "--no-index"];
    pip(&python, &[&install[..], &[wheel.to_str().unwrap()]].concat()).unwrap();
    if let Err(reason) = pip(&python, &["install", PYTEST]) {
        common::skip("pytest", &reason);
    }
    pytest(&python, &["test_tensorrt.py"], &[("TRTALLOC_TEST_TENSORRT", &bindings)]);
}

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
    let dir = common::scratch("rmm");
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
    compile.arg("-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE");
    compile.arg(common::root().join("tests/cpp/rmm.cpp"));
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

/// A tool that is compiled with NVIDIA's own headers, which RMM brings, receives heaps and blocks. Without a tool nothing is
/// reported.
#[test]
fn a_tool_is_told_of_blocks_through_nvtx() {
    let headers = match with_rmm() {
        Ok([rmm, ..]) => rmm.join("librmm/include"),
        Err(reason) => common::skip("nvtx", &reason),
    };
    let dir = common::scratch("nvtx");
    let mut tool = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()));
    tool.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]);
    tool.arg("-isystem")
        .arg(headers)
        .arg(common::root().join("tests/c/nvtx_tool.c"));
    common::run(tool.arg("-o").arg(dir.join("tool.so")));
    let mut compile = common::cc();
    compile
        .arg(common::root().join("tests/c/nvtx.c"))
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
