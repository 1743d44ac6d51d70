//! Standing in front of TensorRT's functions, so that a program that was not written for trtalloc allocates through it.
//!
//! The library exports `createInferRuntime_INTERNAL`, `createInferBuilder_INTERNAL` and `dlsym` (`exports.rs`). Where the dynamic
//! linker finds ours first, what TensorRT creates is given [`Handle::process`](crate::handle::Handle::process) as its
//! `IGpuAllocator` (`attach.rs`), by the function the program would have reached otherwise (`find.rs`). docs/injection.md says
//! which ways in there are, and what was tried.
//!
//! Linking the library is not being injected: the names pass every call through, unless the library stands in `LD_PRELOAD`
//! (`preload.rs`), `TRTALLOC_INJECT=1` is set, or [`set`] was called. `TRTALLOC_DISABLE=1` overrides all three.
//!
//! Nothing here runs before one of these functions is called, and nothing of its own takes a lock: a forked child may have
//! copies of locks that nobody will release.
//!
//! Without the crate's feature `interpose` there are no such names, and nothing is injected.

#![cfg_attr(not(interposes), allow(dead_code))]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::config::Config;
use crate::error::{Error, Result};

mod attach;
#[cfg(interposes)]
mod exports;
mod find;
mod looked_up;
mod preload;
mod symbols;

pub use attach::setter_slot;

/// What TensorRT creates that takes an allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `IRuntime`
    Runtime,
    /// `IBuilder`
    Builder,
}

impl Kind {
    /// The function that creates it.
    fn function(self) -> &'static CStr {
        match self {
            Kind::Runtime => c"createInferRuntime_INTERNAL",
            Kind::Builder => c"createInferBuilder_INTERNAL",
        }
    }

    /// What the function of that name creates.
    fn of(function: &CStr) -> Option<Kind> {
        // Most names that a program looks up begin otherwise.
        if !function.to_bytes().starts_with(b"createInfer") {
            return None;
        }
        [Kind::Runtime, Kind::Builder]
            .into_iter()
            .find(|kind| kind.function() == function)
    }
}

/// `createInferRuntime_INTERNAL` and `createInferBuilder_INTERNAL`: a logger and the version of the program's header.
type Create = unsafe extern "C-unwind" fn(*mut c_void, i32) -> *mut c_void;

/// Calls a function of TensorRT's, and attaches what it creates. Null where `real` is.
///
/// # Safety
/// `real` is null or TensorRT's function of that kind, and the arguments are its caller's.
unsafe fn create(kind: Kind, real: *mut c_void, logger: *mut c_void, version: i32) -> *mut c_void {
    let Some(real) = NonNull::new(real) else {
        return real;
    };
    // SAFETY: as this function demands.
    unsafe {
        let object = std::mem::transmute::<*mut c_void, Create>(real.as_ptr())(logger, version);
        attach::attach(object, kind, version, real);
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
    let decided = match (disable, inject || preload::stands_in_it()) {
        (true, _) => DISABLED,
        (false, true) => ON,
        (false, false) => OFF,
    };
    // Whoever comes first decides, and `set` may have come before.
    match STATE.compare_exchange(UNDECIDED, decided, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => decided,
        Err(before) => before,
    }
}

/// Whether the interposed names act.
fn acts() -> bool {
    state() == ON
}

/// Lets the interposed names act from now on, or not. What was created before stays as it is. An error where the environment
/// has disabled the library.
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
