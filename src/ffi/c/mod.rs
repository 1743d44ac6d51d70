//! The C ABI, a file for each group of functions: the comments on their public items are the text of the headers, which
//! `tests/header.rs` generates. `hooks` makes `include/trtalloc/hooks.h`, the others `include/trtalloc/trtalloc.h`.
//!
//! Nulls and panics stop here. A function that fails leaves the reason for [`trtalloc_last_error`] and
//! [`trtalloc_last_status`], and a line in the log.

// The names are C's, and the safety of each function is in the words a C programmer reads.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

mod allocator;
mod arguments;
mod block;
mod cpp_exceptions;
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
