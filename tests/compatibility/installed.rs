//! Examples and consumers, built in fresh folders against the package as CMake installs it, and run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

pub use crate::common::installed::*;
use crate::libraries::{LEAN, Library, RTX_1_7};
use crate::table::{self, Outcome, Row};
use crate::{common, headers};

/// Every file under `dir`.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() && !path.is_symlink() {
            true => all.extend(files(&path)),
            false => all.push(path),
        }
    }
    all
}

/// A copy of a folder of the repository, with nothing of the repository around it.
fn copy(source: &str, name: &str) -> PathBuf {
    let to = common::scratch(name);
    let from = common::root().join(source);
    for file in files(&from) {
        let inside = file.strip_prefix(&from).unwrap();
        if inside.starts_with("target") || inside.ends_with("Cargo.lock") {
            continue;
        }
        let target = to.join(inside);
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(&file, target).unwrap();
    }
    to
}

/// Builds a copy of a CMake project against the installed package; the folder with what it built.
fn project(source: &str, name: &str, arguments: &[String]) -> Result<PathBuf, Outcome> {
    Ok(project_under(prefix()?, source, name, arguments))
}

fn project_under(prefix: &Path, source: &str, name: &str, arguments: &[String]) -> PathBuf {
    let folder = copy(source, name);
    let build = folder.join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&folder).arg("-B").arg(&build);
    common::run(configure.arg(define("CMAKE_PREFIX_PATH", prefix)).args(arguments));
    common::run(Command::new("cmake").arg("--build").arg(&build));
    build
}

/// A consumer of that version under `prefix`; the folder with what it built.
pub fn consumer(name: &str, version: &str, prefix: &Path) -> PathBuf {
    let wanted = format!("-DWANTED_VERSION={version}");
    project_under(prefix, "tests/support/consumer", name, &[wanted])
}

/// Where a CMake project finds a TensorRT.
fn with(library: &Library) -> Result<Vec<String>, Outcome> {
    let [include, cuda] = headers::of(library.headers).folders()?;
    Ok(vec![
        define("TENSORRT_INCLUDE", include),
        define("TENSORRT_LIBRARY", &library.folder()?.join(library.file)),
        define("CUDA_INCLUDE", cuda),
        // The older of the two interfaces' methods are deprecated in NVIDIA's newer headers.
        "-DCMAKE_CXX_FLAGS=-Wno-deprecated-declarations".to_owned(),
    ])
}

/// Runs an example; whatever its status, it ends by itself.
fn example(program: &Path, arguments: &[&str]) -> (Output, String) {
    let output = table::program(program).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let all = format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr));
    assert!(output.status.code().is_some(), "{}: {all}", program.display());
    (output, all)
}

/// Says what was wrong with what an example wrote.
fn expect(all: &str, status: i32, words: &[&str]) {
    assert!(all.starts_with(&format!("exit status: {status}\n")), "{all}");
    for word in words {
        assert!(all.contains(word), "no {word:?} in {all}");
    }
}

fn c() -> Result<(), Outcome> {
    let built = project("examples/c", "compat_example_c", &[])?;
    let (_, all) = example(&built.join("pool"), &["driver=sim"]);
    expect(
        &all,
        0,
        &["reused at once: yes", "grown to 64 MiB: yes, 0 bytes copied"],
    );
    let (_, all) = example(&built.join("pool"), &["driver=ascend"]);
    expect(&all, 1, &["no allocator: "]);
    Ok(())
}

fn c_with_pkg_config() -> Result<(), Outcome> {
    tool("pkg-config")?;
    let installed = files(prefix()?);
    let pc = installed
        .iter()
        .find(|file| file.ends_with("trtalloc.pc"))
        .expect("trtalloc.pc is installed");
    let folder = copy("examples/c", "compat_example_pkg_config");
    let mut ask = Command::new("pkg-config");
    ask.args(["--cflags", "--libs", "trtalloc"])
        .env("PKG_CONFIG_PATH", pc.parent().unwrap());
    let flags = String::from_utf8(common::run(&mut ask).stdout).unwrap();
    let library_dir = flags
        .split_whitespace()
        .find_map(|flag| flag.strip_prefix("-L"))
        .unwrap();
    let program = folder.join("pool");
    let mut compile = Command::new("cc");
    compile.args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]);
    compile.arg(folder.join("main.c")).args(flags.split_whitespace());
    compile.arg(format!("-Wl,-rpath,{library_dir}")).arg("-o").arg(&program);
    common::run(&mut compile);
    let (_, all) = example(&program, &["driver=sim"]);
    expect(&all, 0, &["reused at once: yes"]);
    Ok(())
}

fn cpp() -> Result<(), Outcome> {
    let built = project("examples/cpp", "compat_example_cpp", &[])?;
    let (_, all) = example(&built.join("pool"), &["driver=sim"]);
    expect(
        &all,
        0,
        &["200 MiB: yes", "256: no", "out of memory", "now reserved 0 bytes"],
    );
    let (_, all) = example(&built.join("pool"), &["limit=lots"]);
    expect(&all, 1, &["lots"]);
    Ok(())
}

fn rtx() -> Result<(), Outcome> {
    let built = project("examples/tensorrt_rtx", "compat_example_rtx", &with(&RTX_1_7)?)?;
    for capability in ["80", "86", "89", "120", "121"] {
        let (_, all) = example(&built.join("rtx"), &[capability, "driver=sim"]);
        expect(&all, 0, &["a plan of "]);
    }
    // On this machine's own GPU, where there is one; without, it says so and ends.
    let (output, all) = example(&built.join("rtx"), &[]);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{all}");
    Ok(())
}

fn lean(library: &'static Library) -> Result<(), Outcome> {
    let name = format!("compat_example_{}", library.file);
    let built = project("examples/tensorrt", &name, &with(library)?)?;
    let nonsense = built.join("nonsense.engine");
    std::fs::write(&nonsense, [7; 4096]).unwrap();
    let (_, all) = example(&built.join("infer"), &[nonsense.to_str().unwrap(), "driver=sim"]);
    // With a driver it is the engine that is refused, without one the runtime.
    assert!(
        all.contains("TensorRT made no runtime") || all.contains("is no engine"),
        "{all}"
    );
    expect(&all, 1, &[]);
    Ok(())
}

/// Runs cargo with what is here already; where that is not enough, with the network.
fn cargo(arguments: impl Fn(&mut Command)) -> Output {
    let command = |offline: &str| {
        let mut command = Command::new(env!("CARGO"));
        command.arg("--quiet").env("CARGO_NET_OFFLINE", offline);
        arguments(&mut command);
        command
    };
    match command("true").output() {
        Ok(output) if output.status.success() => output,
        _ => common::run(&mut command("false")),
    }
}

/// The crate as it would be published, and the example as its only user.
fn rust() -> Result<(), Outcome> {
    compiles_the_crate();
    let dir = common::scratch("compat_example_rust");
    cargo(|package| {
        package.args(["package", "--no-verify", "--allow-dirty", "--manifest-path"]);
        package
            .arg(common::root().join("Cargo.toml"))
            .arg("--target-dir")
            .arg(dir.join("package"));
    });
    let name = concat!("trtalloc-", env!("CARGO_PKG_VERSION"));
    let packed = dir.join("package/package").join(format!("{name}.crate"));
    common::run(Command::new("tar").arg("-xzf").arg(packed).arg("-C").arg(&dir));
    let folder = copy("examples/rust", "compat_example_rust/example");
    let manifest = folder.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let patched = text.replace("../..", dir.join(name).to_str().unwrap());
    assert_ne!(patched, text);
    std::fs::write(&manifest, patched).unwrap();
    // The versions that this build has already.
    std::fs::copy(common::root().join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    let output = cargo(|run| {
        run.arg("run").arg("--manifest-path").arg(&manifest);
        run.arg("--target-dir")
            .arg(cargo_target("rust"))
            .args(["--", "driver=sim"]);
    });
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for word in ["reused at once: true", "0 bytes copied", "110400: true"] {
        assert!(text.contains(word), "{text}");
    }
    Ok(())
}

pub fn rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let mut rows = Vec::new();
        let mut add = |tensorrt: &str, language, with, what, body: &dyn Fn() -> Result<(), Outcome>| {
            rows.push(Row::of(tensorrt, language, with, what, || {
                body().map_or_else(|outcome| outcome, |()| Outcome::Passed)
            }));
        };
        let installed =
            "examples/tensorrt, built against the installed package: where no runtime is made, it says so and ends";
        add(
            RTX_1_7.tensorrt,
            "C++",
            "real library",
            "examples/tensorrt_rtx, built against the installed package: plans for five compute capabilities",
            &rtx,
        );
        for library in &LEAN {
            add(library.tensorrt, "C++", "real library", installed, &|| lean(library));
        }
        let (none, package) = ("none", "installed package");
        add(none, "C", package, "examples/c with CMake", &c);
        add(
            none,
            "C",
            package,
            "examples/c as C99 with pkg-config",
            &c_with_pkg_config,
        );
        add(none, "C++", package, "examples/cpp with CMake", &cpp);
        add(
            none,
            "Rust",
            "packaged crate",
            "examples/rust; the interfaces of TensorRT 8, 11 and RTX as pointers",
            &rust,
        );
        rows
    })
}

#[test]
fn examples() {
    table::check(rows());
}

#[test]
fn a_package_of_another_version_is_not_taken() {
    let consumer =
        |name: &str, version: &str| project("tests/support/consumer", name, &[format!("-DWANTED_VERSION={version}")]);
    let built = match consumer("compat_consumer", env!("CARGO_PKG_VERSION")) {
        Ok(built) => built,
        Err(Outcome::Skipped(what, reason)) => common::skip(what, &reason),
        Err(other) => panic!("{other:?}"),
    };
    common::run(Command::new("ctest").arg("--output-on-failure").current_dir(built));
    assert!(std::panic::catch_unwind(|| consumer("compat_refused", "99.0")).is_err());
}

#[test]
fn installed_files_can_be_removed() {
    if let Err(Outcome::Skipped(what, reason)) = tool("cmake") {
        common::skip(what, &reason);
    }
    let dir = common::scratch("compat_uninstall");
    let stage = dir.join("stage");
    build_package(&dir, Path::new("/usr"));
    let cmake = |arguments: &[&str]| {
        common::run(
            Command::new("cmake")
                .args(arguments)
                .current_dir(&dir)
                .env("DESTDIR", &stage),
        );
    };
    cmake(&["--install", "build"]);
    let there = files(&stage);
    let names = [
        "trtalloc",
        "libtrtalloc.so",
        env!("TRTALLOC_SONAME"),
        "trtalloc.h",
        "hooks.h",
        "trtalloc.hpp",
        "tensorrt.hpp",
        "rmm.hpp",
        "mr.hpp",
        "onnxruntime.h",
        "trtalloc.pc",
    ];
    for name in names {
        assert!(there.iter().any(|file| file.ends_with(name)), "no {name} in {there:?}");
    }
    // Somebody else's file stays, and so does the folder it is in.
    let theirs = stage.join("usr/include/trtalloc/theirs.h");
    std::fs::write(&theirs, "").unwrap();
    cmake(&["--build", "build", "--target", "uninstall"]);
    assert_eq!(files(&stage), [theirs]);
    let nothing_left = Command::new("cmake")
        .args(["--build", "build", "--target", "uninstall"])
        .current_dir(&dir)
        .output();
    assert!(!nothing_left.unwrap().status.success());
}

/// A project adds the folder cmake to its own build, has a target named uninstall of its own, and installs what it has.
#[test]
fn a_project_can_add_the_folder_to_its_build() {
    if let Err(Outcome::Skipped(what, reason)) = tool("cmake") {
        common::skip(what, &reason);
    }
    let dir = common::scratch("compat_added");
    let cargo = copying_cargo(&dir);
    let lists = format!(
        "cmake_minimum_required(VERSION 3.18)\nproject(app C)\nadd_custom_target(uninstall COMMAND true)\n\
         add_subdirectory(\"{root}/cmake\" trtalloc)\nadd_executable(app \"{root}/tests/support/consumer/consumer.c\")\n\
         target_link_libraries(app PRIVATE trtalloc::trtalloc)\ninstall(TARGETS app)\n",
        root = common::root().display()
    );
    std::fs::write(dir.join("CMakeLists.txt"), lists).unwrap();
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&dir).arg("-B").arg(dir.join("build"));
    configure.args([define("CARGO", &cargo), "-DTRTALLOC_PROFILE=dev".to_owned()]);
    common::run(&mut configure);
    common::run(Command::new("cmake").arg("--build").arg(dir.join("build")));
    let output = common::run(&mut table::program(&dir.join("build/app")));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        env!("CARGO_PKG_VERSION")
    );
    let prefix = dir.join("prefix");
    let mut install = Command::new("cmake");
    common::run(
        install
            .arg("--install")
            .arg(dir.join("build"))
            .arg("--prefix")
            .arg(&prefix),
    );
    let there = files(&prefix);
    for name in ["app", "libtrtalloc.so", "trtalloc.h", "trtallocConfig.cmake"] {
        assert!(there.iter().any(|file| file.ends_with(name)), "no {name} in {there:?}");
    }
}
