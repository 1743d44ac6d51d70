//! The driver of Ascend devices over a stand-in for AscendCL, because there is no Ascend device here.

// `bench` uses these through the pool's own fault sweep.
use trtalloc::driver::sim::model;
use trtalloc::{allocator, driver, support};

mod attack;
mod bench;
mod driver_rules;
mod library;
mod over;
mod refusals;
mod standin;
