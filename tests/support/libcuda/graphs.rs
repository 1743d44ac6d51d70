//! Graphs and their user objects.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::host_functions::{self, HostFunction};
use crate::model::Machine;
use crate::model::code::{INVALID_VALUE, Result};
use crate::{functions, put, put_optional};

/// `CU_GRAPH_USER_OBJECT_MOVE`.
const MOVE: u32 = 1;

/// The target of a `CUuserObject`.
struct UserObject {
    destroy: HostFunction,
    data: *mut c_void,
    references: AtomicU32,
}

/// The references that a graph holds.
struct Held {
    object: *mut UserObject,
    count: u32,
}

/// Releases references. Returns true for the last one; then the caller has to destroy the object.
///
/// # Safety
///
/// `object` is alive and has that many references.
unsafe fn release_references(object: *mut UserObject, count: u32) -> bool {
    // SAFETY: as above.
    unsafe { &*object }.references.fetch_sub(count, Ordering::AcqRel) == count
}

/// The model calls this once the graph and its executables are destroyed.
unsafe extern "C" fn release_held(held: *mut c_void) {
    // SAFETY: the data that `cuGraphRetainUserObject` passed to the model, which calls this once.
    let held = unsafe { Box::from_raw(held.cast::<Held>()) };
    // SAFETY: the references counted in `held` keep the object alive.
    if unsafe { release_references(held.object, held.count) } {
        // SAFETY: the last reference was released, so the object has no other user.
        unsafe { destroy(held.object.cast()) };
    }
}

unsafe extern "C" fn destroy(object: *mut c_void) {
    // SAFETY: callers have released the last reference to it.
    let object = unsafe { Box::from_raw(object.cast::<UserObject>()) };
    // SAFETY: the client declared that this pair may be called once.
    unsafe { (object.destroy)(object.data) };
}

fn instantiate(machine: &Arc<Machine>, executable: *mut usize, graph: usize) -> Result<()> {
    let made = machine.graph_instantiate(graph)?;
    // SAFETY: the caller's pointer.
    unsafe { put(executable, made) }
}

functions! {
    11000 fn cuGraphInstantiate_v2(
        executable: *mut usize, graph: usize, node: *mut usize, log: *mut c_char, log_bytes: usize,
    ) |machine| {
        // SAFETY: the caller's pointers.
        unsafe {
            put_optional(node, 0);
            put_optional(if log_bytes > 0 { log } else { std::ptr::null_mut() }, 0);
        }
        instantiate(machine, executable, graph)
    }

    11040 fn cuGraphInstantiateWithFlags(executable: *mut usize, graph: usize, _flags: u64) |machine| {
        instantiate(machine, executable, graph)
    }

    10000 fn cuGraphLaunch(executable: usize, stream: usize) |machine| { machine.graph_launch(executable, stream) }

    10000 fn cuGraphDestroy(graph: usize) |machine| { machine.graph_destroy(graph) }

    10000 fn cuGraphExecDestroy(executable: usize) |machine| { machine.graph_exec_destroy(executable) }

    11030 fn cuUserObjectCreate(
        object: *mut *mut c_void, data: *mut c_void, destroy: Option<HostFunction>, references: u32, flags: u32,
    ) |_machine| {
        // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC is required.
        let destroy = destroy.filter(|_| flags == 1 && references > 0).ok_or(INVALID_VALUE)?;
        if object.is_null() {
            return Err(INVALID_VALUE);
        }
        let made = UserObject { destroy, data, references: AtomicU32::new(references) };
        // SAFETY: the caller's pointer, not null.
        unsafe { put(object, Box::into_raw(Box::new(made)).cast()) }
    }

    11030 fn cuUserObjectRetain(object: *mut c_void, count: u32) |_machine| {
        if object.is_null() || count == 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller holds a reference.
        unsafe { &*object.cast::<UserObject>() }.references.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    11030 fn cuUserObjectRelease(object: *mut c_void, count: u32) |machine| {
        if object.is_null() || count == 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller holds that many references.
        if unsafe { release_references(object.cast(), count) } {
            return host_functions::call_soon(machine, destroy, object);
        }
        Ok(())
    }

    11030 fn cuGraphRetainUserObject(graph: usize, object: *mut c_void, count: u32, flags: u32) |machine| {
        if object.is_null() || count == 0 || flags > MOVE {
            return Err(INVALID_VALUE);
        }
        let object: *mut UserObject = object.cast();
        if flags != MOVE {
            // SAFETY: the caller holds a reference.
            unsafe { &*object }.references.fetch_add(count, Ordering::Relaxed);
        }
        let held = Box::into_raw(Box::new(Held { object, count }));
        // SAFETY: the pair may be called from any thread: it calls the client's pair, for which the client declared the
        // same.
        let retained = unsafe { machine.graph_retain_user_object(graph, release_held, held.cast()) };
        if retained.is_err() {
            // SAFETY: the model did not take it.
            drop(unsafe { Box::from_raw(held) });
            if flags != MOVE {
                // SAFETY: taken above; the caller's own keep the object alive.
                unsafe { release_references(object, count) };
            }
        }
        retained
    }
}
