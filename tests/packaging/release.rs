//! `.ci/release` and `.ci/deny`, in clones of this checkout: what they refuse, and that a commit gives the same files twice.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn git(folder: &Path, arguments: &[&str]) {
    let mut git = Command::new("git");
    git.arg("-C")
        .arg(folder)
        .args(["-c", "user.name=test", "-c", "user.email=test@localhost"]);
    // A commit of a test has a time of its own.
    git.env("GIT_AUTHOR_DATE", "2026-01-02T03:04:05Z")
        .env("GIT_COMMITTER_DATE", "2026-01-02T03:04:05Z");
    common::run(git.args(arguments));
}

/// A checkout of its own with the files that are tracked here, as they are now, in one commit. Its changelog has this version.
fn checkout(name: &str) -> PathBuf {
    if Command::new("git").arg("--version").output().is_err() {
        common::skip("git", "no git");
    }
    let to = common::scratch(name);
    let mut list = Command::new("git");
    list.arg("-C")
        .arg(common::root())
        .args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let files = list.output().unwrap();
    if !files.status.success() {
        common::skip("git", "this is no git checkout");
    }
    for file in text(&files.stdout).lines() {
        let from = common::root().join(file);
        // A file may be gone from the folder and not yet from the index.
        if from.exists() {
            fs::create_dir_all(to.join(file).parent().unwrap()).unwrap();
            fs::copy(from, to.join(file)).unwrap();
        }
    }
    let changelog = to.join("CHANGELOG.md");
    let changes = fs::read_to_string(&changelog).unwrap();
    if !changes.contains(&format!("\n## [{VERSION}] - ")) {
        let section = format!("## [{VERSION}] - 2026-01-01\n");
        fs::write(&changelog, changes.replacen("## [Unreleased]\n", &section, 1)).unwrap();
    }
    // The checkout may not have the script that builds packages; no test here runs it.
    if !to.join(".ci/packages").exists() {
        fs::copy(to.join(".ci/release"), to.join(".ci/packages")).unwrap();
    }
    // An older version behind it.
    let older = fs::read_to_string(&changelog).unwrap() + "\n## [0.0.1] - 2025-01-01\n\n- Older.\n";
    fs::write(&changelog, older).unwrap();
    git(&to, &["init", "--quiet"]);
    commit(&to);
    to
}

fn commit(folder: &Path) {
    git(folder, &["add", "--all"]);
    git(folder, &["commit", "--quiet", "--allow-empty", "--message", "test"]);
}

fn release(folder: &Path, arguments: &[&str]) -> Output {
    let mut release = Command::new(folder.join(".ci/release"));
    // What it builds belongs to the clone.
    release.args(arguments).env("CARGO_TARGET_DIR", folder.join("target"));
    release.env_remove("SOURCE_DATE_EPOCH");
    release.output().unwrap()
}

fn replace(file: &Path, from: &str, to: &str) {
    let old = fs::read_to_string(file).unwrap();
    assert!(old.contains(from), "{} does not have {from}", file.display());
    fs::write(file, old.replacen(from, to, 1)).unwrap();
}

/// The heading of this version in the changelog.
fn heading(folder: &Path) -> String {
    let changes = fs::read_to_string(folder.join("CHANGELOG.md")).unwrap();
    let begin = format!("## [{VERSION}] - ");
    changes
        .lines()
        .find(|line| line.starts_with(&begin))
        .unwrap()
        .to_owned()
}

#[test]
fn a_checkout_that_is_as_it_should_be_can_be_released() {
    let folder = checkout("good");
    let output = release(&folder, &["--check", VERSION]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).contains("can be released"),
        "{}",
        text(&output.stdout)
    );
    assert!(!folder.join("target").exists(), "--check made something");
    git(&folder, &["tag", &format!("v{VERSION}")]);
    assert!(
        release(&folder, &["--check", VERSION]).status.success(),
        "the tag is of this commit"
    );
}

#[test]
fn each_mistake_is_named_before_anything_is_built() {
    let folder = checkout("bad");
    let refused = |arguments: &[&str], reason: &str| {
        let output = release(&folder, arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(
            said.starts_with("release: ") && said.contains(reason),
            "{arguments:?}: {said}"
        );
        assert!(!folder.join("target").exists(), "{arguments:?} made something");
    };
    refused(&[], "use: .ci/release");
    refused(&["one"], "one is no version");
    refused(&[&format!("v{VERSION}")], "is no version");
    refused(&["99.1.0"], &format!("Cargo.toml has version {VERSION}, not 99.1.0"));
    refused(&["--chek", VERSION], "no option is called --chek");
    refused(&["--parts", "notes,deb", VERSION], "no part is called deb");
    refused(&[VERSION, folder.join("src").to_str().unwrap()], "is there already");

    // Each of these in a commit of its own, on top of the first.
    let with = |file: &str, from: &str, to: &str, reason: &str| {
        replace(&folder.join(file), from, to);
        commit(&folder);
        refused(&[VERSION], reason);
        git(&folder, &["reset", "--quiet", "--hard", "HEAD~1"]);
    };
    let of_crate = format!("\nversion = \"{VERSION}\"");
    let of_python = format!("\nVERSION = \"{VERSION}\"");
    let of_lock = format!("name = \"trtalloc\"\nversion = \"{VERSION}\"");
    let heading = heading(&folder);
    with(
        "Cargo.toml",
        &of_crate,
        "\nversion = \"99.1.0\"",
        "Cargo.toml has version 99.1.0",
    );
    with(
        "Cargo.lock",
        &of_lock,
        "name = \"trtalloc\"\nversion = \"99.1.0\"",
        "Cargo.lock has version 99.1.0",
    );
    with(
        "python/trtalloc/_library.py",
        &of_python,
        "\nVERSION = \"99.1.0\"",
        "_library.py has version 99.1.0",
    );
    with(
        "CHANGELOG.md",
        &heading,
        "## [99.1.0] - 2026-01-01",
        &format!("no section [{VERSION}]"),
    );
    with("CHANGELOG.md", &heading, &format!("## [{VERSION}]"), "is not");
    let empty = format!("{heading}\n\n## [0.0.2] - 2026-01-01");
    with(
        "CHANGELOG.md",
        &heading,
        &empty,
        &format!("the section [{VERSION}] has no entry"),
    );

    fs::write(folder.join("left-over"), "").unwrap();
    refused(&[VERSION], "left-over");
    fs::remove_file(folder.join("left-over")).unwrap();
    replace(&folder.join("README.md"), "# trtalloc", "# Trtalloc");
    refused(
        &[VERSION],
        "the checkout differs from its commit; commit or remove:\n M README.md",
    );
    git(&folder, &["checkout", "--quiet", "README.md"]);
    git(&folder, &["tag", &format!("v{VERSION}")]);
    commit(&folder);
    refused(&[VERSION], "is the tag of another commit");
}

#[test]
fn notes_and_sources_are_the_same_in_another_folder() {
    let parts = ["--parts", "notes,source", VERSION];
    let made = ["once", "again"].map(|name| {
        let folder = checkout(name);
        let output = release(&folder, &parts);
        assert!(
            output.status.success(),
            "{}\n{}",
            text(&output.stdout),
            text(&output.stderr)
        );
        let out = folder.join(format!("target/release-{VERSION}"));
        // A second time it is refused, and the folder stays as it was.
        assert_eq!(release(&folder, &parts).status.code(), Some(1));
        (folder, out)
    });
    let sums = made
        .each_ref()
        .map(|(_, out)| fs::read_to_string(out.join("SHA256SUMS")).unwrap());
    assert_eq!(sums[0], sums[1]);
    let (folder, out) = &made[0];
    let names: Vec<&str> = sums[0]
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    let (notes, source) = (
        format!("trtalloc-{VERSION}-notes.md"),
        format!("trtalloc-{VERSION}-source.tar.gz"),
    );
    assert_eq!(names, [&notes, &source]);
    common::run(
        Command::new("sha256sum")
            .args(["--check", "SHA256SUMS"])
            .current_dir(out),
    );

    let notes = fs::read_to_string(out.join(notes)).unwrap();
    let day = heading(folder).rsplit(' ').next().unwrap().to_owned();
    assert!(
        notes.starts_with(&format!("# trtalloc {VERSION} - {day}\n\n### ")),
        "{notes}"
    );
    assert!(!notes.contains("\n## "), "more than one section:\n{notes}");
    let changes = fs::read_to_string(folder.join("CHANGELOG.md")).unwrap();
    let body = notes.split_once("\n\n").unwrap().1.trim_end();
    assert!(changes.contains(body), "not as in the changelog:\n{body}");

    // What the archive has is what the commit has.
    let unpacked = common::scratch("unpacked");
    let mut tar = Command::new("tar");
    common::run(tar.arg("-xzf").arg(out.join(source)).arg("-C").arg(&unpacked));
    let mut list = Command::new("git");
    list.arg("-C")
        .arg(folder)
        .args(["ls-tree", "-r", "--name-only", "-z", "HEAD"]);
    let unpacked = unpacked.join(format!("trtalloc-{VERSION}"));
    for file in text(&common::run(&mut list).stdout).split_terminator('\0') {
        assert!(
            fs::read(unpacked.join(file)).unwrap() == fs::read(folder.join(file)).unwrap(),
            "{file}"
        );
    }
}

/// What builds the packages, in the place of `.ci/packages`: a .deb as CMake makes it, with a time of its own in each file.
const PACKAGES: &str = r#"#!/bin/sh
set -e
cd "$(dirname "$0")/.."
out=$CARGO_TARGET_DIR/packages
mkdir -p "$out" "$CARGO_TARGET_DIR/deb/DEBIAN" "$CARGO_TARGET_DIR/deb/usr/lib"
printf 'Package: trtalloc\nVersion: 1\nArchitecture: arm64\nMaintainer: test\nDescription: test\n' >"$CARGO_TARGET_DIR/deb/DEBIAN/control"
echo library >"$CARGO_TARGET_DIR/deb/usr/lib/libtrtalloc.so.1"
ln -sf libtrtalloc.so.1 "$CARGO_TARGET_DIR/deb/usr/lib/libtrtalloc.so"
dpkg-deb --root-owner-group --build "$CARGO_TARGET_DIR/deb" "$out/trtalloc_1_arm64.deb"
echo wheel >"$out/trtalloc-1.whl"
"#;

#[test]
fn packages_are_taken_and_the_library_has_an_archive() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        common::skip("dpkg", "no dpkg-deb");
    }
    let made = ["packages-once", "packages-again"].map(|name| {
        let folder = checkout(name);
        let script = folder.join(".ci/packages");
        let _ = fs::remove_file(&script);
        commit(&folder);
        let without = release(&folder, &[VERSION]);
        assert_eq!(without.status.code(), Some(1));
        assert!(
            text(&without.stderr).contains("there is no .ci/packages"),
            "{}",
            text(&without.stderr)
        );
        common::write_program(&script, PACKAGES.as_bytes());
        commit(&folder);
        let output = release(&folder, &["--parts", "packages", VERSION]);
        assert!(
            output.status.success(),
            "{}\n{}",
            text(&output.stdout),
            text(&output.stderr)
        );
        folder.join(format!("target/release-{VERSION}"))
    });
    let sums = made
        .each_ref()
        .map(|out| fs::read_to_string(out.join("SHA256SUMS")).unwrap());
    assert_eq!(sums[0], sums[1]);
    let archive = format!("trtalloc-{VERSION}-linux-arm64.tar.gz");
    let names: Vec<&str> = sums[0]
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    assert_eq!(names, [&archive, "trtalloc-1.whl", "trtalloc_1_arm64.deb"]);
    let mut list = Command::new("tar");
    let listed = text(&common::run(list.arg("-tzf").arg(made[0].join(archive))).stdout);
    let inside = format!("trtalloc-{VERSION}-linux-arm64");
    let expected = ["/", "/lib/", "/lib/libtrtalloc.so", "/lib/libtrtalloc.so.1"].map(|name| format!("{inside}{name}"));
    assert_eq!(listed.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn the_bill_of_materials_has_every_dependency() {
    let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("release-tools");
    if !tools.join("cyclonedx-0.5.9/bin/cargo-cyclonedx").exists() {
        common::unsupported("no cargo-cyclonedx yet: .ci/release compiles it, which takes minutes");
    }
    let made = ["bill-once", "bill-again"].map(|name| {
        let folder = checkout(name);
        fs::create_dir(folder.join("target")).unwrap();
        std::os::unix::fs::symlink(&tools, folder.join("target/release-tools")).unwrap();
        let output = release(&folder, &["--parts", "sbom", VERSION]);
        assert!(
            output.status.success(),
            "{}\n{}",
            text(&output.stdout),
            text(&output.stderr)
        );
        let name = format!("target/release-{VERSION}/trtalloc-{VERSION}.cdx.json");
        fs::read_to_string(folder.join(name)).unwrap()
    });
    assert!(made[0] == made[1], "two folders, two bills");
    let bill: serde_json::Value = serde_json::from_str(&made[0]).unwrap();
    assert_eq!(bill["metadata"]["component"]["version"], VERSION);
    let components = bill["components"].as_array().unwrap();
    let names: Vec<&str> = components.iter().map(|one| one["name"].as_str().unwrap()).collect();
    // Those of the library, of the command and of the build; none of tests, and none of other systems.
    for name in ["cudarc", "cxx", "clap", "httparse", "cc"] {
        assert!(names.contains(&name), "{name} is missing: {names:?}");
    }
    for name in ["criterion", "proptest", "cbindgen", "windows-sys"] {
        assert!(!names.contains(&name), "{name} is no part of a release");
    }
    for one in components {
        assert!(one["licenses"][0]["expression"].is_string(), "no licence: {one}");
        assert!(one["hashes"][0]["content"].is_string(), "no checksum: {one}");
    }
}

/// `.ci/deny` in a clone, with a database of advisories of the test's own or none.
fn deny(folder: &Path, database: Option<&Path>) -> Output {
    let mut deny = Command::new(folder.join(".ci/deny"));
    // The tool stays in this build's folder.
    deny.env(
        "CARGO_TARGET_DIR",
        Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap(),
    );
    match database {
        Some(database) => deny.env("TRTALLOC_ADVISORY_DB", database),
        None => deny.env_remove("TRTALLOC_ADVISORY_DB"),
    };
    deny.output().unwrap()
}

/// A database of advisories with one, about any version of a package.
fn database(name: &str, package: &str) -> PathBuf {
    let folder = common::scratch(name);
    let file = folder.join(format!("crates/{package}/RUSTSEC-2026-9999.md"));
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let advisory = format!(
        "```toml\n[advisory]\nid = \"RUSTSEC-2026-9999\"\npackage = \"{package}\"\ndate = \"2026-01-01\"\n\n[versions]\npatched = \
         []\n```\n\n# Made up\n\nFor a test.\n"
    );
    fs::write(file, advisory).unwrap();
    git(&folder, &["init", "--quiet", "--initial-branch", "main"]);
    commit(&folder);
    folder
}

#[test]
fn dependencies_are_held_to_licences_and_advisories() {
    if let Err(reason) = common::may_download() {
        common::skip("cargo-deny", &reason);
    }
    let folder = checkout("deny");
    let harmless = deny(&folder, Some(&database("harmless", "no-such-package")));
    let said = text(&harmless.stdout) + &text(&harmless.stderr);
    assert!(harmless.status.success(), "{said}");
    assert!(said.contains("advisories ok") && !said.contains("NOT ASKED"), "{said}");

    let affected = deny(&folder, Some(&database("affected", "libc")));
    let said = text(&affected.stdout) + &text(&affected.stderr);
    assert!(
        !affected.status.success() && said.contains("RUSTSEC-2026-9999"),
        "{said}"
    );

    // One that cannot be had is no answer, and says so.
    let missing = deny(&folder, Some(&common::scratch("no-database")));
    let said = text(&missing.stdout) + &text(&missing.stderr);
    assert!(
        missing.status.success() && said.contains("advisories NOT ASKED"),
        "{said}"
    );
    assert!(!said.contains("advisories ok"), "{said}");

    replace(&folder.join("deny.toml"), "\"ISC\", ", "");
    let refused = deny(&folder, None);
    let said = text(&refused.stdout) + &text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("ISC"), "{said}");
}
