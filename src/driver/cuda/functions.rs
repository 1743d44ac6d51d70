//! The driver's functions, looked up by the exact names that libcuda.so.1 exports.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUgraph, CUgraphNode, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationProp, CUmemGenericAllocationHandle, CUstream, CUuserObject,
};

use super::super::Result;
use super::super::library::{Library, functions, missing};

/// The name under which the driver is installed. libcuda.so without a number is a development link or a stub.
pub(super) const LIBRARY: &str = "libcuda.so.1";
const LIBRARY_C: &CStr = c"libcuda.so.1";

/// The result of a function that the library lacks. No `CUresult` has this value.
pub(super) const MISSING: u32 = u32::MAX;

/// Every driver of CUDA 10.1 or newer has the function. A library without it is not a driver.
const REQUIRED: bool = true;
/// The function is newer, or some drivers lack it.
const OPTIONAL: bool = false;

functions! {
    u32, MISSING;

    REQUIRED, cuInit(c_uint);
    REQUIRED, cuDriverGetVersion(*mut c_int);
    REQUIRED, cuDeviceGetCount(*mut c_int);
    REQUIRED, cuDeviceGetName(*mut c_char, c_int, CUdevice);
    REQUIRED, cuDeviceTotalMem_v2(*mut usize, CUdevice);
    REQUIRED, cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);

    OPTIONAL, cuDeviceGetUuid_v2(*mut [u8; 16], CUdevice);

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
    OPTIONAL, cuStreamGetCtx_v2(CUstream, *mut CUcontext, *mut *mut c_void);
    REQUIRED, cuStreamIsCapturing(CUstream, *mut c_uint);
    REQUIRED, cuStreamWaitEvent(CUstream, CUevent, c_uint);
    REQUIRED, cuThreadExchangeStreamCaptureMode(*mut c_uint);
    OPTIONAL, cuStreamCreate(*mut CUstream, c_uint);
    OPTIONAL, cuStreamDestroy_v2(CUstream);
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

    OPTIONAL, cuMemAllocAsync(*mut CUdeviceptr, usize, CUstream);
    OPTIONAL, cuMemFreeAsync(CUdeviceptr, CUstream);

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
        let library = Library::open(LIBRARY_C).ok_or(missing(LIBRARY))?;
        // SAFETY: the driver's library has the driver's functions.
        unsafe { Functions::load(&|name| library.symbol(name)) }
    }

    /// As [`Functions::open`], where the process has loaded the library already.
    pub(super) fn loaded() -> Option<Functions> {
        let library = Library::loaded(LIBRARY_C)?;
        // SAFETY: as above.
        unsafe { Functions::load(&|name| library.symbol(name)) }.ok()
    }

    /// Whether the library has all of virtual memory management.
    pub(super) fn has_virtual_memory(&self) -> bool {
        self.has_all(&[
            "cuMemGetAllocationGranularity",
            "cuMemAddressReserve",
            "cuMemAddressFree",
            "cuMemCreate",
            "cuMemRelease",
            "cuMemMap",
            "cuMemUnmap",
            "cuMemSetAccess",
        ])
    }
}
