//! What the library promises: its C functions, options, figures and errors, and the drivers below it; the documents, and how the
//! sources use each other. Most tests run in this process on a simulated device; a test of what belongs to a process starts this program
//! again for itself, or a C program.

#[macro_use]
extern crate trial;

#[path = "../support/ascendcl/mod.rs"]
mod ascendcl;
#[path = "../support/common/mod.rs"]
mod common;

mod ascend;
mod ascend_examples;
mod ascend_rules;
mod bad_calls;
mod c_functions;
mod decay;
mod default_streams;
mod device_memory;
mod documents;
mod exports;
mod forked_children;
mod header;
mod hooks;
mod integrated;
mod layout;
mod log;
mod names;
mod pinned;
mod share_budget;
mod sim;
mod tags;
mod toy_driver;
mod trace;
mod vtable;

use ascendcl::{over, standin};
// The stand-in for AscendCL, and the pool's own fault sweep over it, name these so.
use trtalloc::driver::sim::model;
use trtalloc::{allocator, driver, support};

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Ok(task) = std::env::var(share_budget::worker::TASK) {
        return share_budget::worker::run(&task);
    }
    // Refusals that tests cause are not logged between the results. In a process of one test, the log is what the test reads.
    if std::env::var_os("TRTALLOC_LOG").is_none() && !std::env::args().any(|argument| argument == "--exact") {
        trtalloc::log::init(trtalloc::config::LogLevel::Off);
    }
    common::harness::main()
}
