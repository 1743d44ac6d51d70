//! ONNX Runtime's TensorRT provider from PyPI: a plugin that is opened at run time and is linked with TensorRT.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common;
use crate::inject::standin::VERSIONS;
use crate::preload::table::Outcome;
use crate::preload::{expect, library, simcuda, wheel};

fn source(name: &str) -> PathBuf {
    common::root().join("tests/programs/preload/onnxruntime").join(name)
}

/// Folders of the libraries that the provider needs: stand-ins for TensorRT, its parser and plugins, and CUDA's
/// libraries and driver.
fn libraries(onnxruntime: &Path) -> Result<Vec<PathBuf>, Outcome> {
    let tensorrt = VERSIONS
        .iter()
        .find(|version| version.name == "10.16")
        .unwrap()
        .built()?;
    let dir = common::scratch("preload_onnxruntime");
    let capi = onnxruntime.join("onnxruntime/capi");
    let mut build = Command::new("python3");
    build
        .arg(common::root().join("python/tests/standin/build.py"))
        .arg(&dir);
    let entries = std::fs::read_dir(capi).unwrap().map(|entry| entry.unwrap().path());
    common::run(build.args(entries.filter(|path| path.to_str().unwrap().contains(".so"))));
    for name in ["libnvonnxparser.so.10", "libnvinfer_plugin.so.10"] {
        let mut compile = common::cc();
        compile.args(["-shared", "-fPIC", &format!("-Wl,-soname,{name}")]);
        common::run(compile.arg(source("rest.c")).arg("-o").arg(dir.join(name)));
    }
    let driver = simcuda::directory().expect("the simulated libcuda.so.1 is there or can be built");
    Ok(vec![dir, tensorrt.dir.clone(), driver])
}

#[test]
fn onnx_runtimes_tensorrt_provider_is_injected() {
    if !cfg!(target_arch = "x86_64") {
        common::skip("onnxruntime", "its wheel with TensorRT is for x86-64");
    }
    let wheels = wheel::fetch("onnxruntime-gpu", "1.22.0").and_then(|onnxruntime| {
        let numpy = wheel::fetch("numpy", "2.2.6")?;
        Ok((onnxruntime, numpy))
    });
    let (onnxruntime, numpy) = match wheels {
        Ok(wheels) => wheels,
        Err(reason) => common::skip("onnxruntime", &reason),
    };
    let libraries = match libraries(&onnxruntime) {
        Ok(libraries) => libraries,
        Err(Outcome::Skipped(what, reason)) => common::skip(what, &reason),
        Err(outcome) => panic!("{outcome:?}"),
    };
    let run = |preload: bool| -> Output {
        let mut command = Command::new("python3");
        command.arg(source("session.py")).env_remove("LD_PRELOAD");
        command.env("PYTHONPATH", std::env::join_paths([&onnxruntime, &numpy]).unwrap());
        command.env("LD_LIBRARY_PATH", std::env::join_paths(&libraries).unwrap());
        command.env("TRTALLOC_DRIVER", "cuda").env("TRTALLOC_LOG", "info");
        if preload {
            command.env("LD_PRELOAD", library());
        }
        let output = command.output().unwrap();
        expect(
            &output,
            0,
            "['TensorrtExecutionProvider', 'CPUExecutionProvider']\nTrue\n",
        );
        output
    };
    let (without, with) = (run(false), run(true));
    assert_eq!(with.stdout, without.stdout);
    let said = String::from_utf8_lossy(&with.stderr).into_owned();
    let attached = said.lines().filter(|line| line.contains("IRuntime of TensorRT 10"));
    let attached: Vec<_> = attached
        .filter(|line| line.contains("allocates through trtalloc"))
        .collect();
    assert_eq!(attached.len(), 1, "{said}");
}
