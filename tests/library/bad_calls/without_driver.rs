//! A process without a driver.

use std::ffi::CStr;
use std::path::Path;
use std::ptr::null_mut;

use trtalloc::ffi::c::{self, trtalloc_status};

use crate::bad_calls::{Place, run};
use crate::common;

fn calls_without_driver(_: Place) {
    let mut out = std::ptr::dangling_mut();
    // SAFETY: a C string and a place to write to.
    let status = unsafe { c::trtalloc_create(c"driver=cuda".as_ptr(), &mut out) };
    assert_eq!((status, out), (trtalloc_status::Driver, null_mut()));
    let default = c::trtalloc_default();
    for _ in 0..3 {
        // SAFETY: a handle that lives for ever.
        unsafe {
            assert!(c::trtalloc_allocate(default, 4096, 0, 0).is_null());
            assert!(
                CStr::from_ptr(c::trtalloc_last_error())
                    .to_string_lossy()
                    .contains("libcuda.so.1")
            );
            assert!(c::trtalloc_deallocate(default, null_mut()));
            assert!(!c::trtalloc_deallocate(default, std::ptr::dangling_mut::<u8>().cast()));
        }
    }
}

#[test]
fn creation_fails_with_a_reason() {
    if Path::new("/dev/nvidiactl").exists() {
        common::unsupported("a driver is installed here, and the loader's cache would find it");
    }
    run(
        Place::Nowhere,
        "without_driver::creation_fails_with_a_reason",
        calls_without_driver,
        &["libcuda.so.1 is missing"],
        &[],
    );
}
