//! A `libcuda.so.1` over the simulated device, for tests that need the driver's own names: the crate's CUDA driver, the
//! probe, clients that do not use this crate, and child processes.
//!
//! It exports only documented driver functions, under their exported names. It includes the model by path and links no
//! code of the crate. There is one machine for each process, made by `cuInit`:
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `SIMCUDA_MEMORY` | bytes of each device | 24 GiB |
//! | `SIMCUDA_DEVICES` | number of devices | 1 |
//! | `SIMCUDA_VERSION` | `cuDriverGetVersion`; functions that are newer are not exported | 12090 |
//! | `SIMCUDA_LATENCY` | `zero`: a call takes only its own work; `peers`: it spins as long as published for an A100 |
//! zero |
//! | `SIMCUDA_ADDRESSES` | where memory lies: `ascending`, `descending`, `returning`, `apart`, `odd`, or a random seed | 0 |
//! | `SIMCUDA_FAIL` | `call:n:code`, joined by `;`: the n-th call of that function fails with that `CUresult` | none |
//!
//! The simulated clock follows the wall clock, and a call that waits advances it at once. Unmapping under pending work,
//! and work out of bounds, print a line on stderr. Not simulated: timing of events, priorities, kernels, modules,
//! managed and peer-to-peer memory, exporting, memory pools, graph editing, and host functions inside a capture.
//!
//! An invalid value makes `cuInit` fail with CUDA_ERROR_INVALID_VALUE and print a line on stderr.

// Each argument's requirements and the names are the driver's.
#![allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

// This library does not use all of the model.
#[allow(dead_code)]
#[path = "../../../src/driver/sim/model/mod.rs"]
mod model;

mod capture;
mod config;
mod contexts;
mod copies;
mod devices;
mod events;
mod exports;
mod graphs;
mod host_functions;
mod kernels;
mod memory;
mod process;
mod streams;
mod symbols;

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use model::Machine;
use model::code::{INVALID_VALUE, Result};

/// `CUDA_ERROR_NOT_INITIALIZED`.
const NOT_INITIALIZED: u32 = 3;
/// `CUDA_ERROR_NOT_PERMITTED`.
const NOT_PERMITTED: u32 = 800;

/// Writes an output, which must not be null.
///
/// # Safety
///
/// `to` is null or may be written.
unsafe fn put<T>(to: *mut T, value: T) -> Result<()> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: as above.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes an optional output.
///
/// # Safety
///
/// `to` is null or may be written.
unsafe fn put_optional<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: as above.
        unsafe { to.write(value) };
    }
}

/// Runs a function on the machine and returns the result as a `CUresult`.
#[inline]
fn answer(name: &'static str, since: u32, run: impl FnOnce(&Arc<Machine>) -> Result<()>) -> u32 {
    let process = match process::get(name, since) {
        Ok(process) => process,
        Err(code) => return code,
    };
    match run(&process.machine) {
        Ok(()) => 0,
        Err(code) => code,
    }
}

/// Defines exported functions: the CUDA version that added each, its exported name, its parameters, and its work on the
/// machine.
macro_rules! functions {
    ($(
        $since:literal fn $name:ident ( $($parameter:ident : $kind:ty),* $(,)? ) |$machine:pat_param| $body:block
    )*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($parameter: $kind),*) -> u32 {
                crate::answer(stringify!($name), $since, |$machine| $body)
            }
        )*

        /// Each function with the CUDA version that added it.
        pub(crate) const SINCE: &[(u32, *const std::ffi::c_void)] = &[
            $(($since, $name as *const std::ffi::c_void),)*
        ];
    };
}
pub(crate) use functions;

/// `cuInit`
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: u32) -> u32 {
    if flags != 0 {
        INVALID_VALUE
    } else {
        process::initialize()
    }
}

/// `cuDriverGetVersion`: works before `cuInit`, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> u32 {
    let known = match config::Config::read() {
        Ok(config) => config.version,
        Err(_) => return INVALID_VALUE,
    };
    // SAFETY: the caller's pointer, null or writable.
    unsafe { put(version, known as c_int) }.err().unwrap_or(0)
}

/// `cuGetErrorName`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: u32, name: *mut *const c_char) -> u32 {
    // SAFETY: the caller's pointer, null or writable.
    unsafe { describe(error, name, |(name, _)| name.as_ptr()) }
}

/// `cuGetErrorString`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: u32, text: *mut *const c_char) -> u32 {
    // SAFETY: the caller's pointer, null or writable.
    unsafe { describe(error, text, |(_, text)| text.as_ptr()) }
}

type Names = (&'static std::ffi::CStr, &'static std::ffi::CStr);

unsafe fn describe(error: u32, to: *mut *const c_char, which: impl Fn(Names) -> *const c_char) -> u32 {
    let (code, text) = match config::error_names(error) {
        Some(names) => (0, which(names)),
        None => (INVALID_VALUE, std::ptr::null()),
    };
    // SAFETY: the caller's pointer, null or writable.
    unsafe { put(to, text) }.err().unwrap_or(code)
}
