//! The C ABI, a file for each group of functions. The comments on public items are the text of the headers, which
//! `tests/library/header.rs` generates: `include/trtalloc/hooks.h` from `hooks` and `dlpack`, and `include/trtalloc/trtalloc.h` from the
//! others.
//!
//! The functions check for null pointers and catch panics. A function that fails sets the reason for
//! [`trtalloc_last_error`] and [`trtalloc_last_status`], and logs a line.

// The names follow C's conventions, and the comments state each function's requirements for C programmers.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

mod allocator;
mod arguments;
mod block;
mod cpp_exceptions;
pub mod dlpack;
mod history;
pub mod hooks;
mod limit;
mod output;
mod stats;
mod status;
mod stream;
mod tag;
mod tensorrt;

pub use allocator::*;
pub use block::*;
pub use history::*;
pub use limit::*;
pub use output::*;
pub use stats::*;
pub use status::*;
pub use stream::*;
pub use tag::*;
pub use tensorrt::*;
