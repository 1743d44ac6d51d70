//! Devices.

use std::ffi::{c_char, c_int};

use crate::model::Machine;
use crate::model::code::{INVALID_DEVICE, INVALID_VALUE, Result};
use crate::{functions, put};

/// The name of every device.
const NAME: &str = "Simulated device";

fn known(machine: &Machine, device: c_int) -> Result<()> {
    match u32::try_from(device) {
        Ok(device) if device < machine.config().devices => Ok(()),
        _ => Err(INVALID_DEVICE),
    }
}

/// The value of a `CU_DEVICE_ATTRIBUTE_`. Attributes that are not listed are 0, which means "no" or "none".
fn attribute(machine: &Machine, attribute: u32) -> c_int {
    match attribute {
        1 => 1024,                                           // MAX_THREADS_PER_BLOCK
        10 => 32,                                            // WARP_SIZE
        16 => 132,                                           // MULTIPROCESSOR_COUNT
        41 => 1,                                             // UNIFIED_ADDRESSING
        75 => 9,                                             // COMPUTE_CAPABILITY_MAJOR
        102 => c_int::from(machine.config().virtual_memory), // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        _ => 0,
    }
}

functions! {
    1000 fn cuDeviceGetCount(count: *mut c_int) |machine| {
        // SAFETY: the caller's pointer.
        unsafe { put(count, machine.config().devices as c_int) }
    }

    1000 fn cuDeviceGet(device: *mut c_int, ordinal: c_int) |machine| {
        known(machine, ordinal)?;
        // SAFETY: the caller's pointer.
        unsafe { put(device, ordinal) }
    }

    1000 fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) |machine| {
        known(machine, device)?;
        let length = usize::try_from(length).map_err(|_| INVALID_VALUE)?;
        if name.is_null() || length == 0 {
            return Err(INVALID_VALUE);
        }
        let text: Vec<u8> = NAME.bytes().take(length - 1).chain([0]).collect();
        // SAFETY: the caller's buffer has `length` bytes, and no more are written.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len()) };
        Ok(())
    }

    3020 fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) |machine| {
        known(machine, device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(bytes, machine.config().memory as usize) }
    }

    1000 fn cuDeviceGetAttribute(value: *mut c_int, which: u32, device: c_int) |machine| {
        known(machine, device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(value, attribute(machine, which)) }
    }

    11040 fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) |machine| {
        known(machine, device)?;
        let mut bytes = *b"simulated device";
        bytes[15] = device as u8;
        // SAFETY: the caller's pointer.
        unsafe { put(uuid, bytes) }
    }

    4000 fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) |machine| {
        known(machine, device)?;
        known(machine, peer)?;
        // SAFETY: the caller's pointer.
        unsafe { put(can, c_int::from(device != peer)) }
    }
}
