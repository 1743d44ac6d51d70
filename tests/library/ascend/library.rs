//! The driver through libascendcl.so, in child processes that find the stand-in by `LD_LIBRARY_PATH`.

use std::env;
use std::ffi::CStr;
use std::path::PathBuf;
use std::process::Command;
use std::ptr::null_mut;
use std::sync::OnceLock;

use trtalloc::allocator::Allocator;
use trtalloc::config::Config;
use trtalloc::ffi::c::{self, trtalloc_status};

use crate::common::simcuda;

const ROLE: &str = "TRTALLOC_TEST_ROLE";

fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| simcuda::ascend().expect("the stand-in is there or can be built"))
}

/// Which libraries a child finds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    All,
    /// Only libascendcl.so.
    Alone,
    Nothing,
}

/// The folder with these libraries.
fn path(found: Found) -> PathBuf {
    match found {
        Found::All => folder().clone(),
        Found::Alone => {
            let alone = folder().join("alone");
            // Another test may have made it already.
            let _ = std::fs::create_dir(&alone);
            let _ = std::os::unix::fs::symlink("../libascendcl.so", alone.join("libascendcl.so"));
            alone
        }
        Found::Nothing => PathBuf::new(),
    }
}

/// Returns whether this process is the child of that test. Otherwise starts the child and checks that it passes and
/// that the stand-in prints nothing.
fn in_child(test: &str, found: Found, variables: &[(&str, &str)]) -> bool {
    let test = format!("ascend::library::{test}");
    if env::var(ROLE).is_ok_and(|role| role == test) {
        return true;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([&test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, &test).envs(variables.iter().copied());
    command.env("LD_LIBRARY_PATH", path(found));
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, complaints) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success() && printed.contains("1 passed"),
        "{test} {variables:?}: {}\n{printed}\n{complaints}",
        output.status
    );
    assert!(!complaints.contains("simascend:"), "{test}:\n{complaints}");
    false
}

/// The error of opening an allocator that is refused.
fn refusal(options: &str) -> String {
    let outcome = Allocator::from_config(Config::parse(options).unwrap());
    outcome.err().expect(options).to_string()
}

#[test]
fn c_functions_work() {
    if !in_child("c_functions_work", Found::All, &[("SIMASCEND_MEMORY", "268435456")]) {
        return;
    }
    let mut allocator = null_mut();
    // SAFETY: C strings, places to write to, and blocks that are given back once.
    unsafe {
        let status = c::trtalloc_create(c"driver=ascend".as_ptr(), &mut allocator);
        let error = CStr::from_ptr(c::trtalloc_last_error());
        assert_eq!(status, trtalloc_status::Ok, "{error:?}");
        let first = c::trtalloc_allocate(allocator, 1000, 0, 0);
        let second = c::trtalloc_allocate(allocator, 1000, 0, 0);
        assert!(!first.is_null() && !second.is_null(), "{error:?}");
        // Ascend's rule is the default: 1000 becomes 1024 and 32 more, and starts are multiples of 64.
        assert!((first as usize).is_multiple_of(64) && first.addr().abs_diff(second.addr()) >= 1088);
        let mut stats: c::trtalloc_stats = std::mem::zeroed();
        let status = c::trtalloc_stats_get(allocator, 0, &mut stats, size_of_val(&stats));
        assert_eq!((status, stats.allocated), (trtalloc_status::Ok, 2 * 1088));
        let grown = c::trtalloc_allocate(allocator, 1 << 20, 0, 1);
        let grown = c::trtalloc_reallocate(allocator, grown, 0, 100 << 20);
        assert!(!grown.is_null());
        assert!(c::trtalloc_allocate(allocator, 512 << 20, 0, 0).is_null());
        let error = CStr::from_ptr(c::trtalloc_last_error()).to_string_lossy();
        assert!(error.contains("207001") && error.contains("aclrt"), "{error}");
        for block in [first, second, grown] {
            assert!(c::trtalloc_deallocate(allocator, block));
        }
        c::trtalloc_destroy(allocator);
    }
}

#[test]
fn pinned_and_media_memory_work() {
    if !in_child("pinned_and_media_memory_work", Found::All, &[]) {
        return;
    }
    for (options, start) in [("kind=pinned,rule=ascend-host", 64), ("rule=ascend-media", 128)] {
        let allocator = Allocator::create(&format!("driver=ascend,{options}")).unwrap();
        let request = trtalloc::allocator::Request {
            size: 5000,
            alignment: 0,
            flags: 0,
            stream: None,
            device: None,
        };
        let block = allocator.allocate(request).unwrap();
        assert_eq!(block % start, 0);
        // SAFETY: the stand-in's memory is the host's, and 5000 bytes of it are this test's.
        unsafe { std::ptr::write_bytes(block as *mut u8, 1, 5000) };
        allocator.deallocate(block, None).unwrap();
        allocator.trim(None, 0).unwrap();
    }
}

#[test]
fn missing_library_is_reported() {
    if in_child("missing_library_is_reported", Found::Nothing, &[]) {
        assert!(refusal("driver=ascend").contains("libascendcl.so is missing"));
        // The automatic choice finds CUDA, or fails.
        assert!(refusal("driver=auto").contains("libcuda.so.1"));
    }
}

#[test]
fn missing_media_library_is_reported() {
    if in_child("missing_media_library_is_reported", Found::Alone, &[]) {
        let error = refusal("driver=ascend,rule=ascend-media");
        assert!(
            error.contains("libacl_dvpp.so and libacl_dvpp_mpi.so is missing"),
            "{error}"
        );
        // Other memory does not need the media libraries.
        Allocator::create("driver=ascend,rule=ascend-media,kind=pinned").unwrap();
        Allocator::create("driver=ascend").unwrap();
    }
}

#[test]
fn missing_required_function_is_named() {
    for function in ["aclInit", "aclrtQueryEventStatus", "aclrtStreamWaitEvent", "aclrtFree"] {
        if in_child(
            "missing_required_function_is_named",
            Found::All,
            &[("SIMASCEND_MISSING", function)],
        ) {
            let missing = env::var("SIMASCEND_MISSING").unwrap();
            let error = refusal("driver=ascend");
            assert!(error.contains(&format!("{missing} is missing")), "{error}");
        }
    }
}

#[test]
fn optional_functions_may_be_missing() {
    let optional = "aclrtMallocAlign32,aclrtMapMem,aclrtGetPrimaryCtxState,aclrtSynchronizeDeviceWithTimeout,\
                    aclmdlRICaptureGetInfo,aclmdlRICaptureThreadExchangeMode,aclrtGetSocName,acldvppMalloc";
    if in_child(
        "optional_functions_may_be_missing",
        Found::All,
        &[("SIMASCEND_MISSING", optional)],
    ) {
        // Without one of these functions there is no virtual memory, or media memory comes from the other library.
        for options in ["", "rule=ascend-media"] {
            let allocator = Allocator::create(&format!("driver=ascend,{options}")).unwrap();
            let request = trtalloc::allocator::Request {
                size: 5 << 20,
                alignment: 0,
                flags: 0,
                stream: None,
                device: None,
            };
            let block = allocator.allocate(request).unwrap();
            allocator.deallocate(block, None).unwrap();
            allocator.trim(None, 0).unwrap();
        }
    }
}

#[test]
fn missing_media_functions_are_reported() {
    let media = "acldvppMalloc,hi_mpi_dvpp_malloc";
    if in_child(
        "missing_media_functions_are_reported",
        Found::All,
        &[("SIMASCEND_MISSING", media)],
    ) {
        let error = refusal("driver=ascend,rule=ascend-media");
        assert!(
            error.contains("acldvppMalloc and hi_mpi_dvpp_malloc is missing"),
            "{error}"
        );
    }
}

#[test]
fn missing_device_is_reported() {
    if in_child("missing_device_is_reported", Found::All, &[("SIMASCEND_DEVICES", "0")]) {
        assert!(refusal("driver=ascend").contains("knows no device"));
    }
}
