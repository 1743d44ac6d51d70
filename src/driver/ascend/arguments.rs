//! Arguments of the trait's methods as AscendCL takes them.

use std::ffi::c_void;

use super::super::{DriverError, Failure, Result, Stream};

/// A stream's handle. The context's default stream is null. AscendCL has no per-thread default streams.
pub(super) fn handle(call: &'static str, stream: Stream) -> Result<usize> {
    match stream {
        Stream::LEGACY => Ok(0),
        Stream::PER_THREAD => Err(DriverError::refused(call, Failure::Other)),
        Stream(handle) => Ok(handle),
    }
}

pub(super) fn size(call: &'static str, bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| DriverError::refused(call, Failure::OutOfMemory))
}

/// Address 0 is not valid, and AscendCL refuses it, too.
pub(super) fn pointer(call: &'static str, address: u64) -> Result<*mut c_void> {
    match address {
        0 => Err(DriverError::refused(call, Failure::Other)),
        address => Ok(address as *mut c_void),
    }
}
