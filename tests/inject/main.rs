//! A program that was not written for trtalloc, with trtalloc in front of its TensorRT: every TensorRT, in every way that a
//! program can reach it.
//!
//! A stand-in for TensorRT is compiled from NVIDIA's headers (or, for 8 and 9, from a declaration of our own) and uses the
//! allocator that it is given, on the simulated device. NVIDIA's own libraries are tried as far as they go without a GPU. The
//! tables are part of docs/injection.md:
//!
//!     TRTALLOC_TEST_REQUIRE=all cargo test --test inject table

#[macro_use]
extern crate trial;

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/headers.rs"]
mod headers;
#[path = "../common/packages.rs"]
mod packages;
#[path = "../common/table.rs"]
mod table;
#[path = "../common/wheel.rs"]
mod wheel;

mod cases;
mod many;
mod matrix;
mod page;
mod processes;
mod real;
mod slots;
mod standin;

// tests/common/wheel.rs asks this before it fetches.
use common::may_download;

fn main() -> std::process::ExitCode {
    common::harness::main()
}
