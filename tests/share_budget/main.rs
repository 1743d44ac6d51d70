//! `share_budget` between processes, over simulated devices whose memory they share (`sim_shared`).
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `TRTALLOC_STRESS_SECONDS` | how long eight processes are killed, stopped and started | 12 |
//! | `TRTALLOC_STRESS_SEED` | the random seed | the time |
//!
//! The processes are this program again, with a task in `TRTALLOC_TEST_TASK` (`worker`).

#[macro_use]
extern crate trial;

#[path = "../common/mod.rs"]
mod common;
mod processes;
mod worker;

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::var(worker::TASK) {
        Ok(task) => worker::run(&task),
        Err(_) => common::harness::main(),
    }
}
