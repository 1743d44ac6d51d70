//! Allocations of device memory and host memory, and free memory.

use std::ffi::c_void;

use super::{INVALID_PARAM, RT_PARAM_INVALID, Result, checked, context, functions, put};
use crate::model::Machine;

/// Addresses of `aclrtMalloc` are multiples of this and of no larger power of two.
const START: u64 = 64;
/// The model's own addresses are multiples of this.
const PLACE: u64 = 256;
/// `ACL_MEM_MALLOC_HUGE1G_ONLY` and `ACL_MEM_MALLOC_HUGE1G_ONLY_P2P`, which add no bytes. Unknown policies are
/// accepted.
const HUGE_1G: [u32; 2] = [6, 7];

/// Rounds bytes as AscendCL does. An error where that is too much.
pub(super) fn rounded(size: u64, pad: u64) -> Result<u64> {
    size.checked_add(31 + pad)
        .map(|size| size / 32 * 32)
        .ok_or(INVALID_PARAM)
}

/// Memory that begins `start` bytes after the model's allocation.
pub(super) fn allocate(machine: &Machine, out: *mut *mut c_void, size: u64, pad: u64, start: u64) -> Result<()> {
    super::wanted(out)?;
    if size == 0 {
        return Err(INVALID_PARAM);
    }
    context(machine)?;
    let whole = rounded(size, pad)?.checked_add(start).ok_or(INVALID_PARAM)?;
    let base = checked(machine.memory_malloc(whole))?;
    // SAFETY: the caller's pointer, not null.
    unsafe { put(out, (base + start) as *mut c_void) }
}

/// Where the model's allocation begins. Refuses null and addresses that are not `start` bytes after such a place.
pub(super) fn base_of(address: *mut c_void, start: u64) -> Result<u64> {
    super::wanted(address)?;
    match address as u64 {
        address if address % PLACE == start => Ok(address - start),
        _ => Err(RT_PARAM_INVALID),
    }
}

fn malloc(machine: &Machine, out: *mut *mut c_void, size: usize, pad: u64, policy: u32) -> Result<()> {
    let pad = if HUGE_1G.contains(&policy) { 0 } else { pad };
    allocate(machine, out, size as u64, pad, START)
}

functions! {
    fn aclrtMalloc(out: *mut *mut c_void, size: usize, policy: u32) |machine| { malloc(machine, out, size, 32, policy) }

    fn aclrtMallocAlign32(out: *mut *mut c_void, size: usize, policy: u32) |machine| {
        malloc(machine, out, size, 0, policy)
    }

    fn aclrtMallocCached(out: *mut *mut c_void, size: usize, policy: u32) |machine| {
        malloc(machine, out, size, 32, policy)
    }

    // It needs no context.
    fn aclrtFree(address: *mut c_void) |machine| {
        let base = base_of(address, START)?;
        checked(machine.memory_free_at_once(base))
    }

    fn aclrtFreeWithDevSync(address: *mut c_void) |machine| {
        let base = base_of(address, START)?;
        checked(machine.memory_free(base))
    }

    fn aclrtMallocHost(out: *mut *mut c_void, size: usize) |machine| {
        super::wanted(out)?;
        if size == 0 {
            return Err(INVALID_PARAM);
        }
        context(machine)?;
        let whole = (size as u64).checked_add(START).ok_or(INVALID_PARAM)?;
        let base = checked(machine.memory_host_malloc(whole))?;
        // SAFETY: the caller's pointer, not null.
        unsafe { put(out, (base + START) as *mut c_void) }
    }

    fn aclrtFreeHost(address: *mut c_void) |machine| {
        let base = base_of(address, START)?;
        checked(machine.memory_host_free(base))
    }

    fn aclrtMemFlush(address: *mut c_void, size: usize) |_machine| {
        if size == 0 { Err(INVALID_PARAM) } else { super::wanted(address) }
    }

    fn aclrtMemInvalidate(address: *mut c_void, size: usize) |_machine| {
        if size == 0 { Err(INVALID_PARAM) } else { super::wanted(address) }
    }

    // ACL_DDR_MEM, ACL_HBM_MEM and their pages: this device has one kind of memory, and it is HBM.
    fn aclrtGetMemInfo(attribute: u32, free: *mut usize, total: *mut usize) |machine| {
        const HBM: [u32; 3] = [1, 4, 5];
        context(machine)?;
        super::wanted(free)?;
        super::wanted(total)?;
        let here = { let _exempt = machine.exempt(); checked(machine.context_current_device())? };
        let known = checked(machine.memory_info(here))?;
        let known = if HBM.contains(&attribute) { known } else { (0, 0) };
        // SAFETY: the caller's pointers.
        unsafe {
            put(free, known.0 as usize)?;
            put(total, known.1 as usize)
        }
    }
}
