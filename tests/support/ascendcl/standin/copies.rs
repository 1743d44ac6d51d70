//! Copies and fills.

use std::ffi::c_void;

use super::{INVALID_PARAM, RT_PARAM_INVALID, Result, checked, context, functions, stream_here, wanted};
use crate::model::Machine;

/// `ACL_MEMCPY_INTER_DEVICE_TO_DEVICE`, the last kind.
const LAST_KIND: u32 = 7;

fn copy(
    machine: &Machine,
    to: *mut c_void,
    room: usize,
    from: *const c_void,
    bytes: usize,
    kind: u32,
    stream: usize,
) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    wanted(to)?;
    wanted(from)?;
    if kind > LAST_KIND {
        return Err(INVALID_PARAM);
    }
    if bytes > room {
        return Err(RT_PARAM_INVALID);
    }
    stream_here(machine, stream)?;
    checked(machine.copy_async(to as u64, from as u64, bytes as u64, stream))
}

fn fill(machine: &Machine, to: *mut c_void, room: usize, byte: i32, bytes: usize, stream: usize) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    wanted(to)?;
    if bytes > room {
        return Err(RT_PARAM_INVALID);
    }
    stream_here(machine, stream)?;
    checked(machine.fill_async(to as u64, byte as u8, bytes as u64, stream))
}

fn finish(machine: &Machine) -> Result<()> {
    context(machine)?;
    checked(machine.stream_synchronize(0))
}

functions! {
    fn aclrtMemcpy(to: *mut c_void, room: usize, from: *const c_void, bytes: usize, kind: u32) |machine| {
        copy(machine, to, room, from, bytes, kind, 0)?;
        finish(machine)
    }

    fn aclrtMemcpyAsync(
        to: *mut c_void, room: usize, from: *const c_void, bytes: usize, kind: u32, stream: usize,
    ) |machine| {
        copy(machine, to, room, from, bytes, kind, stream)
    }

    fn aclrtMemset(to: *mut c_void, room: usize, byte: i32, bytes: usize) |machine| {
        fill(machine, to, room, byte, bytes, 0)?;
        finish(machine)
    }

    fn aclrtMemsetAsync(to: *mut c_void, room: usize, byte: i32, bytes: usize, stream: usize) |machine| {
        fill(machine, to, room, byte, bytes, stream)
    }
}
