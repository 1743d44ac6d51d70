//! The wheel: what is in it, and its installation into a fresh environment.

use std::path::Path;
use std::process::Command;

use crate::common;
use crate::python::environment::{MYPY, NUMPY, PYTEST, builder, environment, file_in, pip, pytest, wheel, wheel_of};

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
    match common::may_download().and_then(|()| pip(&python, &["install", PYTEST, NUMPY])) {
        Ok(()) => pytest(&python, &["test_package.py", "test_blocks.py", "test_pages.py"], &[]),
        Err(reason) => common::skip_part("pytest", &reason),
    }
}

/// The package's types, as mypy finds them in an installed wheel, with the Pythons that the package is for.
#[test]
fn types_are_checked_by_mypy() {
    let dir = common::scratch("python_types");
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
    if let Err(reason) = pip(&python, &["install", MYPY]) {
        common::skip("mypy", &reason);
    }
    let package = common::root().join("python");
    let mypy = |version: &str, what: &[&str]| {
        let mut mypy = Command::new(&python);
        mypy.args(["-m", "mypy", "--strict", "--python-version", version, "--config-file"]);
        mypy.arg(package.join("pyproject.toml"))
            .arg("--cache-dir")
            .arg(dir.join("cache"));
        mypy.args(what).current_dir(&dir);
        mypy.output().unwrap()
    };
    let api = package.join("tests/typed_api.py");
    for version in ["3.9", "3.13"] {
        // The package's own files, and a program that uses them: without py.typed mypy would not read their types.
        for what in [&["-p", "trtalloc"][..], &[api.to_str().unwrap()]] {
            let output = mypy(version, what);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{version} {what:?}: {said}");
        }
    }
    // The checker sees the types.
    let wrong = dir.join("wrong.py");
    std::fs::write(&wrong, "import trtalloc\ntrtalloc.allocate(\"1MiB\")\n").unwrap();
    let output = mypy("3.9", &[wrong.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success() && said.contains("arg-type"), "{said}");
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
        "trtalloc/_cuda_headers/missing/crt/host_defines.h",
        "trtalloc/_torch_allocator.cpp",
        "trtalloc/py.typed",
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
