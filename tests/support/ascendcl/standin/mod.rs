//! A stand-in for AscendCL over the simulated device, written from public signatures, for tests on machines without
//! one.
//!
//! There is one machine for the process. The stand-in refuses what CANN's sources (hicann/runtime) refuse, and where
//! they say nothing it takes the stricter reading. Nothing here was compared with an Ascend device.
//!
//! * `aclInit` comes first; a second one is 100002. Null and zero arguments are 100000.
//! * Streams, events, copies and memory require a context of this thread (107002). `aclrtSetDevice` makes the device's
//!   own context current and retains it. `aclrtSetCurrentContext` of none is refused, so a thread that has a context
//!   keeps one.
//! * A stream of another context is 107003. There are no stream ids that stay unique, and no events for a whole
//!   context.
//! * `aclrtMalloc` and the like round as documented. Their addresses are multiples of 64 and of no larger power of two;
//!   those of media memory, of 128. `aclrtFree` and unmapping do not wait: pending work on the memory is a fault.
//! * Virtual memory: alignment, requested address and offset are 0. A handle is mapped whole, with its size, and
//!   unmapped whole.
//! * Exhausted memory is 207001. A destroyed stream's handle aborts, as everywhere on the simulated device.
//!
//! A crate that includes this file has the model as `crate::model`.

// Each argument's requirements and the names are AscendCL's. No including crate uses all of it.
#![allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments, dead_code)]

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use crate::model::Machine;
use crate::model::code as cuda;

pub mod allocators;
mod capture;
mod copies;
mod devices;
mod events;
mod host_functions;
mod mapping;
mod media;
mod memory;
pub mod process;
mod streams;

/// `ACL_ERROR_INVALID_PARAM`.
pub const INVALID_PARAM: i32 = 100_000;
/// `ACL_ERROR_UNINITIALIZE`.
pub const UNINITIALIZED: i32 = 100_001;
/// `ACL_ERROR_REPEAT_INITIALIZE`.
pub const REPEATED_INIT: i32 = 100_002;
/// `ACL_ERROR_RT_PARAM_INVALID`.
pub const RT_PARAM_INVALID: i32 = 107_000;
/// `ACL_ERROR_RT_INVALID_DEVICEID`.
pub const INVALID_DEVICE: i32 = 107_001;
/// `ACL_ERROR_RT_CONTEXT_NULL`.
pub const CONTEXT_NULL: i32 = 107_002;
/// `ACL_ERROR_RT_STREAM_CONTEXT`.
pub const STREAM_CONTEXT: i32 = 107_003;
/// `ACL_ERROR_RT_ADDR_UNALIGNED`.
pub const UNALIGNED: i32 = 107_008;
/// `ACL_ERROR_RT_STREAM_CAPTURED`.
pub const STREAM_CAPTURED: i32 = 107_027;
/// `ACL_ERROR_RT_FEATURE_NOT_SUPPORT`.
pub const NOT_SUPPORTED: i32 = 207_000;
/// `ACL_ERROR_RT_MEMORY_ALLOCATION`.
pub const OUT_OF_MEMORY: i32 = 207_001;

/// The result of a function in this module: an `aclError` other than 0 where it fails.
pub type Result<T> = std::result::Result<T, i32>;

/// Translates the model's number to AscendCL's. Failures may be injected by either number.
pub fn translated(code: u32) -> i32 {
    match code {
        cuda::INVALID_VALUE | cuda::ILLEGAL_STATE => RT_PARAM_INVALID,
        cuda::OUT_OF_MEMORY => OUT_OF_MEMORY,
        cuda::INVALID_DEVICE => INVALID_DEVICE,
        cuda::INVALID_CONTEXT | cuda::CONTEXT_IS_DESTROYED => CONTEXT_NULL,
        // ACL_ERROR_RT_INVALID_HANDLE
        cuda::INVALID_HANDLE => 107_017,
        // ACL_ERROR_RT_AICORE_EXCEPTION
        cuda::ILLEGAL_ADDRESS => 507_015,
        cuda::NOT_SUPPORTED => NOT_SUPPORTED,
        // ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT
        cuda::CAPTURE_UNSUPPORTED => 107_030,
        // ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED
        cuda::CAPTURE_INVALIDATED => 507_903,
        // ACL_ERROR_STREAM_CAPTURE_CONFLICT
        cuda::CAPTURE_MERGE => 107_032,
        // ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED
        cuda::CAPTURE_UNMATCHED => 107_036,
        // ACL_ERROR_RT_STREAM_UNJOINED
        cuda::CAPTURE_UNJOINED => 107_025,
        // ACL_ERROR_RT_CAPTURE_DEPENDENCY
        cuda::CAPTURE_ISOLATION => 107_024,
        // ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT
        cuda::CAPTURE_IMPLICIT => 107_031,
        // ACL_ERROR_RT_EVENT_CAPTURED
        cuda::CAPTURED_EVENT => 107_028,
        // ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD
        cuda::CAPTURE_WRONG_THREAD => 107_038,
        100_000.. => code as i32,
        // ACL_ERROR_RT_INTERNAL_ERROR
        _ => 507_000,
    }
}

/// A model's result with AscendCL's error.
fn checked<T>(result: cuda::Result<T>) -> Result<T> {
    result.map_err(translated)
}

/// Writes an output, which must not be null.
///
/// # Safety
///
/// `to` is null or may be written.
unsafe fn put<T>(to: *mut T, value: T) -> Result<()> {
    if to.is_null() {
        return Err(INVALID_PARAM);
    }
    // SAFETY: as above.
    unsafe { to.write(value) };
    Ok(())
}

fn wanted<T>(pointer: *const T) -> Result<()> {
    if pointer.is_null() { Err(INVALID_PARAM) } else { Ok(()) }
}

/// This thread's context. The query does not count as a driver call.
fn context(machine: &Machine) -> Result<usize> {
    let _exempt = machine.exempt();
    match checked(machine.context_current())? {
        0 => Err(CONTEXT_NULL),
        // A destroyed context counts as none.
        context => checked(machine.context_id(context)).map(|_| context),
    }
}

/// Refuses a stream that is not of this thread's context. CUDA's special handles have no meaning here.
fn stream_here(machine: &Machine, stream: usize) -> Result<()> {
    let here = context(machine)?;
    let _exempt = machine.exempt();
    match stream {
        0 => Ok(()),
        1 | 2 => Err(RT_PARAM_INVALID),
        _ if checked(machine.stream_context(stream))? != here => Err(STREAM_CONTEXT),
        _ => Ok(()),
    }
}

/// Runs a function on the machine and returns the result as an `aclError`.
#[inline]
fn answer(run: impl FnOnce(&Arc<Machine>) -> Result<()>) -> i32 {
    process::get().and_then(|machine| run(&machine)).err().unwrap_or(0)
}

/// Defines exported functions: each one's exported name, its parameters, and its work on the machine.
macro_rules! functions {
    ($(
        fn $name:ident ( $($parameter:ident : $kind:ty),* $(,)? ) |$machine:pat_param| $body:block
    )*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($parameter: $kind),*) -> i32 {
                $crate::standin::answer(|$machine| $body)
            }
        )*

        /// Each function by its name.
        pub(super) const FUNCTIONS: &[(&str, *const std::ffi::c_void)] = &[
            $((stringify!($name), $name as *const std::ffi::c_void),)*
        ];
    };
}
use functions;

/// `aclInit`: makes the machine if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclInit(_config: *const c_char) -> i32 {
    process::initialize().err().unwrap_or(0)
}

/// `aclFinalize`
#[unsafe(no_mangle)]
pub extern "C" fn aclFinalize() -> i32 {
    process::finalize().err().unwrap_or(0)
}

/// `aclrtGetSocName`
#[unsafe(no_mangle)]
pub extern "C" fn aclrtGetSocName() -> *const c_char {
    c"Ascend910B-standin".as_ptr()
}

/// The function of that name, for crates that include the stand-in and load no library. With `media`, of a media
/// library.
pub fn find(name: &str, media: bool) -> Option<*const c_void> {
    let of = |table: &[(&str, *const c_void)]| table.iter().find(|(known, _)| *known == name).map(|(_, at)| *at);
    if media {
        return of(media::FUNCTIONS);
    }
    let own: [(&str, *const c_void); 4] = [
        (
            "aclrtAllocatorCreateDesc",
            allocators::aclrtAllocatorCreateDesc as *const c_void,
        ),
        ("aclInit", aclInit as *const c_void),
        ("aclFinalize", aclFinalize as *const c_void),
        ("aclrtGetSocName", aclrtGetSocName as *const c_void),
    ];
    let tables = [
        &own[..],
        allocators::FUNCTIONS,
        capture::FUNCTIONS,
        copies::FUNCTIONS,
        devices::FUNCTIONS,
        events::FUNCTIONS,
        mapping::FUNCTIONS,
        memory::FUNCTIONS,
        streams::FUNCTIONS,
    ];
    tables.into_iter().find_map(of)
}
