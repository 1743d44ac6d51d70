//! `trtalloc run`: the program behaves as without it, and a last line reports what it used.

mod inspected;
mod programs;
mod signals;
mod statistics;
mod tensorrt;

use crate::common::{self, table};

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// `trtalloc run` with those arguments, without TRTALLOC options in the environment.
fn trtalloc_run(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trtalloc"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TRTALLOC_")) {
        command.env_remove(name);
    }
    command.arg("run").args(arguments);
    with_default_signals(&mut command);
    command
}

/// A shell starts background jobs with some signals ignored, and nohup ignores another.
fn with_default_signals(command: &mut Command) {
    let reset = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
            // SAFETY: allowed between fork and exec.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only.
    unsafe { command.pre_exec(reset) };
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[track_caller]
fn expect(output: &Output, status: i32) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "stdout:\n{out}stderr:\n{err}");
}

/// The last line, which the command prints, without its name.
#[track_caller]
fn last(output: &Output) -> &str {
    let said = text(&output.stderr);
    let line = said.lines().last().unwrap_or_default();
    let line = line.strip_prefix("trtalloc run: ");
    line.unwrap_or_else(|| panic!("no last line in {said:?}"))
}

/// What the last line ends with where no call was caught, as the doctor says it.
const NOT_CAUGHT: &str = "; what cannot be seen: a library opened with RTLD_DEEPBIND or dlmopen, one with a TensorRT linked into it, \
                          and what IRuntime::loadRuntime opens";

/// The last line of a program that makes no call of TensorRT.
fn none_seen() -> String {
    format!("no TensorRT was seen{NOT_CAUGHT}")
}

/// A C program of this folder, compiled and linked with the library.
fn program(source: &str, dir: &Path) -> PathBuf {
    let path = dir.join(source.trim_end_matches(".c"));
    let mut compile = common::cc();
    compile.arg("-D_GNU_SOURCE");
    compile.arg(common::root().join("tests/programs/run").join(source));
    compile.arg("-o").arg(&path);
    common::link(&mut compile, dir);
    common::run(&mut compile);
    path
}
