//! The stand-in for AscendCL in this process, and the driver over it. `lib.rs` makes a library of the stand-in. A binary that
//! includes this file has both names, and `model`, at its root.

pub mod over;
pub mod standin;
