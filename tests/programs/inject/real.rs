//! NVIDIA's own libraries, as far as they run without a GPU: TensorRT-RTX creates its objects and builds plans;
//! TensorRT's lean runtime fails and returns an invalid address.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::common;
use crate::inject::packages::Package;
use crate::inject::standin::{preloaded, start, text, texts};
use crate::inject::table::{self, Outcome, Row};
use crate::inject::{headers, standin, wheel};

static RTX: Package = Package::new("tensorrt-rtx-cu12-libs", "1.7.1.116", "tensorrt_rtx_libs");
static LEAN_10: Package = Package::new("tensorrt-lean-cu12-libs", "10.16.1.11", "tensorrt_lean_libs");
static LEAN_11: Package = Package::new("tensorrt-lean-cu12-libs", "11.4.0.106", "tensorrt_lean_libs");

struct Library {
    tensorrt: &'static str,
    headers: &'static str,
    package: &'static Package,
    file: &'static str,
}

const RTX_1_7: Library = Library {
    tensorrt: "RTX 1.7.1.116",
    headers: "RTX 1.7",
    package: &RTX,
    file: "libtensorrt_rtx.so.1",
};

const LEAN: [Library; 2] = [
    Library {
        tensorrt: "lean 10.16.1.11",
        headers: "10.16",
        package: &LEAN_10,
        file: "libnvinfer_lean.so.10",
    },
    Library {
        tensorrt: "lean 11.4.0.106",
        headers: "11.4",
        package: &LEAN_11,
        file: "libnvinfer_lean.so.11",
    },
];

impl Library {
    fn path(&self) -> Result<PathBuf, Outcome> {
        Ok(self.package.libraries()?.join(self.file))
    }

    /// tests/programs/inject/`source`, compiled with the library's headers.
    fn program(&self, source: &str, name: &str, linked: bool) -> Result<PathBuf, Outcome> {
        let library = self.path()?;
        let dir = common::scratch(&format!("inject_{name}_{}", self.tensorrt.replace([' ', '.'], "_")));
        let mut compile = common::cxx();
        headers::of(self.headers).include(&mut compile)?;
        compile.args(["-g", "-pthread"]).arg(standin::sources().join(source));
        if linked {
            compile
                .arg(&library)
                .arg(format!("-Wl,-rpath,{}", library.parent().unwrap().display()));
        } else {
            compile.arg("-DLOOK_UP");
        }
        common::run(compile.arg("-o").arg(dir.join("program")));
        Ok(dir.join("program"))
    }
}

/// Checks the output of a TensorRT-RTX program with trtalloc injected, and trtalloc's messages.
fn rtx(mut command: Command) -> Result<(), Outcome> {
    let (stdout, stderr) = texts(command.env("TRTALLOC_LOG", "info"));
    assert_eq!(stdout, "a plan\n", "{stderr}");
    for object in ["IRuntime", "IBuilder"] {
        let line = format!("trtalloc: info: {object} of TensorRT 10701 in ");
        let said = stderr
            .lines()
            .any(|said| said.starts_with(&line) && said.ends_with("allocates through trtalloc"));
        assert!(said, "{stderr}");
    }
    Ok(())
}

/// With `--stats` each object has a name. Without a GPU, TensorRT-RTX requests nothing from any of them.
fn linked() -> Result<(), Outcome> {
    let program = RTX_1_7.program("rtx.cpp", "rtx", true)?;
    rtx(preloaded(&program, &[]))?;
    let mut command = preloaded(&program, &[]);
    let (_, stderr) = texts(command.envs([("TRTALLOC_LOG", "info"), ("TRTALLOC_STATS", "1")]));
    for name in ["as `program#1`", "as `program#2 (builder)`"] {
        assert!(
            stderr.contains(&format!("allocates through trtalloc {name}\n")),
            "{stderr}"
        );
    }
    assert!(!stderr.contains("allocations"), "{stderr}");
    Ok(())
}

fn looked_up() -> Result<(), Outcome> {
    let program = RTX_1_7.program("rtx.cpp", "rtx_dlsym", false)?;
    rtx(preloaded(&program, &[text(&RTX_1_7.path()?)]))
}

const PYTHON: &str = "
import sys
if sys.argv[1:]:
    import ctypes
    ours = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
    assert ours.trtalloc_inject(1) == 0
import tensorrt_rtx_bindings as trt
logger = trt.Logger(trt.Logger.ERROR)
runtime, builder = trt.Runtime(logger), trt.Builder(logger)
network, config = builder.create_network(0), builder.create_builder_config()
config.num_compute_capabilities = 1
config.set_compute_capability(trt.ComputeCapability.SM89, 0)
tensor = network.add_input('input', trt.float32, (4, 8))
network.mark_output(network.add_activation(tensor, trt.ActivationType.RELU).get_output(0))
assert builder.build_serialized_network(network, config).nbytes > 1000
print('a plan')
";

fn python(by: fn(&Path, &[&str]) -> Command, arguments: &[&str]) -> Result<(), Outcome> {
    // The file's name contains the Python versions that it supports.
    let bindings = wheel::fetch("tensorrt-rtx-cu12-bindings", RTX.version)
        .map_err(|reason| Outcome::Skipped("tensorrt", format!("tensorrt-rtx-cu12-bindings: {reason}")))?;
    let paths = [bindings.as_path(), RTX.libraries()?.parent().unwrap()]
        .map(text)
        .join(":");
    let mut command = by("python3".as_ref(), &["-c", PYTHON]);
    command
        .args(arguments)
        .env("PYTHONPATH", paths)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    rtx(command)
}

/// trtalloc cannot open a driver either, so TensorRT keeps its own allocator, and the plan is built all the same.
fn without_a_driver() -> Result<(), Outcome> {
    let program = RTX_1_7.program("rtx.cpp", "rtx_no_driver", true)?;
    let mut command = preloaded(&program, &[]);
    let (stdout, stderr) = texts(command.env("TRTALLOC_DRIVER", "cuda").env("TRTALLOC_SIM_MEMORY", ""));
    assert_eq!(stdout, "a plan\n");
    let kept = |line: &str| line.starts_with("trtalloc: warn: I") && line.contains("keeps TensorRT's own allocator");
    let ours: Vec<&str> = stderr.lines().filter(|line| line.starts_with("trtalloc")).collect();
    // On a machine with a GPU there is a driver.
    assert!(
        ours.is_empty() || ours.len() == 2 && ours.iter().all(|line| kept(line)),
        "{stderr}"
    );
    Ok(())
}

/// The program gets the same result as without trtalloc.
fn lean(library: &Library) -> Result<(), Outcome> {
    let path = library.path()?;
    for (name, linked) in [("lean", true), ("lean_dlsym", false)] {
        let program = library.program("lean.cpp", name, linked)?;
        let without = texts(&mut start(&program, &[text(&path)]));
        let with = texts(&mut preloaded(&program, &[text(&path)]));
        assert!(without.0.starts_with("runtime "), "{}", without.0);
        assert_eq!(with, without);
    }
    Ok(())
}

pub fn rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let mut rows = Vec::new();
        let mut add = |tensorrt: &str, what, with, result, body: &dyn Fn() -> Result<(), Outcome>| {
            rows.push(Row::of(tensorrt, what, with, result, || {
                body().map_or_else(|outcome| outcome, |()| Outcome::Passed)
            }));
        };
        let (name, both) = (RTX_1_7.tensorrt, "IRuntime and IBuilder attached; a plan is built");
        add(name, "a C++ program that is linked", "LD_PRELOAD", both, &linked);
        add(
            name,
            "a C++ program with dlopen and dlsym",
            "LD_PRELOAD",
            both,
            &looked_up,
        );
        add(name, "NVIDIA's Python bindings", "LD_PRELOAD", both, &|| {
            python(preloaded, &[])
        });
        let opened = "opened RTLD_GLOBAL before, trtalloc_inject(1)";
        add(name, "NVIDIA's Python bindings", opened, both, &|| {
            python(start, &[text(&standin::ours())])
        });
        let kept = "TensorRT keeps its own, with one line for each; a plan is built";
        add(
            name,
            "a C++ program that is linked, without a driver",
            "LD_PRELOAD",
            kept,
            &without_a_driver,
        );
        for library in &LEAN {
            let failed = "its failure passes through: what the program gets is what it gets without";
            let what = "C++ programs that are linked, or use dlopen and dlsym";
            add(library.tensorrt, what, "LD_PRELOAD", failed, &|| lean(library));
        }
        rows
    })
}

#[test]
fn nvidias_libraries_work_without_a_gpu() {
    table::check(rows());
}
