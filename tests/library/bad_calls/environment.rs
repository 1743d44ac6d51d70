//! An environment that cannot be read, or not in full.

use std::ffi::CStr;
use std::ptr::null_mut;

use trtalloc::ffi::ExportedAllocator;
use trtalloc::ffi::c::{self, trtalloc_status};
use trtalloc::ffi::tensorrt::client::Client;

use crate::bad_calls::{MIB, Place, run};

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

/// The limit of an allocator that is made with these options, or the reason why there is none.
fn limit_of(options: Option<&CStr>) -> Result<u64, String> {
    let mut allocator = null_mut();
    let options = options.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: null or a C string, and pointers to locals.
    unsafe {
        if c::trtalloc_create(options, &mut allocator) != trtalloc_status::Ok {
            return Err(CStr::from_ptr(c::trtalloc_last_error()).to_string_lossy().into_owned());
        }
        let mut stats = c::trtalloc_stats::default();
        let status = c::trtalloc_stats_get(allocator, -1, &mut stats, size_of_val(&stats));
        assert_eq!(status, trtalloc_status::Ok);
        // It works, with the limit that it reports.
        let block = c::trtalloc_allocate(allocator, 2 * MIB, 0, 0);
        assert!(!block.is_null() && c::trtalloc_deallocate(allocator, block));
        assert_eq!(
            stats.limit == 0,
            !c::trtalloc_allocate(allocator, 100 * MIB, 0, 0).is_null()
        );
        c::trtalloc_destroy(allocator);
        Ok(stats.limit)
    }
}

/// The environment has the defaults of every allocator, and what code asks for wins.
fn defaults_of_every_allocator(_: Place) {
    for (options, limit) in [
        (None, 64 * MIB),
        (Some(c""), 64 * MIB),
        (Some(c"limit=32MiB"), 32 * MIB),
        (Some(c"wait_ms=1,limit=none"), 0),
        // The percentage is of the environment's device.
        (Some(c"limit=25%"), 64 * MIB),
        (Some(c"sim_memory=128MiB,limit=25%"), 32 * MIB),
    ] {
        assert_eq!(limit_of(options), Ok(limit), "{options:?}");
    }
    assert!(
        limit_of(Some(c"limit=much"))
            .unwrap_err()
            .contains("cannot read `much`")
    );
    let mut memory = vec![0u8; 128 << 20];
    let mut allocator = null_mut();
    // SAFETY: memory of this function's, and a pointer to a local.
    unsafe {
        let base = memory.as_mut_ptr().cast();
        let status = c::trtalloc_create_from(base, memory.len() as u64, std::ptr::null(), &mut allocator);
        assert_eq!(
            status,
            trtalloc_status::Ok,
            "{:?}",
            CStr::from_ptr(c::trtalloc_last_error())
        );
        let block = c::trtalloc_allocate(allocator, 2 * MIB, 0, 0);
        assert!(!block.is_null() && c::trtalloc_deallocate(allocator, block));
        let mut stats = c::trtalloc_stats::default();
        c::trtalloc_stats_get(allocator, -1, &mut stats, size_of_val(&stats));
        assert_eq!(stats.limit, 64 * MIB);
        c::trtalloc_destroy(allocator);
        // Pinned memory has no headroom on the device, and no pages behind its blocks.
        let status = c::trtalloc_create(c"kind=pinned".as_ptr(), &mut allocator);
        assert_eq!(
            status,
            trtalloc_status::Ok,
            "{:?}",
            CStr::from_ptr(c::trtalloc_last_error())
        );
        let block = c::trtalloc_allocate(allocator, 2 * MIB, 0, 0);
        assert!(!block.is_null() && c::trtalloc_deallocate(allocator, block));
        c::trtalloc_destroy(allocator);
    }
}

#[test]
fn the_environment_has_the_defaults_of_every_allocator() {
    run(
        Place::Sim,
        "environment::the_environment_has_the_defaults_of_every_allocator",
        defaults_of_every_allocator,
        &["TRTALLOC_LIMTI is no option; the nearest is TRTALLOC_LIMIT"],
        &[
            ("TRTALLOC_DRIVER", "sim"),
            ("TRTALLOC_SIM_MEMORY", "256MiB"),
            ("TRTALLOC_LIMIT", "64MiB"),
            ("TRTALLOC_LIMTI", "1MiB"),
            ("TRTALLOC_GUARD", "1"),
            ("TRTALLOC_HEADROOM", "10%"),
        ],
    );
}

/// An allocator without a limit of its own is not made where the environment's cannot be read.
fn created_without_a_readable_limit(_: Place) {
    for options in [None, Some(c"driver=sim"), Some(c"wait_ms=1")] {
        let reason = limit_of(options).unwrap_err();
        assert!(reason.contains("TRTALLOC_LIMIT: cannot read `plenty`"), "{reason}");
    }
    assert_eq!(limit_of(Some(c"limit=64MiB")), Ok(64 * MIB));
}

#[test]
fn an_unreadable_limit_is_the_reason_why_no_allocator_is_made() {
    run(
        Place::Sim,
        "environment::an_unreadable_limit_is_the_reason_why_no_allocator_is_made",
        created_without_a_readable_limit,
        &["TRTALLOC_LIMIT: cannot read `plenty`", "every request fails"],
        &[("TRTALLOC_LIMIT", "plenty"), ("TRTALLOC_DRIVER", "sim")],
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
