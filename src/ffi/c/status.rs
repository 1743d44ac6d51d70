//! The result of a call, and the library's version.

use std::ffi::{CStr, c_char};

use super::arguments::status_of;
use crate::support::error;

/// The result of a call. trtalloc_last_error explains a failure.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum trtalloc_status {
    /// The call succeeded.
    Ok = 0,
    /// An argument is invalid: a null pointer, an option that cannot be read, an address that is not a block's.
    InvalidArgument = 1,
    /// The request cannot be satisfied within the limit and the device's memory.
    OutOfMemory = 2,
    /// Not included in this build, or not possible with this driver or for this block.
    Unsupported = 3,
    /// A driver call failed.
    Driver = 4,
    /// A file could not be read or written.
    Io = 5,
    /// An internal error of the library. The call was undone as far as possible.
    Panic = 6,
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// The reason of this thread's last failure, as text. Never NULL; empty if no call has failed. Valid until the thread's
/// next call of this library, except trtalloc_last_status. While the thread or the process ends, the text of an earlier
/// failure is gone.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_last_error() -> *const c_char {
    error::last()
}

/// The status of this thread's last failure, TRTALLOC_STATUS_OK if no call has failed. It belongs to the text of
/// trtalloc_last_error, so a call that succeeds leaves it unchanged.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_last_status() -> trtalloc_status {
    status_of(error::last_status())
}

/// The library's version, as "0.1.0". Valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_version() -> *const c_char {
    VERSION.as_ptr()
}
