//! What became of a call, and the library's version.

use std::ffi::{CStr, c_char};

use super::arguments::status_of;
use crate::support::error;

/// What became of a call. trtalloc_last_error says why.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum trtalloc_status {
    /// It was done.
    Ok = 0,
    /// An argument has no meaning: a null pointer, an option that cannot be read, an address that is not a block's.
    InvalidArgument = 1,
    /// The request cannot be met within the limit and the device's memory.
    OutOfMemory = 2,
    /// Not in this build, or not possible with this driver or for this block.
    Unsupported = 3,
    /// A driver call failed.
    Driver = 4,
    /// A file could not be read or written.
    Io = 5,
    /// The library itself failed; the call was undone as far as that is possible.
    Panic = 6,
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// Why this thread's last failing call failed, in words. Never NULL; empty where none has failed. Valid until the thread's
/// next call of this library but trtalloc_last_status.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_last_error() -> *const c_char {
    error::last()
}

/// Why this thread's last failing call failed, as a number: TRTALLOC_STATUS_OK where none has failed. It goes with
/// trtalloc_last_error, so a call that succeeds leaves it as it is.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_last_status() -> trtalloc_status {
    status_of(error::last_status())
}

/// The library's version, as "0.1.0". Valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_version() -> *const c_char {
    VERSION.as_ptr()
}
