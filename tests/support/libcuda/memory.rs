//! Virtual memory, allocations, and queries of addresses.

use std::ffi::{c_int, c_void};

use crate::model::Machine;
use crate::model::code::{INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::{functions, process, put, put_optional};

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
pub struct AllocationProperties {
    kind: c_int,
    export: u32,
    location: Location,
    win32: *mut c_void,
    compression: u8,
    rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub struct Access {
    location: Location,
    flags: c_int,
}

const PINNED: c_int = 1;
const ON_DEVICE: c_int = 1;
const NO_ACCESS: c_int = 0;
const READ_WRITE: c_int = 3;

/// The device for a handle with these properties. Handles that can be exported, or accessed by other devices, are not
/// modelled.
///
/// # Safety
///
/// `properties` is null or may be read.
unsafe fn device_of(properties: *const AllocationProperties) -> Result<i32> {
    // SAFETY: as above.
    let properties = unsafe { properties.as_ref() }.ok_or(INVALID_VALUE)?;
    if properties.kind != PINNED || properties.location.kind != ON_DEVICE {
        return Err(INVALID_VALUE);
    }
    if properties.export != 0 || properties.rdma != 0 || properties.compression != 0 || properties.usage != 0 {
        return Err(NOT_SUPPORTED);
    }
    Ok(properties.location.id)
}

fn allocate_host(machine: &Machine, address: *mut *mut c_void, bytes: usize) -> Result<()> {
    if address.is_null() {
        return Err(INVALID_VALUE);
    }
    let made = machine.memory_host_malloc(bytes as u64)?;
    // SAFETY: the caller's pointer, not null.
    unsafe { put(address, made as *mut c_void) }
}

functions! {
    10020 fn cuMemGetAllocationGranularity(
        bytes: *mut usize, properties: *const AllocationProperties, which: u32,
    ) |machine| {
        // SAFETY: the caller's pointer.
        unsafe { device_of(properties) }?;
        let (minimum, recommended) = machine.config().granularity_of(false);
        let asked = if which == 0 { minimum } else { recommended };
        // SAFETY: the caller's pointer.
        unsafe { put(bytes, asked as usize) }
    }

    // The requested address is a hint, which is ignored.
    10020 fn cuMemAddressReserve(address: *mut u64, bytes: usize, alignment: usize, _wish: u64, flags: u64) |machine| {
        if address.is_null() || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let reserved = machine.memory_reserve(bytes as u64, alignment as u64)?;
        // SAFETY: the caller's pointer.
        unsafe { put(address, reserved) }
    }

    10020 fn cuMemAddressFree(address: u64, bytes: usize) |machine| { machine.memory_unreserve(address, bytes as u64) }

    10020 fn cuMemCreate(
        handle: *mut u64, bytes: usize, properties: *const AllocationProperties, flags: u64,
    ) |machine| {
        if handle.is_null() || flags != 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's pointer.
        let device = unsafe { device_of(properties) }?;
        let created = machine.memory_create(device, bytes as u64)?;
        // SAFETY: the caller's pointer.
        unsafe { put(handle, created) }
    }

    10020 fn cuMemRelease(handle: u64) |machine| { machine.memory_release(handle) }

    10020 fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) |machine| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        machine.memory_map(address, bytes as u64, offset as u64, handle)
    }

    10020 fn cuMemUnmap(address: u64, bytes: usize) |machine| {
        let done = machine.memory_unmap(address, bytes as u64);
        process::report_faults();
        done
    }

    10020 fn cuMemSetAccess(address: u64, bytes: usize, access: *const Access, count: usize) |machine| {
        if access.is_null() || count == 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's array has that many entries.
        let access = unsafe { std::slice::from_raw_parts(access, count) };
        if access.iter().any(|one| one.location.kind != ON_DEVICE) {
            return Err(NOT_SUPPORTED);
        }
        if access.iter().any(|one| one.flags != NO_ACCESS && one.flags != READ_WRITE) {
            return Err(INVALID_VALUE);
        }
        for flags in [NO_ACCESS, READ_WRITE] {
            let devices: Vec<i32> = access.iter().filter(|one| one.flags == flags).map(|one| one.location.id).collect();
            if !devices.is_empty() {
                machine.memory_set_access(address, bytes as u64, &devices, flags == READ_WRITE)?;
            }
        }
        Ok(())
    }

    3020 fn cuMemAlloc_v2(address: *mut u64, bytes: usize) |machine| {
        if address.is_null() {
            return Err(INVALID_VALUE);
        }
        let allocated = machine.memory_malloc(bytes as u64)?;
        // SAFETY: the caller's pointer.
        unsafe { put(address, allocated) }
    }

    3020 fn cuMemFree_v2(address: u64) |machine| {
        if address == 0 {
            return Ok(());
        }
        let done = machine.memory_free(address);
        process::report_faults();
        done
    }

    2020 fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, _flags: u32) |machine| {
        allocate_host(machine, address, bytes)
    }

    3020 fn cuMemAllocHost_v2(address: *mut *mut c_void, bytes: usize) |machine| {
        allocate_host(machine, address, bytes)
    }

    2000 fn cuMemFreeHost(address: *mut c_void) |machine| { machine.memory_host_free(address as u64) }

    3020 fn cuMemHostGetDevicePointer_v2(device: *mut u64, host: *mut c_void, _flags: u32) |_machine| {
        // SAFETY: the caller's pointer.
        unsafe { put(device, host as u64) }
    }

    3020 fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |machine| {
        let info = machine.memory_info(machine.context_current_device()?)?;
        // SAFETY: the caller's pointers.
        unsafe {
            put_optional(free, info.0 as usize);
            put_optional(total, info.1 as usize);
        }
        Ok(())
    }

    // Memory type, device pointer, and the buffer's device.
    4000 fn cuPointerGetAttribute(value: *mut c_void, attribute: u32, address: u64) |machine| {
        let found = machine.memory_at(address).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's pointer, to a value of the attribute's documented type.
        match attribute {
            2 => unsafe { put(value.cast::<u32>(), 2) },
            // SAFETY: likewise.
            3 => unsafe { put(value.cast::<u64>(), address) },
            // SAFETY: likewise.
            9 => unsafe { put(value.cast::<c_int>(), found.device) },
            _ => Err(NOT_SUPPORTED),
        }
    }
}
