//! The driver of Ascend devices, over a stand-in for AscendCL: there is no such device here.

// What the pool's fault sweep, which is the library's own, calls these.
use trtalloc::driver;
use trtalloc::driver::sim::model;

mod bench;
mod refusals;
mod standin;

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

use driver::ascend::AscendDriver;

/// The driver over the stand-in that is installed in this process.
fn open(media: bool) -> driver::Result<Arc<AscendDriver>> {
    let find = |name: &CStr, media| NonNull::new(standin::find(name.to_str().ok()?, media)?.cast_mut());
    // SAFETY: the stand-in has AscendCL's signatures.
    unsafe { AscendDriver::over(&find, media) }
}
