//! Programs whose malloc is the pool's (`shim.c`) print and write what they do with glibc's. They write to each byte of hundreds of
//! thousands of blocks, so a block that lies in another one's memory changes that.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common;

fn here() -> PathBuf {
    common::root().join("tests/programs/malloc")
}

/// The malloc of the pool.
fn shim(dir: &Path) -> PathBuf {
    let shim = dir.join("shim.so");
    let mut compile = common::cc();
    compile.args([
        "-std=gnu11",
        "-O2",
        "-fno-builtin-malloc",
        "-fPIC",
        "-shared",
        "-Wno-pedantic",
        "-I",
    ]);
    compile.arg(common::root().join("include")).arg("-o").arg(&shim);
    common::run(compile.arg(here().join("shim.c")).args(["-ldl", "-pthread"]));
    shim
}

/// Runs a shell's commands in a fresh folder, with the pool's malloc or without. Returns what they print, and how many blocks the pool
/// gave them.
fn output(name: &str, commands: &str, shim: Option<&Path>) -> (String, u64) {
    let dir = common::scratch(name);
    let counts = dir.join("counts");
    let work = dir.join("work");
    std::fs::create_dir(&work).unwrap();
    let mut shell = Command::new("sh");
    shell
        .args(["-e", "-c", commands])
        .current_dir(&work)
        .stdin(Stdio::null());
    // What these programs print is to depend on nothing else.
    shell
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default());
    shell.env("HOME", &work).env("ROOT", common::root()).env("HERE", here());
    shell
        .env("LC_ALL", "C")
        .env("PYTHONHASHSEED", "0")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    // Python has an allocator of its own for small objects.
    shell.env("PYTHONMALLOC", "malloc");
    if let Some(shim) = shim {
        shell.env("LD_PRELOAD", shim);
        shell.env("TRTALLOC_TEST_LIBRARY", common::library_dir().join("libtrtalloc.so"));
        shell.env("TRTALLOC_TEST_OUTPUT", &counts);
    }
    let Output { status, stdout, stderr } = shell.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(status.success(), "{status}: {}{}", text(&stdout), text(&stderr));
    let counts = std::fs::read_to_string(counts).unwrap_or_default();
    let blocks = counts.lines().map(|line| line.parse::<u64>().unwrap()).sum();
    (text(&stdout) + &text(&stderr), blocks)
}

/// Compares both, and checks that the pool has given at least so many blocks.
#[track_caller]
fn same(program: &'static str, commands: &str, at_least: u64) {
    common::not_emulated(program);
    let there = Command::new(program).arg("--version").output();
    if !there.is_ok_and(|output| output.status.success()) {
        common::skip(program, &format!("no {program}"));
    }
    let dir = common::scratch(&format!("malloc_{program}"));
    let (glibc, none) = output(&format!("malloc_{program}/without"), commands, None);
    let (pool, blocks) = output(&format!("malloc_{program}/with"), commands, Some(&shim(&dir)));
    assert_eq!(pool, glibc);
    assert!(!pool.is_empty() && none == 0, "{pool} {none}");
    println!("{program}: {blocks} blocks");
    assert!(blocks >= at_least, "{blocks} blocks of {program}");
}

#[test]
fn python() {
    same("python3", "python3 \"$HERE/work.py\"", 500_000);
}

#[test]
fn compiler() {
    let commands = "for file in \"$ROOT\"/examples/c/main.c \"$HERE\"/shim.c; do
        cc -O2 -S -I \"$ROOT/include\" -o out.s \"$file\"; cksum out.s; done";
    same("cc", commands, 50_000);
}

#[test]
fn git() {
    let commands = "git init -q -b main repository; cd repository
        export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
        git config user.name tester; git config user.email tester@example.org; git config gc.auto 0
        cp -r \"$ROOT/src/pool\" pool; git add .; git commit -qm first
        rm -r pool/tests; cp \"$ROOT\"/docs/*.md .; git add -A; git commit -qm second
        git log --stat -M | cat; git diff HEAD~1 --patience | cksum; git blame README.md | cksum
        git repack -adfq --threads=2; git fsck; git rev-parse HEAD; git archive HEAD | cksum";
    same("git", commands, 20_000);
}

#[test]
fn tar() {
    let commands = "tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C \"$ROOT\" -cf out.tar src docs
        tar -tvf out.tar | cksum; gzip -n9 -k out.tar; cksum out.tar.gz
        mkdir out; tar -xzf out.tar.gz -C out; find out -type f | sort | xargs cksum";
    same("tar", commands, 5_000);
}
