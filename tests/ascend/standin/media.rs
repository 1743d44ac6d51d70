//! Media memory: `libacl_dvpp.so` and `libacl_dvpp_mpi.so`.

use std::ffi::c_void;

use super::memory::{allocate, base_of};
use super::{INVALID_PARAM, OUT_OF_MEMORY, RT_PARAM_INVALID, Result, context, functions, told};
use crate::model::Machine;

/// Media memory begins at a multiple of this, and of nothing more.
const START: u64 = 128;
/// What both round up to and add.
const PAD: u64 = 32;

/// The media libraries' own numbers: `HI_ERR_SYS_NO_MEM`, `HI_ERR_SYS_ILLEGAL_PARAM`.
fn media(result: Result<()>) -> Result<()> {
    result.map_err(|code| match code {
        OUT_OF_MEMORY => 0xa002_800c_u32 as i32,
        INVALID_PARAM | RT_PARAM_INVALID => 0xa002_8003_u32 as i32,
        code => code,
    })
}

fn free(machine: &Machine, address: *mut c_void) -> Result<()> {
    let base = base_of(address, START)?;
    context(machine)?;
    told(machine.memory_free_at_once(base))
}

functions! {
    fn acldvppMalloc(out: *mut *mut c_void, size: usize) |machine| { allocate(machine, out, size as u64, PAD, START) }

    fn acldvppFree(address: *mut c_void) |machine| { free(machine, address) }

    // The number is reserved and means nothing: it is the device of this thread's context.
    fn hi_mpi_dvpp_malloc(_device: u32, out: *mut *mut c_void, size: u64) |machine| {
        media(allocate(machine, out, size, PAD, START))
    }

    fn hi_mpi_dvpp_free(address: *mut c_void) |machine| { media(free(machine, address)) }
}
