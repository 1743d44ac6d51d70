//! Capture. A model running instance stands for a graph and, once its capture has ended, for one executable of it.

use std::collections::HashMap;
use std::ffi::c_int;

use parking_lot::Mutex;

use super::{INVALID_PARAM, RT_PARAM_INVALID, Result, checked, context, functions, put, stream_here};
use crate::model::Machine;
use crate::model::code::CAPTURE_IMPLICIT;

/// `ACL_MODEL_RI_CAPTURE_STATUS_NONE`.
const NONE: u32 = 0;

/// The executables of graphs whose capture has ended.
static EXECUTABLES: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);

/// The next machine has other graphs.
pub(super) fn forget() {
    *EXECUTABLES.lock() = None;
}

fn executable(machine: &Machine, graph: usize) -> Result<usize> {
    let mut all = EXECUTABLES.lock();
    let all = all.get_or_insert_default();
    if let Some(known) = all.get(&graph) {
        return Ok(*known);
    }
    let made = checked(machine.graph_instantiate(graph))?;
    all.insert(graph, made);
    Ok(made)
}

functions! {
    fn aclmdlRICaptureBegin(stream: usize, mode: u32) |machine| {
        if stream == 0 {
            return Err(INVALID_PARAM);
        }
        stream_here(machine, stream)?;
        checked(machine.stream_begin_capture(stream, mode))
    }

    fn aclmdlRICaptureGetInfo(stream: usize, status: *mut u32, model: *mut usize) |machine| {
        if stream == 0 || (status.is_null() && model.is_null()) {
            return Err(INVALID_PARAM);
        }
        context(machine)?;
        let known = match machine.stream_is_capturing(stream) {
            Err(CAPTURE_IMPLICIT) => NONE,
            known => checked(known)?,
        };
        let graph = match known {
            NONE => 0,
            _ => checked(machine.stream_capture_info(stream))?.map_or(0, |(_, graph)| graph),
        };
        for (to, value) in [(status.cast::<c_int>(), known as c_int)] {
            if !to.is_null() {
                // SAFETY: the caller's pointer, not null.
                unsafe { put(to, value) }?;
            }
        }
        if !model.is_null() {
            // SAFETY: the caller's pointer, not null.
            unsafe { put(model, graph) }?;
        }
        Ok(())
    }

    fn aclmdlRICaptureEnd(stream: usize, model: *mut usize) |machine| {
        super::wanted(model)?;
        stream_here(machine, stream)?;
        let graph = checked(machine.stream_end_capture(stream))?;
        // SAFETY: the caller's pointer, not null.
        unsafe { put(model, graph) }
    }

    fn aclmdlRICaptureThreadExchangeMode(mode: *mut u32) |machine| {
        // SAFETY: null, or the caller's readable pointer.
        let wanted = unsafe { mode.as_ref() }.copied().ok_or(INVALID_PARAM)?;
        let before = checked(machine.exchange_capture_mode(wanted))?;
        // SAFETY: the caller's pointer.
        unsafe { put(mode, before) }
    }

    fn aclmdlRIExecuteAsync(model: usize, stream: usize) |machine| {
        if model == 0 {
            return Err(INVALID_PARAM);
        }
        stream_here(machine, stream)?;
        let executable = executable(machine, model)?;
        checked(machine.graph_launch(executable, stream))
    }

    fn aclmdlRIDestroy(model: usize) |machine| {
        if model == 0 {
            return Err(INVALID_PARAM);
        }
        if let Some(executable) = EXECUTABLES.lock().as_mut().and_then(|all| all.remove(&model)) {
            checked(machine.graph_exec_destroy(executable))?;
        }
        machine.graph_destroy(model).map_err(|_| RT_PARAM_INVALID)
    }
}
