//! Histories, stacks and snapshots, as their readers find them: PyTorch's viewers, the report and JSON parsers.

#[macro_use]
extern crate trial;

#[path = "../support/common/mod.rs"]
mod common;

mod agreement;
mod browser;
mod ending;
mod life;
mod memory_short;
mod memory_viz;
mod page;
mod program;
mod python;
mod replay;
mod report;
mod server;
mod stacks;
mod viewer_compare;
mod without_lock;

use common::viewer;

fn main() -> std::process::ExitCode {
    common::harness::main()
}
