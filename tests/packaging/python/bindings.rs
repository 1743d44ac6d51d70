//! TensorRT's own Python bindings.

use crate::common::{self, wheel as pypi};
use crate::python::environment::{PYTEST, environment, pip, pytest, wheel};

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
    let mut all: Vec<[String; 2]> = Vec::new();
    for (module, wheels) in BINDINGS {
        let mut folders = Vec::new();
        for (name, version) in wheels {
            folders.push(pypi::fetch(name, version)?.display().to_string());
        }
        all.push([module.to_string(), folders.join(":")]);
    }
    Ok(serde_json::json!(all).to_string())
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
    let runtimes = std::env::var("TRTALLOC_TEST_RUNTIMES").ok();
    let mut variables = vec![("TRTALLOC_TEST_TENSORRT", bindings.as_str())];
    variables.extend(runtimes.as_deref().map(|count| ("TRTALLOC_TEST_RUNTIMES", count)));
    pytest(&python, &["test_tensorrt.py"], &variables);
}
