//! The driver's functions, looked up by the exact names that libcuda.so.1 exports.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUgraph, CUgraphNode, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationProp, CUmemGenericAllocationHandle, CUstream, CUuserObject,
};

use super::super::{DriverError, Failure, Result};

/// The name the driver is installed under. libcuda.so without a number is a development link, or a stub.
pub(super) const LIBRARY: &str = "libcuda.so.1";
const LIBRARY_C: &CStr = c"libcuda.so.1";

/// What an absent function answers; no `CUresult` has this value.
pub(super) const MISSING: u32 = u32::MAX;

/// A loaded library. It is never unloaded: the driver has threads and exit handlers of its own.
struct Library(NonNull<c_void>);

fn missing(name: &'static str) -> DriverError {
    DriverError {
        call: name,
        code: 0,
        failure: Failure::Missing,
    }
}

fn open_library() -> Option<Library> {
    // SAFETY: a terminated name; what the library's constructors do is the driver's matter.
    let handle = unsafe { libc::dlopen(LIBRARY_C.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    NonNull::new(handle).map(Library)
}

/// The one place where a symbol is looked up. It must reach the loader's own dlsym, whatever this library may export
/// under that name.
fn symbol(library: &Library, name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: an open library and a terminated name.
    NonNull::new(unsafe { libc::dlsym(library.0.as_ptr(), name.as_ptr()) })
}

macro_rules! functions {
    ($( $need:expr, $name:ident ( $($argument:ty),* ); )*) => {
        /// Each function under its exported name. What may be absent is then a function that answers [`MISSING`], so
        /// that every call is one indirect call.
        #[allow(non_snake_case)]
        pub(super) struct Functions {
            $( pub $name: unsafe extern "C" fn($($argument),*) -> u32, )*
            absent: Vec<&'static str>,
        }

        impl Functions {
            fn load(library: &Library) -> Result<Functions> {
                let mut absent = Vec::new();
                Ok(Functions {
                    $( $name: {
                        type Function = unsafe extern "C" fn($($argument),*) -> u32;
                        unsafe extern "C" fn absent_function($(_: $argument),*) -> u32 {
                            MISSING
                        }
                        const TEXT: &str = concat!(stringify!($name), "\0");
                        const NAME: &CStr = match CStr::from_bytes_with_nul(TEXT.as_bytes()) {
                            Ok(name) => name,
                            Err(_) => panic!("an identifier has no null byte"),
                        };
                        match symbol(library, NAME) {
                            // SAFETY: the driver's documented function of this name has this type; CUresult is an
                            // enum of unsigned values, which is passed as an unsigned int.
                            Some(found) => unsafe { std::mem::transmute::<NonNull<c_void>, Function>(found) },
                            None if $need => return Err(missing(stringify!($name))),
                            None => {
                                absent.push(stringify!($name));
                                absent_function as Function
                            }
                        }
                    }, )*
                    absent,
                })
            }
        }
    };
}

/// Every driver of CUDA 10.1 or newer has it; without it the library is not a driver.
const REQUIRED: bool = true;
/// Newer, or not everywhere.
const OPTIONAL: bool = false;

functions! {
    REQUIRED, cuInit(c_uint);
    REQUIRED, cuDriverGetVersion(*mut c_int);
    REQUIRED, cuDeviceGetCount(*mut c_int);
    REQUIRED, cuDeviceGetName(*mut c_char, c_int, CUdevice);
    REQUIRED, cuDeviceTotalMem_v2(*mut usize, CUdevice);
    REQUIRED, cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);

    REQUIRED, cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    REQUIRED, cuDevicePrimaryCtxRelease_v2(CUdevice);
    REQUIRED, cuDevicePrimaryCtxGetState(CUdevice, *mut c_uint, *mut c_int);
    REQUIRED, cuCtxGetCurrent(*mut CUcontext);
    REQUIRED, cuCtxGetDevice(*mut CUdevice);
    REQUIRED, cuCtxPushCurrent_v2(CUcontext);
    REQUIRED, cuCtxPopCurrent_v2(*mut CUcontext);
    REQUIRED, cuCtxSynchronize();
    OPTIONAL, cuCtxGetId(CUcontext, *mut u64);
    OPTIONAL, cuCtxRecordEvent(CUcontext, CUevent);

    REQUIRED, cuStreamGetCtx(CUstream, *mut CUcontext);
    REQUIRED, cuStreamIsCapturing(CUstream, *mut c_uint);
    REQUIRED, cuStreamWaitEvent(CUstream, CUevent, c_uint);
    REQUIRED, cuThreadExchangeStreamCaptureMode(*mut c_uint);
    OPTIONAL, cuStreamGetId(CUstream, *mut u64);
    OPTIONAL, cuStreamGetCaptureInfo(CUstream, *mut c_uint, *mut u64);
    OPTIONAL, cuStreamGetCaptureInfo_v2(
        CUstream, *mut c_uint, *mut u64, *mut CUgraph, *mut *const CUgraphNode, *mut usize
    );
    OPTIONAL, cuStreamGetCaptureInfo_v3(
        CUstream, *mut c_uint, *mut u64, *mut CUgraph, *mut *const CUgraphNode, *mut *const c_void, *mut usize
    );

    REQUIRED, cuEventCreate(*mut CUevent, c_uint);
    REQUIRED, cuEventDestroy_v2(CUevent);
    REQUIRED, cuEventRecord(CUevent, CUstream);
    REQUIRED, cuEventQuery(CUevent);

    REQUIRED, cuMemGetInfo_v2(*mut usize, *mut usize);
    REQUIRED, cuMemAlloc_v2(*mut CUdeviceptr, usize);
    REQUIRED, cuMemFree_v2(CUdeviceptr);
    REQUIRED, cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    REQUIRED, cuMemFreeHost(*mut c_void);
    REQUIRED, cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    REQUIRED, cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);

    OPTIONAL, cuMemGetAllocationGranularity(*mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags);
    OPTIONAL, cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, u64);
    OPTIONAL, cuMemAddressFree(CUdeviceptr, usize);
    OPTIONAL, cuMemCreate(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, u64);
    OPTIONAL, cuMemRelease(CUmemGenericAllocationHandle);
    OPTIONAL, cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, u64);
    OPTIONAL, cuMemUnmap(CUdeviceptr, usize);
    OPTIONAL, cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);

    OPTIONAL, cuUserObjectCreate(
        *mut CUuserObject, *mut c_void, unsafe extern "C" fn(*mut c_void), c_uint, c_uint
    );
    OPTIONAL, cuUserObjectRelease(CUuserObject, c_uint);
    OPTIONAL, cuGraphRetainUserObject(CUgraph, CUuserObject, c_uint, c_uint);
}

impl Functions {
    /// Opens the library and looks everything up.
    pub(super) fn open() -> Result<Functions> {
        let library = open_library().ok_or(missing(LIBRARY))?;
        Functions::load(&library)
    }

    /// Whether the library exports `name`.
    pub(super) fn has(&self, name: &str) -> bool {
        !self.absent.contains(&name)
    }

    /// Whether the library has all of virtual memory management.
    pub(super) fn has_virtual_memory(&self) -> bool {
        [
            "cuMemGetAllocationGranularity",
            "cuMemAddressReserve",
            "cuMemAddressFree",
            "cuMemCreate",
            "cuMemRelease",
            "cuMemMap",
            "cuMemUnmap",
            "cuMemSetAccess",
        ]
        .iter()
        .all(|name| self.has(name))
    }
}
