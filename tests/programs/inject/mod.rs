//! Injects trtalloc into programs that do not use it, with every TensorRT and in every way that a program can call it.
//!
//! A stand-in for TensorRT is compiled from NVIDIA's headers (for 8 and 9, from declarations of this project) and uses
//! the allocator that it gets, on the simulated device. NVIDIA's own libraries run as far as they can without a GPU.
//! The tables are part of docs/injection.md:
//!
//!     TRTALLOC_TEST_REQUIRE=all cargo test --test programs inject::page

mod cases;
mod many;
mod matrix;
mod names;
mod page;
mod processes;
mod real;
mod slots;
pub mod standin;

use crate::common::{headers, packages, table, wheel};
