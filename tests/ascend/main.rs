//! The driver of Ascend devices, over a stand-in for AscendCL: there is no such device here.

// What the pool's fault sweep, which is the library's own, calls these.
use trtalloc::driver::sim::model;
use trtalloc::{allocator, config, driver, error};

mod attack;
mod bench;
mod driver_rules;
mod library;
mod over;
mod refusals;
mod standin;
