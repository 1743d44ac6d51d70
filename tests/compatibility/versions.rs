//! Two versions under one prefix: each finds its own library, and taking one away leaves the other whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common;
use crate::installed::{build_package, build_package_of, consumer, files, tool};
use crate::table::Outcome;

/// What a file holds, or where a link leads; none of the two where it is a folder.
fn content(path: &Path) -> Vec<u8> {
    match std::fs::read_link(path) {
        Ok(target) => target.into_os_string().into_encoded_bytes(),
        Err(_) => std::fs::read(path).unwrap(),
    }
}

fn contents(prefix: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    files(prefix)
        .into_iter()
        .map(|path| (path.clone(), content(&path)))
        .collect()
}

fn names(prefix: &Path) -> Vec<String> {
    let mut names: Vec<String> = files(prefix)
        .iter()
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The version after this one that may differ from it, and its soname.
fn next() -> (String, String) {
    let numbers: Vec<u32> = env!("CARGO_PKG_VERSION")
        .split('.')
        .map(|number| number.parse().unwrap())
        .collect();
    match numbers[0] {
        0 => (
            format!("0.{}.0", numbers[1] + 1),
            format!("libtrtalloc.so.0.{}", numbers[1] + 1),
        ),
        major => (format!("{}.0.0", major + 1), format!("libtrtalloc.so.{}", major + 1)),
    }
}

/// The repository as it would be in that version.
fn source_of(version: &str, soname: &str, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in [
        "src",
        "cpp",
        "benches",
        "tests",
        "build.rs",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
    ] {
        std::os::unix::fs::symlink(common::root().join(entry), to.join(entry)).unwrap();
    }
    for folder in ["cmake", "include"] {
        for file in files(&common::root().join(folder)) {
            let target = to.join(file.strip_prefix(common::root()).unwrap());
            std::fs::create_dir_all(target.parent().unwrap()).unwrap();
            std::fs::copy(&file, target).unwrap();
        }
    }
    let own = concat!("name = \"trtalloc\"\nversion = \"", env!("CARGO_PKG_VERSION"), "\"");
    for file in ["Cargo.toml", "Cargo.lock"] {
        let text = std::fs::read_to_string(common::root().join(file)).unwrap();
        assert!(text.contains(own), "{file}");
        let text = text.replace(own, &format!("name = \"trtalloc\"\nversion = \"{version}\""));
        let soname = format!("soname = \"{soname}\"");
        std::fs::write(
            to.join(file),
            text.replace(concat!("soname = \"", env!("TRTALLOC_SONAME"), "\""), &soname),
        )
        .unwrap();
    }
}

fn cmake(arguments: &[&str], dir: &Path) -> String {
    let output = common::run(Command::new("cmake").args(arguments).current_dir(dir));
    String::from_utf8(output.stdout).unwrap()
}

/// Installs what was built. CMake leaves a file alone that is as old as the one to install, to the second, and the two versions
/// may be configured within one where cargo has built them before.
fn cmake_install(dir: &Path) -> String {
    let mut install = Command::new("cmake");
    install.args(["--install", "build"]).env("CMAKE_INSTALL_ALWAYS", "1");
    let output = common::run(install.current_dir(dir));
    String::from_utf8(output.stdout).unwrap()
}

fn passes(consumer: &Path) {
    common::run(Command::new("ctest").arg("--output-on-failure").current_dir(consumer));
}

#[test]
fn two_versions_leave_each_other_alone() {
    if let Err(Outcome::Skipped(what, reason)) = tool("cmake") {
        common::skip(what, &reason);
    }
    let dir = common::scratch("compat_versions");
    let (prefix, older, newer) = (dir.join("prefix"), dir.join("older"), dir.join("newer"));
    let (version, soname) = next();
    source_of(&version, &soname, &newer.join("source"));
    build_package(&older, &prefix);
    build_package_of(&newer.join("source"), &newer, &prefix);
    let own = [
        env!("TRTALLOC_SONAME").to_owned(),
        concat!("libtrtalloc.so.", env!("CARGO_PKG_VERSION")).to_owned(),
    ];
    let install = cmake_install;
    let uninstall = |dir: &Path| cmake(&["--build", "build", "--target", "uninstall"], dir);

    install(&older);
    let alone = names(&prefix);
    let built_with_older = consumer("compat_versions/consumer_older", env!("CARGO_PKG_VERSION"), &prefix);
    passes(&built_with_older);
    install(&newer);
    // What was built with the older one runs with the older one.
    passes(&built_with_older);

    // The newer one goes, and the older one's programs still run.
    uninstall(&newer);
    assert_eq!(names(&prefix), own);
    passes(&built_with_older);

    // The older one goes, and the newer one is as it was, whatever the two have in common.
    install(&older);
    assert_eq!(names(&prefix), alone);
    install(&newer);
    let mut expected = contents(&prefix);
    let said = uninstall(&older);
    expected.retain(|path, _| !own.iter().any(|name| path.ends_with(name)));
    assert_eq!(contents(&prefix), expected, "{said}");
    assert!(
        said.contains("Leaving") && said.contains("trtalloc.h: it is of another version"),
        "{said}"
    );
    let built_with_newer = consumer("compat_versions/consumer_newer", &version, &prefix);
    passes(&built_with_newer);
    let needed = common::run(
        Command::new("readelf")
            .arg("-d")
            .arg(built_with_newer.join("consumer_c")),
    );
    let needed = String::from_utf8(needed.stdout).unwrap();
    assert!(needed.contains(&format!("[{soname}]")), "{needed}");
    uninstall(&newer);
    assert!(files(&prefix).is_empty(), "{:?}", files(&prefix));
}

/// A file that was changed after the installation is not thrown away.
#[test]
fn a_file_that_was_changed_is_left() {
    if let Err(Outcome::Skipped(what, reason)) = tool("cmake") {
        common::skip(what, &reason);
    }
    let dir = common::scratch("compat_changed");
    let prefix = dir.join("prefix");
    build_package(&dir, &prefix);
    cmake(&["--install", "build"], &dir);
    let changed = prefix.join("include/trtalloc/trtalloc.hpp");
    std::fs::write(&changed, "/* mine */").unwrap();
    cmake(&["--build", "build", "--target", "uninstall"], &dir);
    assert_eq!(files(&prefix), [changed]);
}
