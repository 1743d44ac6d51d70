//! The driver of Ascend devices over a stand-in for AscendCL, because there is no Ascend device here.

mod attack;
mod bench;
mod driver_rules;
mod library;
mod refusals;
