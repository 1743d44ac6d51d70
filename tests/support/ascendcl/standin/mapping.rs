//! Virtual memory: reservations, handles and mappings.

use std::ffi::{c_int, c_void};

use super::{INVALID_PARAM, NOT_SUPPORTED, RT_PARAM_INVALID, Result, UNALIGNED, checked, context, functions, put};
use crate::model::Machine;

/// `aclrtMemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    id: u32,
    kind: c_int,
}

/// `aclrtPhysicalMemProp`.
#[repr(C)]
pub struct PhysicalProperties {
    handle_type: c_int,
    allocation_type: c_int,
    attribute: c_int,
    location: Location,
    reserve: u64,
}

/// `aclrtMemAccessDesc`.
#[repr(C)]
pub struct Access {
    flags: c_int,
    location: Location,
    reserved: [u8; 12],
}

/// `ACL_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_int = 1;
/// `ACL_RT_MEM_ACCESS_FLAGS_READWRITE`.
const READ_WRITE: c_int = 3;
/// Attributes of physical memory on a device that exist on all chips: `ACL_HBM_MEM_HUGE`, `ACL_HBM_MEM_NORMAL`,
/// `ACL_MEM_NORMAL`, `ACL_MEM_HUGE`; and the two of 1 GiB.
const ATTRIBUTES: [c_int; 6] = [4, 5, 12, 13, 10, 14];

/// The device for a handle with these properties.
///
/// # Safety
///
/// `properties` is null or may be read.
unsafe fn device_of(properties: *const PhysicalProperties) -> Result<i32> {
    // SAFETY: as above.
    let properties = unsafe { properties.as_ref() }.ok_or(INVALID_PARAM)?;
    if properties.handle_type != 0 || properties.allocation_type != 0 || !ATTRIBUTES.contains(&properties.attribute) {
        return Err(INVALID_PARAM);
    }
    if properties.location.kind != ON_DEVICE {
        return Err(INVALID_PARAM);
    }
    i32::try_from(properties.location.id).map_err(|_| super::INVALID_DEVICE)
}

fn granularity(machine: &Machine) -> Result<u64> {
    match machine.config().virtual_memory {
        true => Ok(machine.config().granularity),
        false => Err(NOT_SUPPORTED),
    }
}

functions! {
    fn aclrtMemGetAllocationGranularity(properties: *const PhysicalProperties, option: c_int, out: *mut usize) |machine| {
        // SAFETY: the caller's pointer.
        unsafe { device_of(properties) }?;
        if !(0..=1).contains(&option) {
            return Err(INVALID_PARAM);
        }
        let bytes = granularity(machine)?;
        // SAFETY: the caller's pointer.
        unsafe { put(out, bytes as usize) }
    }

    fn aclrtReserveMemAddress(
        out: *mut *mut c_void, size: usize, alignment: usize, wish: *mut c_void, flags: u64,
    ) |machine| {
        super::wanted(out)?;
        if size == 0 || flags > 1 {
            return Err(INVALID_PARAM);
        }
        if alignment != 0 || !wish.is_null() {
            return Err(RT_PARAM_INVALID);
        }
        context(machine)?;
        if !(size as u64).is_multiple_of(granularity(machine)?) {
            return Err(UNALIGNED);
        }
        let address = checked(machine.memory_reserve(size as u64, 0))?;
        // SAFETY: the caller's pointer, not null.
        unsafe { put(out, address as *mut c_void) }
    }

    fn aclrtReleaseMemAddress(address: *mut c_void) |machine| {
        super::wanted(address)?;
        context(machine)?;
        checked(machine.memory_unreserve_at(address as u64))
    }

    fn aclrtMallocPhysical(out: *mut usize, size: usize, properties: *const PhysicalProperties, flags: u64) |machine| {
        super::wanted(out)?;
        // SAFETY: the caller's pointer.
        let device = unsafe { device_of(properties) }?;
        if size == 0 || flags != 0 {
            return Err(INVALID_PARAM);
        }
        context(machine)?;
        if !(size as u64).is_multiple_of(granularity(machine)?) {
            return Err(UNALIGNED);
        }
        let handle = checked(machine.memory_create(device, size as u64))?;
        // SAFETY: the caller's pointer, not null.
        unsafe { put(out, handle as usize) }
    }

    fn aclrtFreePhysical(handle: usize) |machine| {
        if handle == 0 {
            return Err(INVALID_PARAM);
        }
        context(machine)?;
        checked(machine.memory_release(handle as u64))
    }

    // Mapping gives access to the handle's own device, without a further call.
    fn aclrtMapMem(address: *mut c_void, size: usize, offset: usize, handle: usize, flags: u64) |machine| {
        super::wanted(address)?;
        if size == 0 || flags != 0 || handle == 0 {
            return Err(INVALID_PARAM);
        }
        if offset != 0 {
            return Err(RT_PARAM_INVALID);
        }
        context(machine)?;
        checked(machine.memory_map(address as u64, size as u64, 0, handle as u64))?;
        let _exempt = machine.exempt();
        let owner = machine.memory_at(address as u64).map_or(0, |at| at.device);
        checked(machine.memory_set_access(address as u64, size as u64, &[owner], true))
    }

    fn aclrtUnmapMem(address: *mut c_void) |machine| {
        super::wanted(address)?;
        context(machine)?;
        let at = machine.memory_at(address as u64).filter(|at| at.base == address as u64 && at.handle != 0);
        let size = at.ok_or(RT_PARAM_INVALID)?.size;
        checked(machine.memory_unmap(address as u64, size))
    }

    fn aclrtMemSetAccess(address: *mut c_void, size: usize, access: *const Access, count: usize) |machine| {
        super::wanted(address)?;
        if access.is_null() || count == 0 || size == 0 {
            return Err(INVALID_PARAM);
        }
        context(machine)?;
        // SAFETY: the caller's array has that many entries.
        let access = unsafe { std::slice::from_raw_parts(access, count) };
        if access.iter().any(|one| one.location.kind != ON_DEVICE || one.flags != READ_WRITE) {
            return Err(NOT_SUPPORTED);
        }
        let devices: Vec<i32> = access.iter().map(|one| one.location.id as i32).collect();
        checked(machine.memory_set_access(address as u64, size as u64, &devices, true))
    }
}

const _: () = assert!(size_of::<PhysicalProperties>() == 32 && size_of::<Access>() == 24);
