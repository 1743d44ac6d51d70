//! The driver of Ascend devices, over a stand-in for AscendCL: there is no such device here.

use trtalloc::driver::sim::model;

mod refusals;
mod standin;
