//! Properties of handles for cuMemCreate, and the data of graphs' user objects.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys;

use super::super::{HandleKind, UserObjectDestructor};

/// Properties of a handle of pinned memory on `device`.
pub(super) fn allocation_properties(device: i32, kind: HandleKind) -> sys::CUmemAllocationProp {
    use sys::CUmemAllocationHandleType as Export;
    let mut export = 0;
    if kind.share_fd {
        export |= Export::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
    }
    if kind.share_fabric {
        export |= Export::CU_MEM_HANDLE_TYPE_FABRIC.0;
    }
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType_enum(export),
        location: sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: device,
        },
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: u8::from(kind.rdma),
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// A user object's data: the pool's destructor, and whether to call it. A user object that its graph could not retain
/// can only be released by running its destructor, and then the pool's destructor must not run.
pub(super) struct Hook {
    destructor: UserObjectDestructor,
    data: *mut c_void,
    armed: AtomicBool,
}

impl Hook {
    /// The hook belongs to the driver once the driver has taken it, and to the caller before.
    pub(super) fn new(destructor: UserObjectDestructor, data: *mut c_void) -> *mut Hook {
        Box::into_raw(Box::new(Hook {
            destructor,
            data,
            armed: AtomicBool::new(true),
        }))
    }

    /// # Safety
    ///
    /// `hook` is of [`Hook::new`], and is not used after this.
    pub(super) unsafe fn drop_unused(hook: *mut Hook) {
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(hook) });
    }

    /// # Safety
    /// `hook` is of [`Hook::new`] and was not run.
    pub(super) unsafe fn disarm(hook: *mut Hook) {
        // SAFETY: as above.
        unsafe { &*hook }.armed.store(false, Ordering::Release);
    }

    /// The driver calls this once, on one of its threads.
    ///
    /// # Safety
    /// `data` is of [`Hook::new`], and is not used after this.
    pub(super) unsafe extern "C" fn run(data: *mut c_void) {
        // SAFETY: as above.
        let hook = unsafe { Box::from_raw(data.cast::<Hook>()) };
        if hook.armed.load(Ordering::Acquire) {
            // SAFETY: the code that made the hook declared that it may run at any time on any thread.
            unsafe { (hook.destructor)(hook.data) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn count(data: *mut c_void) {
        // SAFETY: the tests pass a counter that outlives the call.
        unsafe { *data.cast::<u32>() += 1 };
    }

    #[test]
    fn hook_runs_unless_disarmed() {
        let mut runs = 0u32;
        let data: *mut c_void = (&raw mut runs).cast();
        let hook = Hook::new(count, data);
        // SAFETY: a fresh hook, used once.
        unsafe { Hook::run(hook.cast()) };
        let hook = Hook::new(count, data);
        // SAFETY: a fresh hook, disarmed and then used once.
        unsafe {
            Hook::disarm(hook);
            Hook::run(hook.cast());
        }
        assert_eq!(runs, 1);
    }

    #[test]
    fn export_types_combine() {
        let both = allocation_properties(
            1,
            HandleKind {
                share_fd: true,
                share_fabric: true,
                rdma: true,
            },
        );
        assert_eq!(
            (
                both.requestedHandleTypes.0,
                both.allocFlags.gpuDirectRDMACapable,
                both.location.id
            ),
            (9, 1, 1)
        );
        assert_eq!(
            allocation_properties(0, HandleKind::default()).requestedHandleTypes.0,
            0
        );
    }
}
