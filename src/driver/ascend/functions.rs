//! AscendCL's functions, looked up by the exact names that its libraries export.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use super::super::Result;
use super::super::library::{Library, functions, missing};

/// AscendCL. CANN installs it without a version number.
pub(super) const LIBRARY: &str = "libascendcl.so";
const LIBRARY_C: &CStr = c"libascendcl.so";

/// The result of a function that the library lacks. No `aclError` has this value.
pub(super) const MISSING: i32 = i32::MIN;

/// `aclrtMemLocation`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Location {
    pub id: u32,
    pub kind: c_int,
}

/// `aclrtPhysicalMemProp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct PhysicalProperties {
    pub handle_type: c_int,
    pub allocation_type: c_int,
    pub attribute: c_int,
    pub location: Location,
    pub reserve: u64,
}

/// Every AscendCL that this driver supports has the function. A library without it is not AscendCL.
const REQUIRED: bool = true;
/// The function is newer, or some devices lack it.
const OPTIONAL: bool = false;

functions! {
    i32, MISSING;

    REQUIRED, aclInit(*const c_char);
    REQUIRED, aclrtGetDeviceCount(*mut u32);
    REQUIRED, aclrtSetDevice(i32);
    REQUIRED, aclrtResetDevice(i32);
    REQUIRED, aclrtGetDevice(*mut i32);
    REQUIRED, aclrtGetCurrentContext(*mut usize);
    REQUIRED, aclrtSetCurrentContext(usize);
    REQUIRED, aclrtSynchronizeDevice();
    OPTIONAL, aclrtSynchronizeDeviceWithTimeout(i32);
    OPTIONAL, aclrtGetPrimaryCtxState(i32, *mut u32, *mut i32);

    // The pool creates no stream. The command's applications do.
    OPTIONAL, aclrtCreateStream(*mut usize);
    OPTIONAL, aclrtDestroyStream(usize);

    REQUIRED, aclrtCreateEventExWithFlag(*mut usize, u32);
    REQUIRED, aclrtDestroyEvent(usize);
    REQUIRED, aclrtRecordEvent(usize, usize);
    REQUIRED, aclrtQueryEventStatus(usize, *mut u32);
    REQUIRED, aclrtStreamWaitEvent(usize, usize);

    REQUIRED, aclrtGetMemInfo(u32, *mut usize, *mut usize);
    REQUIRED, aclrtMalloc(*mut *mut c_void, usize, u32);
    OPTIONAL, aclrtMallocAlign32(*mut *mut c_void, usize, u32);
    REQUIRED, aclrtFree(*mut c_void);
    REQUIRED, aclrtMallocHost(*mut *mut c_void, usize);
    REQUIRED, aclrtFreeHost(*mut c_void);
    REQUIRED, aclrtMemcpyAsync(*mut c_void, usize, *const c_void, usize, u32, usize);
    REQUIRED, aclrtMemsetAsync(*mut c_void, usize, i32, usize, usize);

    OPTIONAL, aclrtMemGetAllocationGranularity(*const PhysicalProperties, c_int, *mut usize);
    OPTIONAL, aclrtReserveMemAddress(*mut *mut c_void, usize, usize, *mut c_void, u64);
    OPTIONAL, aclrtReleaseMemAddress(*mut c_void);
    OPTIONAL, aclrtMallocPhysical(*mut usize, usize, *const PhysicalProperties, u64);
    OPTIONAL, aclrtFreePhysical(usize);
    OPTIONAL, aclrtMapMem(*mut c_void, usize, usize, usize, u64);
    OPTIONAL, aclrtUnmapMem(*mut c_void);

    OPTIONAL, aclmdlRICaptureGetInfo(usize, *mut u32, *mut usize);
    OPTIONAL, aclmdlRICaptureThreadExchangeMode(*mut u32);
}

/// `aclrtGetSocName`: the only function whose result is not an `aclError`.
type SocName = unsafe extern "C" fn() -> *const c_char;

/// Looks a function up by its name.
pub(super) type Find<'a> = &'a dyn Fn(&CStr) -> Option<NonNull<c_void>>;

/// AscendCL's functions, and the one that returns the chip's name.
pub(super) struct Acl {
    pub functions: Functions,
    soc_name: Option<SocName>,
}

impl Acl {
    /// Opens the library and looks everything up.
    pub(super) fn open() -> Result<Acl> {
        let library = Library::open(LIBRARY_C).ok_or(missing(LIBRARY))?;
        // SAFETY: the library has AscendCL's functions.
        unsafe { Acl::load(&|name| library.symbol(name)) }
    }

    /// # Safety
    ///
    /// `find` returns AscendCL's functions of these names.
    pub(super) unsafe fn load(find: Find<'_>) -> Result<Acl> {
        Ok(Acl {
            // SAFETY: as above.
            functions: unsafe { Functions::load(find) }?,
            // SAFETY: the documented function of that name has this type.
            soc_name: find(c"aclrtGetSocName").map(|found| unsafe { std::mem::transmute(found) }),
        })
    }

    /// The chip's name, if AscendCL has one.
    pub(super) fn soc_name(&self) -> Option<String> {
        // SAFETY: a function without arguments. Its result is null or a string that is never freed.
        let name = unsafe { (self.soc_name?)() };
        if name.is_null() {
            return None;
        }
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        (!name.is_empty()).then_some(name)
    }

    /// Whether the library has all of virtual memory management.
    pub(super) fn has_virtual_memory(&self) -> bool {
        self.functions.has_all(&[
            "aclrtMemGetAllocationGranularity",
            "aclrtReserveMemAddress",
            "aclrtReleaseMemAddress",
            "aclrtMallocPhysical",
            "aclrtFreePhysical",
            "aclrtMapMem",
            "aclrtUnmapMem",
        ])
    }
}
