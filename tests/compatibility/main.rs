//! Every TensorRT and every language, each tried with the most real thing there is: NVIDIA's library, its headers, or our
//! own declaration of an interface whose headers may not be copied.
//!
//! What needs the network is fetched once, through cargo and pip, into the build's folder, with TRTALLOC_TEST_DOWNLOAD=1;
//! without it the test is ignored and says why, and with TRTALLOC_TEST_REQUIRE=all what cannot be had is a failure. The table of what was tried is docs/compatibility.md:
//!
//!     TRTALLOC_TEST_REQUIRE=all cargo test --test compatibility table

#[macro_use]
extern crate trial;

#[path = "../support/common/mod.rs"]
mod common;

mod eight;
mod generations;
mod headers;
mod installed;
mod libraries;
mod table;
mod versions;

use common::{headers as nvidia, packages, table as rows};

fn main() -> std::process::ExitCode {
    common::harness::main()
}

/// What the table is made of, in its order.
const GROUPS: &[fn() -> &'static [table::Row]] = &[eight::rows, headers::rows, libraries::rows, installed::rows];
