//! Injection: interposes TensorRT's functions, so that an unchanged program allocates through trtalloc.
//!
//! The library exports `createInferRuntime_INTERNAL`, `createInferBuilder_INTERNAL` and `dlsym` (`exports.rs`). Where
//! the dynamic linker finds these first, they call the function that the program would have reached (`resolve.rs`), and
//! set [`ExportedAllocator::process`](crate::ffi::ExportedAllocator::process) as the `IGpuAllocator` of the object that
//! it creates (`attach.rs`). A program that looks the functions up with `dlsym` gets a wrapper (`dlsym_wrappers.rs`).
//! docs/injection.md describes the ways to inject the library, and what was tried.
//!
//! Linking the library does not inject it: the names pass every call through, unless the library is in `LD_PRELOAD`
//! (`ld_preload.rs`), `TRTALLOC_INJECT=1` is set, or [`set`] was called. `TRTALLOC_DISABLE=1` overrides all three.
//!
//! Nothing here runs before one of these functions is called. This module takes no lock of its own, since a forked
//! child may have copies of locks that no thread will release.
//!
//! Without the crate's feature `interpose` these names do not exist, and nothing is injected.

#![cfg_attr(not(interposes), allow(dead_code))]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::support::config::Config;
use crate::support::error::{Error, Result};

mod attach;
mod dlsym_wrappers;
mod dynamic_linker;
#[cfg(interposes)]
mod exports;
mod ld_preload;
mod object_name;
mod resolve;

pub use attach::setter_slot;

/// A type of TensorRT's objects that take an allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectType {
    /// `IRuntime`
    Runtime,
    /// `IBuilder`
    Builder,
}

impl ObjectType {
    /// The function that creates it.
    fn function(self) -> &'static CStr {
        match self {
            ObjectType::Runtime => c"createInferRuntime_INTERNAL",
            ObjectType::Builder => c"createInferBuilder_INTERNAL",
        }
    }

    /// The type that the function of that name creates.
    fn of(function: &CStr) -> Option<ObjectType> {
        // Fast path: most names that a program looks up do not begin so.
        if !function.to_bytes().starts_with(b"createInfer") {
            return None;
        }
        [ObjectType::Runtime, ObjectType::Builder]
            .into_iter()
            .find(|kind| kind.function() == function)
    }
}

/// `createInferRuntime_INTERNAL` and `createInferBuilder_INTERNAL`: a logger, and the version of the program's
/// header.
type Create = unsafe extern "C-unwind" fn(*mut c_void, i32) -> *mut c_void;

/// Calls TensorRT's function and attaches the allocator to what it creates. Null where `real` is null. `caller` is an
/// address in the caller's code.
///
/// # Safety
/// `real` is null or TensorRT's function of that kind, and the arguments are its caller's.
unsafe fn create(kind: ObjectType, real: *mut c_void, logger: *mut c_void, version: i32, caller: usize) -> *mut c_void {
    let Some(real) = NonNull::new(real) else {
        return real;
    };
    // SAFETY: as this function requires.
    unsafe {
        let object = std::mem::transmute::<*mut c_void, Create>(real.as_ptr())(logger, version);
        attach::attach(object, kind, (version, caller), real);
        object
    }
}

const UNDECIDED: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;
const DISABLED: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(UNDECIDED);

fn state() -> u8 {
    match STATE.load(Ordering::Relaxed) {
        UNDECIDED => decide(),
        decided => decided,
    }
}

#[cold]
fn decide() -> u8 {
    let (inject, disable) = Config::environment_injection();
    let decided = match (disable, inject || ld_preload::is_preloaded()) {
        (true, _) => DISABLED,
        (false, true) => ON,
        (false, false) => OFF,
    };
    // The first store counts; `set` may have come before.
    match STATE.compare_exchange(UNDECIDED, decided, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => decided,
        Err(before) => before,
    }
}

/// Whether the interposed names attach the allocator.
fn acts() -> bool {
    state() == ON
}

/// Switches injection on or off for objects created from now on. Fails where the environment has disabled the
/// library.
pub fn set(on: bool) -> Result<()> {
    if on && !cfg!(interposes) {
        return Err(Error::Unsupported(
            "built without the feature interpose, or not for x86-64 or aarch64".into(),
        ));
    }
    match (state(), on) {
        (DISABLED, true) => Err(Error::Unsupported("TRTALLOC_DISABLE is set".into())),
        (DISABLED, false) => Ok(()),
        _ => {
            STATE.store(if on { ON } else { OFF }, Ordering::Relaxed);
            Ok(())
        }
    }
}
