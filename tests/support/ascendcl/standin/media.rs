//! Media memory: `libacl_dvpp.so` and `libacl_dvpp_mpi.so`.

use std::ffi::c_void;

use super::memory::{allocate, base_of};
use super::{INVALID_PARAM, OUT_OF_MEMORY, RT_PARAM_INVALID, Result, checked, context, functions};
use crate::model::Machine;

/// Media memory begins at multiples of this and of no larger power of two.
const START: u64 = 128;
/// Both functions round sizes up to this and add it.
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
    checked(machine.memory_free_at_once(base))
}

functions! {
    fn acldvppMalloc(out: *mut *mut c_void, size: usize) |machine| { allocate(machine, out, size as u64, PAD, START) }

    fn acldvppFree(address: *mut c_void) |machine| { free(machine, address) }

    // The device number is reserved and ignored: the device is that of this thread's context.
    fn hi_mpi_dvpp_malloc(_device: u32, out: *mut *mut c_void, size: u64) |machine| {
        media(allocate(machine, out, size, PAD, START))
    }

    fn hi_mpi_dvpp_free(address: *mut c_void) |machine| { media(free(machine, address)) }
}
