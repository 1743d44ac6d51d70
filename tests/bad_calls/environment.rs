//! An environment that cannot be read, or not in full.

use std::ffi::CStr;
use std::ptr::null_mut;

use trtalloc::ffi::ExportedAllocator;
use trtalloc::ffi::c::{self, trtalloc_status};
use trtalloc::ffi::tensorrt::client::Client;

use crate::{MIB, Place, run};

/// What the environment says and cannot be read is one line, and so is a name that is no option's; the default holds.
fn unreadable_environment(_: Place) {
    let default = c::trtalloc_default();
    assert!(!default.is_null());
    // SAFETY: a handle that lives for ever.
    unsafe {
        let block = c::trtalloc_allocate(default, 4096, 0, 0);
        assert!(!block.is_null());
        assert!(c::trtalloc_deallocate(default, block));
    }
}

#[test]
fn an_unreadable_variable_is_logged() {
    run(
        Place::Sim,
        "environment::an_unreadable_variable_is_logged",
        unreadable_environment,
        &[
            "TRTALLOC_GUARD: cannot read `plenty`",
            "the default holds",
            "TRTALLOC_LIMTI is no option; the nearest is TRTALLOC_LIMIT",
        ],
        &[
            ("TRTALLOC_GUARD", "plenty"),
            ("TRTALLOC_DRIVER", "sim"),
            ("TRTALLOC_LIMTI", "4GiB"),
        ],
    );
}

/// A program that was to have a limit does not run without one: every request fails, and says why.
fn unreadable_limit(_: Place) {
    let default = c::trtalloc_default();
    let reason = || {
        // SAFETY: a C string, valid until this thread's next failure.
        unsafe { CStr::from_ptr(c::trtalloc_last_error()) }
            .to_string_lossy()
            .into_owned()
    };
    for _ in 0..3 {
        // SAFETY: a handle that lives for ever.
        unsafe {
            assert!(c::trtalloc_allocate(default, 4096, 0, 0).is_null());
            assert!(
                reason().contains("TRTALLOC_LIMIT: cannot read `plenty`"),
                "{}",
                reason()
            );
            assert!(c::trtalloc_allocate_async(default, 4096, 0, 0, null_mut()).is_null());
            assert!(c::trtalloc_allocate_on(default, 0, 4096, 0, 0, null_mut()).is_null());
            assert!(
                reason().contains("TRTALLOC_LIMIT: cannot read `plenty`"),
                "{}",
                reason()
            );
            assert_eq!(
                c::trtalloc_set_limit(default, -1, MIB),
                trtalloc_status::InvalidArgument
            );
        }
        assert!(c::hooks::trtalloc_torch_malloc(4096, 0, null_mut()).is_null());
        assert!(c::hooks::trtalloc_ort_alloc(4096).is_null());
    }
    let exported = ExportedAllocator::process();
    let client = Client::new(exported).unwrap();
    assert_eq!(client.allocate(4096, 0, 0), 0);
}

#[test]
fn an_unreadable_limit_refuses_every_request() {
    run(
        Place::Sim,
        "environment::an_unreadable_limit_refuses_every_request",
        unreadable_limit,
        &["TRTALLOC_LIMIT: cannot read `plenty`", "every request fails"],
        &[("TRTALLOC_LIMIT", "plenty"), ("TRTALLOC_DRIVER", "sim")],
    );
}
