//! Stream capture.

use std::ffi::c_void;

use crate::model::Machine;
use crate::model::code::Result;
use crate::{functions, put, put_optional};

/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const ACTIVE: u32 = 1;

/// Status, id and graph.
fn info(machine: &Machine, stream: usize) -> Result<(u32, u64, usize)> {
    let status = machine.stream_is_capturing(stream)?;
    match machine.stream_capture_info(stream)? {
        Some((id, graph)) if status == ACTIVE => Ok((status, id, graph)),
        _ => Ok((status, 0, 0)),
    }
}

functions! {
    10000 fn cuStreamIsCapturing(stream: usize, status: *mut u32) |machine| {
        let known = machine.stream_is_capturing(stream)?;
        // SAFETY: the caller's pointer.
        unsafe { put(status, known) }
    }

    10010 fn cuStreamBeginCapture_v2(stream: usize, mode: u32) |machine| { machine.stream_begin_capture(stream, mode) }

    10000 fn cuStreamEndCapture(stream: usize, graph: *mut usize) |machine| {
        let ended = machine.stream_end_capture(stream);
        // SAFETY: the caller's pointer.
        unsafe { put(graph, ended.unwrap_or(0)) }?;
        ended.map(drop)
    }

    10010 fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) |machine| {
        // SAFETY: null, or the caller's readable pointer.
        let wanted = unsafe { mode.as_ref() }.copied().ok_or(crate::model::code::INVALID_VALUE)?;
        let before = machine.exchange_capture_mode(wanted)?;
        // SAFETY: the caller's pointer.
        unsafe { put(mode, before) }
    }

    10010 fn cuStreamGetCaptureInfo(stream: usize, status: *mut u32, id: *mut u64) |machine| {
        let known = info(machine, stream)?;
        // SAFETY: the caller's pointers.
        unsafe {
            put(status, known.0)?;
            put_optional(id, known.1);
        }
        Ok(())
    }

    11030 fn cuStreamGetCaptureInfo_v2(
        stream: usize, status: *mut u32, id: *mut u64, graph: *mut usize, nodes: *mut *const c_void, count: *mut usize,
    ) |machine| {
        let known = info(machine, stream)?;
        // SAFETY: the caller's pointers.
        unsafe {
            put(status, known.0)?;
            put_optional(id, known.1);
            put_optional(graph, known.2);
            put_optional(nodes, std::ptr::null());
            put_optional(count, 0);
        }
        Ok(())
    }

    12030 fn cuStreamGetCaptureInfo_v3(
        stream: usize, status: *mut u32, id: *mut u64, graph: *mut usize, nodes: *mut *const c_void,
        edges: *mut *const c_void, count: *mut usize,
    ) |machine| {
        let known = info(machine, stream)?;
        // SAFETY: the caller's pointers.
        unsafe {
            put(status, known.0)?;
            put_optional(id, known.1);
            put_optional(graph, known.2);
            put_optional(nodes, std::ptr::null());
            put_optional(edges, std::ptr::null());
            put_optional(count, 0);
        }
        Ok(())
    }
}
