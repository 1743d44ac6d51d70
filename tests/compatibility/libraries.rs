//! NVIDIA's own libraries. TensorRT-RTX makes its objects and builds plans without a GPU; TensorRT's lean runtime fails
//! without one, in a way that programs have to survive.

use std::path::Path;
use std::sync::OnceLock;

use crate::packages::Package;
use crate::table::{self, Outcome, Row};
use crate::{common, headers};

static RTX: Package = Package::new("tensorrt-rtx-cu12-libs", "1.7.1.116", "tensorrt_rtx_libs");
static LEAN_10: Package = Package::new("tensorrt-lean-cu12-libs", "10.16.1.11", "tensorrt_lean_libs");
static LEAN_11: Package = Package::new("tensorrt-lean-cu12-libs", "11.4.0.106", "tensorrt_lean_libs");

/// A library of NVIDIA's: the TensorRT as the table names it, its headers' name, its package and its file.
pub struct Library {
    pub tensorrt: &'static str,
    pub headers: &'static str,
    pub package: &'static Package,
    pub file: &'static str,
}

pub const RTX_1_7: Library = Library {
    tensorrt: "RTX 1.7.1.116",
    headers: "RTX 1.7",
    package: &RTX,
    file: "libtensorrt_rtx.so.1",
};

pub const LEAN: [Library; 2] = [
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
    /// The folder with the file.
    pub fn folder(&self) -> Result<&'static Path, Outcome> {
        self.package.libraries()
    }
}

/// Compiles tests/compatibility/`source` with a library's headers and links it with the library, unless it opens that itself.
fn build(library: &Library, source: &str, sanitizer: Option<&str>) -> Result<std::path::PathBuf, Outcome> {
    let folder = library.folder()?;
    let id = format!("{}_{source}_{}", library.tensorrt, sanitizer.unwrap_or("plain")).replace([' ', '.'], "_");
    let dir = common::scratch(&format!("compat_{id}"));
    let program = dir.join("program");
    let mut compile = common::cxx();
    headers::of(library.headers).include(&mut compile)?;
    compile.args(["-pthread", "-g"]);
    if let Some(sanitizer) = sanitizer {
        compile.arg(format!("-fsanitize={sanitizer}"));
    }
    compile.arg(common::root().join("tests/compatibility").join(source));
    compile.arg("-o").arg(&program);
    common::link(&mut compile, &dir);
    compile
        .arg(folder.join(library.file))
        .arg(format!("-Wl,-rpath,{}", folder.display()));
    common::run(&mut compile);
    Ok(program)
}

fn rtx(what: &str, sanitizer: Option<&str>) -> Result<(), Outcome> {
    let program = build(&RTX_1_7, "rtx.cpp", sanitizer)?;
    let output = common::run(table::program(&program).arg(what));
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("trtalloc:"), "the library complained: {stderr}");
    Ok(())
}

/// Neither library linked: both opened by the program.
fn opened() -> Result<(), Outcome> {
    let folder = RTX_1_7.folder()?;
    let dir = common::scratch("compat_opened");
    let mut compile = common::cxx();
    headers::of(RTX_1_7.headers).include(&mut compile)?;
    compile.arg(common::root().join("tests/compatibility/opened.cpp"));
    common::run(compile.arg("-o").arg(dir.join("opened")).arg("-ldl"));
    let mut program = table::program(&dir.join("opened"));
    program.arg(folder.join(RTX_1_7.file));
    common::run(program.arg(common::library_dir().join("libtrtalloc.so")));
    Ok(())
}

fn lean(library: &Library) -> Result<(), Outcome> {
    let program = build(library, "lean.cpp", None)?;
    common::run(&mut table::program(&program));
    Ok(())
}

pub fn rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let mut rows = Vec::new();
        let mut add = |tensorrt: &str, what, body: &dyn Fn() -> Result<(), Outcome>| {
            rows.push(Row::of(tensorrt, "C++", "real library", what, || {
                body().map_or_else(|outcome| outcome, |()| Outcome::Passed)
            }));
        };
        let name = RTX_1_7.tensorrt;
        add(
            name,
            "IRuntime and IBuilder take the allocator; a plan for SM89 is built with it",
            &|| rtx("build", None),
        );
        add(
            name,
            "allocator, runtime, builder and plan destroyed in each of 24 orders",
            &|| rtx("orders", None),
        );
        add(
            name,
            "four threads, each with a runtime and a builder, on one allocator",
            &|| rtx("threads", None),
        );
        add(
            name,
            "alive as the process ends, with the allocator gone before, after or never",
            &|| rtx("exit", None),
        );
        add(
            name,
            "both opened with dlopen, and trtalloc closed again while its allocator is held",
            &opened,
        );
        add(
            name,
            "all of these but dlopen under AddressSanitizer, with its leak check",
            &|| rtx("all", Some("address")),
        );
        for library in &LEAN {
            add(
                library.tensorrt,
                "loads beside trtalloc; without a driver, what it gives for an IRuntime is seen as failure",
                &|| lean(library),
            );
        }
        rows
    })
}

#[test]
fn nvidias_libraries() {
    table::check(rows());
}
