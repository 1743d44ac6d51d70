//! The command, run as a user runs it: what it prints, and its exit status.

mod arguments;
mod bench;
mod compare;
mod demo;
mod output;
mod recorded;
mod replay;
mod serve;

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::common::{self, simcuda};

fn trtalloc(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// The command, with none of the environment's options.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trtalloc"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TRTALLOC_")) {
        command.env_remove(name);
    }
    command.args(arguments);
    command
}

/// The command with a libcuda.so.1 in its way, behind which is the simulated device.
fn through_libcuda(arguments: &[&str]) -> Output {
    let folder = simcuda::directory().expect("the simulated libcuda.so.1 is there or can be built");
    command(arguments).env("LD_LIBRARY_PATH", folder).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[track_caller]
fn expect(output: &Output, status: i32) {
    assert_eq!(
        output.status.code(),
        Some(status),
        "stdout:\n{}stderr:\n{}",
        stdout(output),
        stderr(output)
    );
}

/// A file with that text, in a folder of its own.
fn file(name: &str, text: &str) -> PathBuf {
    let path = common::scratch(&format!("command-{name}")).join(name);
    std::fs::write(&path, text).unwrap();
    path
}

const SMALL: &str = "op,id,bytes,stream\nalloc,0,3145728,\nalloc,1,1000,5\nalloc,2,2097152,6\nfree,1,1000,5\n\
                     alloc,3,1000,5\nrealloc,2,4194304,6\nfree,2,4194304,6\nfree,3,1000,5\n";
