//! The driver of Ascend devices over the stand-in in this process.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

use trtalloc::driver::Result;
use trtalloc::driver::ascend::AscendDriver;

use crate::standin::find;

/// Opens the driver; with `media`, for media memory.
pub fn open(media: bool) -> Result<Arc<AscendDriver>> {
    open_without("", media)
}

/// As [`open`], where AscendCL lacks a function of that name.
pub fn open_without(missing: &str, media: bool) -> Result<Arc<AscendDriver>> {
    let there = |name: &&str| *name != missing;
    let find = |name: &CStr, media| NonNull::new(find(name.to_str().ok().filter(there)?, media)?.cast_mut());
    // SAFETY: the stand-in has AscendCL's signatures.
    unsafe { AscendDriver::over(&find, media) }
}
