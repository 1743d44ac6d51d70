//! Ascend's rules for memory that is carved from one large block ("secondary memory allocation"), and pools over the
//! caller's memory where there is no driver. The tests call the C functions over this process's own memory, which they
//! read and write directly.

mod exact;
mod no_driver;
mod owners;
mod pool;
mod table;
