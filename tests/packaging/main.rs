//! What is handed out: the Python package and frameworks over it, the pack for a machine with a GPU, packages and releases.

#[macro_use]
extern crate trial;

#[path = "../support/common/mod.rs"]
mod common;

mod gpu;
mod packages;
mod python;
mod release;

fn main() -> std::process::ExitCode {
    common::harness::main()
}
