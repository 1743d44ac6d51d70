//! Built and installed with CMake, found by find_package and by pkg-config.

mod common;

use std::path::Path;
use std::process::Command;

fn available(tool: &str) -> bool {
    let there = Command::new(tool)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !there {
        common::skip(tool, &format!("no {tool}"));
    }
    there
}

#[test]
fn it_is_found_where_it_is_installed() {
    if !available("cmake") {
        return;
    }
    let dir = common::scratch("cmake");
    let prefix = dir.join("prefix");
    // What is built already serves: the folder above the test executables' is named for the profile.
    let profile_dir = common::library_dir().parent().unwrap().to_owned();
    let profile = match profile_dir.file_name().and_then(|name| name.to_str()).unwrap() {
        "debug" => "dev",
        other => other,
    };
    let cmake = |arguments: &[String]| common::run(Command::new("cmake").args(arguments));
    let define = |key: &str, value: &Path| format!("-D{key}={}", value.display());
    let folder = |name: &str| dir.join(name).display().to_string();

    cmake(&[
        "-S".into(),
        common::root().join("cmake").display().to_string(),
        "-B".into(),
        folder("build"),
        define("CMAKE_INSTALL_PREFIX", &prefix),
        define("CARGO", Path::new(env!("CARGO"))),
        define("TRTALLOC_CARGO_TARGET_DIR", profile_dir.parent().unwrap()),
        format!("-DTRTALLOC_PROFILE={profile}"),
    ]);
    cmake(&["--build".into(), folder("build")]);
    cmake(&["--install".into(), folder("build")]);

    let consumer = |build: &str, version: &str| {
        let mut command = Command::new("cmake");
        command
            .arg("-S")
            .arg(common::root().join("tests/cmake"))
            .arg("-B")
            .arg(dir.join(build));
        command
            .arg(define("CMAKE_PREFIX_PATH", &prefix))
            .arg(format!("-DWANTED_VERSION={version}"));
        command
    };
    common::run(&mut consumer("consumer", env!("CARGO_PKG_VERSION")));
    cmake(&["--build".into(), folder("consumer")]);
    common::run(
        Command::new("ctest")
            .arg("--output-on-failure")
            .current_dir(dir.join("consumer")),
    );
    let refused = consumer("refused", "99.0").output().unwrap();
    assert!(!refused.status.success(), "a version that is not there was found");

    if !available("pkg-config") {
        return;
    }
    let pc = walk(&prefix, "trtalloc.pc").expect("trtalloc.pc is installed");
    let flags = common::run(
        Command::new("pkg-config")
            .args(["--cflags", "--libs", "trtalloc"])
            .env("PKG_CONFIG_PATH", pc.parent().unwrap()),
    );
    let flags = String::from_utf8(flags.stdout).unwrap();
    let library_dir = flags
        .split_whitespace()
        .find_map(|flag| flag.strip_prefix("-L"))
        .unwrap();
    let program = dir.join("pkg_config");
    let mut compile = Command::new("cc");
    compile
        .arg(common::root().join("tests/cmake/consumer.c"))
        .arg("-o")
        .arg(&program);
    common::run(
        compile
            .args(flags.split_whitespace())
            .arg(format!("-Wl,-rpath,{library_dir}")),
    );
    let output = common::run(&mut Command::new(program));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        env!("CARGO_PKG_VERSION")
    );
}

/// The file of that name somewhere under `dir`: the library folder's name differs between systems.
fn walk(dir: &Path, name: &str) -> Option<std::path::PathBuf> {
    for entry in std::fs::read_dir(dir).ok()?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if let Some(found) = walk(&path, name) {
                return Some(found);
            }
        } else if path.ends_with(name) {
            return Some(path);
        }
    }
    None
}
