//! Copies and fills.

use std::ffi::c_void;

use crate::functions;
use crate::model::Machine;
use crate::model::code::Result;

/// The legacy default stream.
const LEGACY: usize = 0;

fn copy_and_wait(machine: &Machine, to: u64, from: u64, bytes: usize) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    machine.copy_async(to, from, bytes as u64, LEGACY)?;
    machine.stream_synchronize(LEGACY)
}

fn copy(machine: &Machine, to: u64, from: u64, bytes: usize, stream: usize) -> Result<()> {
    if bytes == 0 {
        Ok(())
    } else {
        machine.copy_async(to, from, bytes as u64, stream)
    }
}

functions! {
    4000 fn cuMemcpy(to: u64, from: u64, bytes: usize) |machine| { copy_and_wait(machine, to, from, bytes) }

    4000 fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: usize) |machine| {
        copy(machine, to, from, bytes, stream)
    }

    3020 fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) |machine| { copy_and_wait(machine, to, from, bytes) }

    3020 fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) |machine| {
        copy_and_wait(machine, to, from as u64, bytes)
    }

    3020 fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) |machine| {
        copy_and_wait(machine, to as u64, from, bytes)
    }

    3020 fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) |machine| {
        copy(machine, to, from, bytes, stream)
    }

    3020 fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: usize) |machine| {
        copy(machine, to, from as u64, bytes, stream)
    }

    3020 fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: usize) |machine| {
        copy(machine, to as u64, from, bytes, stream)
    }

    3020 fn cuMemsetD8_v2(address: u64, byte: u8, bytes: usize) |machine| {
        if bytes == 0 {
            return Ok(());
        }
        machine.fill_async(address, byte, bytes as u64, LEGACY)?;
        machine.stream_synchronize(LEGACY)
    }

    3020 fn cuMemsetD8Async(address: u64, byte: u8, bytes: usize, stream: usize) |machine| {
        if bytes == 0 { Ok(()) } else { machine.fill_async(address, byte, bytes as u64, stream) }
    }
}
