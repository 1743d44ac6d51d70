//! Media memory: `libacl_dvpp.so` and `libacl_dvpp_mpi.so`.

use std::ffi::c_void;

use super::memory::{allocate, base_of};
use super::{context, functions, told};

/// Media memory begins at a multiple of this, and of nothing more.
const START: u64 = 128;
/// What both round up to and add.
const PAD: u64 = 32;

functions! {
    fn acldvppMalloc(out: *mut *mut c_void, size: usize) |machine| { allocate(machine, out, size as u64, PAD, START) }

    fn acldvppFree(address: *mut c_void) |machine| {
        let base = base_of(address, START)?;
        context(machine)?;
        told(machine.memory_free_at_once(base))
    }

    // The number is reserved and means nothing: it is the device of this thread's context.
    fn hi_mpi_dvpp_malloc(_device: u32, out: *mut *mut c_void, size: u64) |machine| {
        allocate(machine, out, size, PAD, START)
    }

    fn hi_mpi_dvpp_free(address: *mut c_void) |machine| {
        let base = base_of(address, START)?;
        context(machine)?;
        told(machine.memory_free_at_once(base))
    }
}
