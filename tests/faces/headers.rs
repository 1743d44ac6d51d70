//! TensorRT 10, 11 and RTX: the adapter, called through NVIDIA's own headers. They come from the crate trtx-sys, through
//! cargo, when the tests run; none of them is kept here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::common;
use crate::table::{self, Outcome, Row};

/// A folder of headers, and the TensorRT it is of.
type Folder = (&'static str, &'static str);

/// Versions of trtx-sys, newest first, and the folders of headers taken from each.
const CRATES: &[(&str, &[Folder])] = &[
    (
        "0.9.1",
        &[
            ("TRT-RTX-1.7", "RTX 1.7"),
            ("TRT-RTX-1.6", "RTX 1.6"),
            ("TRT-RTX-1.5", "RTX 1.5"),
            ("TRT-RTX-1.4", "RTX 1.4"),
            ("TRT-RTX-1.3", "RTX 1.3"),
            ("TRT-Enterprise-11.4", "11.4"),
        ],
    ),
    ("0.7.1", &[("TRT-Enterprise-11.0", "11.0")]),
    ("0.5.0", &[("TRT-Enterprise-10.16", "10.16")]),
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

/// A set of headers: the TensorRT's name, and what finds it for the compiler; or why there is none.
pub struct Headers {
    pub name: &'static str,
    pub crate_version: &'static str,
    folders: Result<[PathBuf; 2], String>,
}

impl Headers {
    /// The folder of the headers, and that of the crate's two-typedef cuda_runtime_api.h.
    pub fn folders(&self) -> Result<&[PathBuf; 2], Outcome> {
        self.folders
            .as_ref()
            .map_err(|reason| Outcome::Skipped("tensorrt-headers", reason.clone()))
    }

    /// Adds the folders to a compiler's command.
    pub fn include(&self, compile: &mut Command) -> Result<(), Outcome> {
        for folder in self.folders()? {
            compile.arg("-isystem").arg(folder);
        }
        // Some methods are deprecated there, and still called by older TensorRTs.
        compile.arg("-Wno-deprecated-declarations");
        Ok(())
    }
}

/// All of them, fetched once.
pub fn all() -> &'static [Headers] {
    static ALL: OnceLock<Vec<Headers>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all = Vec::new();
        for (crate_version, names) in CRATES {
            let crate_dir = fetch(crate_version).map_err(|reason| format!("trtx-sys {crate_version}: {reason}"));
            for (folder, name) in *names {
                let folders = crate_dir.clone().map(|dir| {
                    let headers = dir.join("TensorRT-Headers");
                    [headers.join(folder), headers]
                });
                all.push(Headers {
                    name,
                    crate_version,
                    folders,
                });
            }
        }
        all
    })
}

/// The headers of the TensorRT of that name, of the newest crate that has them.
pub fn of(name: &str) -> &'static Headers {
    all()
        .iter()
        .find(|headers| headers.name == name)
        .expect("a name of CRATES")
}

/// How the interface is laid out in what `include` finds, as tests/faces/layout.cpp prints it.
fn layout(name: &str, include: impl FnOnce(&mut Command) -> Result<(), Outcome>) -> Result<String, Outcome> {
    let dir = common::scratch(&format!("faces_layout_{name}"));
    let mut compile = common::cxx();
    include(&mut compile)?;
    compile
        .arg(common::root().join("tests/faces/layout.cpp"))
        .arg("-o")
        .arg(dir.join("layout"));
    common::run(&mut compile);
    let output = common::run(&mut Command::new(dir.join("layout")));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub fn rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let mut rows = Vec::new();
        let [ours, rtx] = ["OURS", "RTX"].map(|shape| {
            let ours = layout(shape, |compile| {
                compile.arg("-DOURS").arg(format!("-D{shape}=1"));
                Ok(())
            });
            ours.expect("nothing is fetched for our own")
        });
        for headers in all() {
            let (name, with) = (headers.name, "NVIDIA's header");
            let is_rtx = name.starts_with("RTX");
            let ours = if is_rtx { &rtx } else { &ours };
            let id = format!("{}_{}", headers.crate_version, name.replace(' ', "_"));
            let row = |what, body: &dyn Fn() -> Result<(), Outcome>| {
                Row::of(name, "C++", with, what, || {
                    body().map_or_else(|outcome| outcome, |()| Outcome::Passed)
                })
            };
            let same = match is_rtx {
                true => "slots, signatures and sizes are those of cpp/tensorrt10.h and cpp/output_rtx.h",
                false => "slots, signatures and sizes are those of cpp/tensorrt10.h and cpp/output10.h",
            };
            rows.push(row(same, &|| {
                let theirs = layout(&id, |compile| {
                    compile.args(is_rtx.then_some("-DRTX"));
                    headers.include(compile)
                })?;
                assert_eq!(theirs, *ours);
                Ok(())
            }));
            rows.push(row(
                "every method through IGpuAllocator*, type information, memory, threads",
                &|| methods(headers, &id),
            ));
            rows.push(row(
                "outputs that grow through IOutputAllocator*, scratch memory that contexts share",
                &|| outputs(&id, |compile| headers.include(compile)),
            ));
        }
        rows
    })
}

/// tests/faces/output.cpp, compiled with what `include` finds.
pub fn outputs(id: &str, include: impl FnOnce(&mut Command) -> Result<(), Outcome>) -> Result<(), Outcome> {
    let dir = common::scratch(&format!("faces_output_{id}"));
    let mut compile = common::cxx();
    include(&mut compile)?;
    compile.args(["-pthread", "-g", "-fsanitize=undefined", "-fno-sanitize-recover=all"]);
    compile
        .arg(common::root().join("tests/faces/output.cpp"))
        .arg("-o")
        .arg(dir.join("output"));
    common::link(&mut compile, &dir);
    common::run(&mut compile);
    let output = common::run(&mut table::program(&dir.join("output")));
    assert!(output.stdout.is_empty() && output.stderr.is_empty());
    Ok(())
}

fn methods(headers: &Headers, id: &str) -> Result<(), Outcome> {
    let dir = common::scratch(&format!("faces_{id}"));
    let mut compile = common::cxx();
    headers.include(&mut compile)?;
    compile.args(["-pthread", "-g", "-fsanitize=undefined", "-fno-sanitize-recover=all"]);
    compile
        .arg(common::root().join("tests/faces/adapter.cpp"))
        .arg("-o")
        .arg(dir.join("adapter"));
    common::link(&mut compile, &dir);
    common::run(&mut compile);
    for what in ["interface", "memory"] {
        let output = common::run(table::program(&dir.join("adapter")).arg(what));
        // The one line is the program's own: the library writes nothing there.
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    Ok(())
}

#[test]
fn ten_and_later() {
    table::check(rows());
}

/// tensorrt.hpp does not compile with a TensorRT it does not know, and says so.
#[test]
fn an_unknown_tensorrt_does_not_compile() {
    let compile = |major: &str, minor: &str| {
        let dir = common::scratch(&format!("faces_unknown_{major}"));
        std::fs::write(
            dir.join("unknown.cpp"),
            "#include <trtalloc/tensorrt.hpp>\nint main() {}\n",
        )
        .unwrap();
        let mut compile = common::cxx();
        compile
            .arg(format!("-DEIGHT_MAJOR={major}"))
            .arg(format!("-DEIGHT_MINOR={minor}"))
            .arg("-DEIGHT_PATCH=0");
        compile.arg("-I").arg(common::root().join("tests/faces/eight"));
        compile
            .arg("-fsyntax-only")
            .arg(dir.join("unknown.cpp"))
            .output()
            .unwrap()
    };
    assert!(compile("8", "6").status.success());
    // The header of our own computes 7.2 as 7200, and 25.0 as 25000: neither is a version of a known TensorRT.
    for (major, minor) in [("7", "2"), ("25", "0"), ("130", "0")] {
        let output = compile(major, minor);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "TensorRT {major}.{minor} was accepted");
        assert!(stderr.contains("this trtalloc does not know this TensorRT"), "{stderr}");
    }
    // A known version with a newer interface under the same name.
    let dir = common::scratch("faces_newer");
    let header = "#include <cstdint>\n#define NV_TENSORRT_MAJOR 11\n#define NV_TENSORRT_VERSION 119900\n\
                  namespace nvinfer1 { namespace v_1_0 { class IGpuAllocator; } namespace v_2_0 {\n\
                  class IGpuAllocator { public: virtual void* allocate(std::uint64_t) = 0; }; }\n\
                  using IGpuAllocator = v_2_0::IGpuAllocator; }\n";
    std::fs::write(dir.join("NvInferRuntime.h"), header).unwrap();
    std::fs::write(
        dir.join("newer.cpp"),
        "#include <trtalloc/tensorrt.hpp>\nint main() {}\n",
    )
    .unwrap();
    let mut compile = common::cxx();
    let output = compile
        .arg("-I")
        .arg(&dir)
        .arg("-fsyntax-only")
        .arg(dir.join("newer.cpp"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && stderr.contains("newer IGpuAllocator than this trtalloc knows"),
        "{stderr}"
    );
}

/// The C++ headers may be included twice and from two units of one program.
#[test]
fn two_units_of_one_program() {
    let dir = common::scratch("faces_two_units");
    let include =
        "#include <trtalloc/tensorrt.hpp>\n#include <trtalloc/tensorrt.hpp>\n#include <trtalloc/trtalloc.hpp>\n";
    let other = "nvinfer1::IGpuAllocator* other();\n\
                 nvinfer1::IGpuAllocator* other() { return trtalloc::tensorrt(trtalloc_default()); }\n";
    let main = "nvinfer1::IGpuAllocator* other();\n\
                int main() { return other() == trtalloc::tensorrt(trtalloc_default()) ? 0 : 1; }\n";
    std::fs::write(dir.join("other.cpp"), format!("{include}{other}")).unwrap();
    std::fs::write(dir.join("main.cpp"), format!("{include}{main}")).unwrap();
    let mut compile = common::cxx();
    compile.args(["-DEIGHT_MAJOR=8", "-DEIGHT_MINOR=6", "-DEIGHT_PATCH=1", "-I"]);
    compile.arg(common::root().join("tests/faces/eight"));
    compile.args([dir.join("other.cpp"), dir.join("main.cpp")]);
    compile.arg("-o").arg(dir.join("program"));
    common::link(&mut compile, &dir);
    common::run(&mut compile);
    common::run(&mut table::program(&dir.join("program")));
}
