//! CUDA through libcuda.so.1, which is opened at run time: the crate builds and loads without it.
//!
//! `functions` finds the driver's functions, `calls` has the trait's methods, `failure` says what a result code means
//! to the pool, `handles` has what cuMemCreate and user objects take, `tools` has an application's calls. Types and
//! constants come from `cudarc::driver::sys`; none of its functions is called. Results and enums that the driver
//! *returns* are taken as numbers, so that a newer driver's unknown value is an ordinary value. Depends on the trait in
//! `crate::driver` only.

/// Calls a driver function and returns its result code.
macro_rules! code {
    ($driver:expr, $function:ident ( $($argument:expr),* $(,)? )) => {
        // SAFETY: the function's type is the documented one of its name. Pointers passed are null where that is
        // allowed, or lead to locals that outlive the call and, where the driver writes, are large enough. Handles
        // come from the trait's caller, which guarantees that they are valid.
        unsafe { ($driver.functions.$function)($($argument),*) }
    };
}

/// Calls a driver function. An error names the function.
macro_rules! call {
    ($driver:expr, $function:ident ( $($argument:expr),* $(,)? )) => {
        check(stringify!($function), code!($driver, $function($($argument),*)))
    };
}

mod calls;
mod failure;
mod functions;
mod handles;
mod tools;

use std::ffi::c_int;
use std::sync::{Arc, OnceLock};

use self::failure::check;
use self::functions::{Functions, LIBRARY};
use super::{Descriptor, Driver, DriverError, Failure, Features, Result};

/// `driver=cuda`.
pub static DRIVER: Descriptor = Descriptor {
    advice: tools::advice,
    kernel_module: Some("/proc/driver/nvidia/version"),
    memory_in_use: |_, named, otherwise| memory_in_use(named, otherwise),
    ..Descriptor::new("cuda", |_| open_with_device())
};

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: u32 = 100;

/// Opens the driver where it has a device. Without one, most drivers let `cuInit` fail with `CUDA_ERROR_NO_DEVICE`; one
/// that only counts no devices is refused alike.
fn open_with_device() -> Result<Arc<dyn Driver>> {
    let driver = CudaDriver::open()?;
    match driver.device_count()? {
        0 => Err(DriverError {
            call: "cuDeviceGetCount",
            code: NO_DEVICE,
            failure: Failure::Unsupported,
        }),
        _ => Ok(driver),
    }
}

/// See [`Descriptor::memory_in_use`]. Before cuInit the driver refuses both calls.
fn memory_in_use(named: Option<i32>, otherwise: i32) -> Option<u64> {
    struct Loaded {
        functions: Functions,
    }
    static LOADED: OnceLock<Loaded> = OnceLock::new();
    let loaded = match LOADED.get() {
        Some(loaded) => loaded,
        None => {
            let functions = Functions::loaded()?;
            LOADED.get_or_init(|| Loaded { functions })
        }
    };
    let mut device = otherwise;
    // Where no context is current, the call leaves `device` as it is.
    match named {
        Some(named) => device = named,
        None => _ = code!(loaded, cuCtxGetDevice(&mut device)),
    }
    let mut total = 0usize;
    let known = code!(loaded, cuDeviceTotalMem_v2(&mut total, device)) == 0;
    known.then_some(total as u64)
}

/// The driver of NVIDIA GPUs. Opening it initializes CUDA and makes no context.
pub struct CudaDriver {
    functions: Functions,
    version: u32,
    features: Features,
    /// The driver says which streams are of green contexts (`cuStreamGetCtx_v2`, CUDA 12.5).
    names_green_contexts: bool,
}

impl CudaDriver {
    /// Opens libcuda.so.1, looks its functions up and initializes it (`cuInit`). No context is made or made current.
    ///
    /// # Errors
    /// [`Missing`](super::Failure::Missing) names the missing library or function. Other errors are those of `cuInit`,
    /// for example without a device.
    pub fn open() -> Result<Arc<CudaDriver>> {
        let functions = Functions::open()?;
        let mut driver = CudaDriver {
            functions,
            version: 0,
            features: Features {
                stream_ids: false,
                context_events: false,
                user_objects: false,
            },
            names_green_contexts: false,
        };
        call!(driver, cuInit(0))?;
        let mut version: c_int = 0;
        call!(driver, cuDriverGetVersion(&mut version))?;
        driver.version = u32::try_from(version).unwrap_or(0);
        let has = |name| driver.functions.has(name);
        driver.features = Features {
            stream_ids: driver.version >= 12000 && has("cuStreamGetId") && has("cuCtxGetId"),
            context_events: driver.version >= 12050 && has("cuCtxRecordEvent"),
            user_objects: driver.version >= 11030
                && has("cuUserObjectCreate")
                && has("cuUserObjectRelease")
                && has("cuGraphRetainUserObject")
                && (has("cuStreamGetCaptureInfo_v2") || has("cuStreamGetCaptureInfo_v3")),
        };
        driver.names_green_contexts = driver.version >= 12050 && has("cuStreamGetCtx_v2");
        Ok(Arc::new(driver))
    }

    /// Whether an error of opening this driver means that this process cannot use an NVIDIA device at all: the library is
    /// missing, or it has no device that it can drive. Any other error may be temporary, or concern only what this crate
    /// requires of the driver.
    pub fn is_absent(error: &DriverError) -> bool {
        match error.failure {
            Failure::Missing => error.call == LIBRARY,
            Failure::Unsupported => matches!(error.call, "cuInit" | "cuDeviceGetCount"),
            _ => false,
        }
    }

    /// The newest CUDA version the driver supports: 1000 × major + 10 × minor.
    pub fn version(&self) -> u32 {
        self.version
    }
}

impl std::fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaDriver")
            .field("library", &LIBRARY)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}
