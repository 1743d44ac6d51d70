//! Programs that use the library without a change, and the command: `trtalloc run` and `ctl`, injection, preloading, and what the
//! command prints. `malloc`: programs whose own memory is the pool's.

#[macro_use]
extern crate trial;

#[path = "../support/common/mod.rs"]
mod common;

mod command;
mod control;
mod doctor;
mod inject;
mod malloc;
mod preload;
mod run;

fn main() -> std::process::ExitCode {
    common::harness::main()
}
