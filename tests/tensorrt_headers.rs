//! The adapter, called through NVIDIA's own headers. They come from the crate trtx-sys, through cargo, when the tests run;
//! their licence is NVIDIA's and none of them is kept here.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Versions of trtx-sys, and folders of headers that each must bring.
const CRATES: &[(&str, &[&str])] = &[
    ("0.9.1", &["TRT-Enterprise-11.4", "TRT-RTX-1.7"]),
    ("0.5.0", &["TRT-Enterprise-10.16", "TRT-RTX-1.3"]),
];

/// The source folder of a version of trtx-sys, fetched where cargo does not have it yet.
fn fetch(version: &str) -> Result<PathBuf, String> {
    // Kept between runs, so that a second one needs no network.
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("headers-{version}"));
    std::fs::create_dir_all(dir.join("src")).map_err(|error| error.to_string())?;
    std::fs::write(dir.join("src/lib.rs"), "").map_err(|error| error.to_string())?;
    let manifest = format!(
        "[package]\nname = \"headers\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n\n[workspace]\n\n\
         [dependencies]\ntrtx-sys = {{ version = \"={version}\", default-features = false }}\n"
    );
    std::fs::write(dir.join("Cargo.toml"), manifest).map_err(|error| error.to_string())?;
    let mut reason = String::new();
    for offline in [true, false] {
        let mut command = Command::new(env!("CARGO"));
        command.current_dir(&dir).args(["metadata", "--format-version=1"]);
        command.arg(format!(
            "--filter-platform={}-unknown-linux-gnu",
            std::env::consts::ARCH
        ));
        command.env("CARGO_NET_RETRY", "1");
        if offline {
            command.arg("--offline");
        }
        let output = command.output().map_err(|error| error.to_string())?;
        if output.status.success() {
            let text = String::from_utf8_lossy(&output.stdout);
            return source(&text, version).ok_or_else(|| "cargo metadata does not tell where it is".to_owned());
        }
        reason = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
    }
    Err(reason)
}

/// Finds the package's folder in what `cargo metadata` wrote.
fn source(metadata: &str, version: &str) -> Option<PathBuf> {
    metadata
        .split("\"manifest_path\":\"")
        .skip(1)
        .filter_map(|rest| rest.split_once('"'))
        .map(|(path, _)| Path::new(path).parent().unwrap_or(Path::new("")))
        .find(|dir| {
            // A version may have build metadata behind a plus sign.
            let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.split('+').next() == Some(&format!("trtx-sys-{version}"))
        })
        .map(Path::to_owned)
}

/// tests/tensorrt/adapter.cpp, compiled once against each set of headers: the headers' name and the program.
fn programs() -> &'static [(String, PathBuf)] {
    static PROGRAMS: OnceLock<Vec<(String, PathBuf)>> = OnceLock::new();
    PROGRAMS.get_or_init(compile)
}

fn compile() -> Vec<(String, PathBuf)> {
    let mut programs = Vec::new();
    for (version, expected) in CRATES {
        let crate_dir = match fetch(version) {
            Ok(dir) => dir,
            Err(reason) => {
                common::skip("tensorrt-headers", &format!("trtx-sys {version}: {reason}"));
                continue;
            }
        };
        let headers = crate_dir.join("TensorRT-Headers");
        for name in *expected {
            let dir = common::scratch(&format!("tensorrt_{version}_{name}"));
            let mut compile = common::cxx();
            // allocate and deallocate are deprecated there, and still called by older TensorRTs.
            compile
                .args(["-Wno-deprecated-declarations", "-pthread", "-isystem"])
                .arg(headers.join(name));
            // The crate's two-typedef cuda_runtime_api.h stands one folder higher.
            compile.arg("-isystem").arg(&headers);
            compile
                .arg(common::root().join("tests/tensorrt/adapter.cpp"))
                .arg("-o")
                .arg(dir.join("adapter"));
            common::link(&mut compile, &dir);
            common::run(&mut compile);
            programs.push((format!("{version} {name}"), dir.join("adapter")));
        }
    }
    programs
}

fn run_all(what: &str) {
    for (name, program) in programs() {
        let mut command = Command::new(program);
        for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("TRTALLOC_")) {
            command.env_remove(key);
        }
        let output = common::run(command.arg(what));
        let version = String::from_utf8_lossy(&output.stdout);
        println!("{name}: NV_TENSORRT_VERSION {}", version.trim());
        // The one line is the program's own: the library writes nothing there.
        assert_eq!(version.lines().count(), 1, "{version}");
    }
}

#[test]
fn the_interface_is_nvidias() {
    run_all("interface");
}

#[test]
fn memory_through_the_interface() {
    run_all("memory");
}
