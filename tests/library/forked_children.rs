//! Every function of the C interface in children of a process whose threads use the library while it forks. A child has copies of
//! locks that no thread will release, so a call that looks for one of them never returns.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::common;
use crate::common::exports::NAMES;
use trtalloc::ffi::c::dlpack::*;
use trtalloc::ffi::c::hooks::*;
use trtalloc::ffi::c::*;

const CHILD: &str = "TRTALLOC_TEST_ROLE";
const MIB: u64 = 1 << 20;
/// TensorRT 10.
const VERSION: i32 = 100_000;
const LEGACY: *mut c_void = null_mut();

/// What the parent has made, for the calls of a child.
#[derive(Clone, Copy)]
struct Made {
    allocator: *mut trtalloc_allocator,
    block: *mut c_void,
    outputs: *mut c_void,
    shared: *mut trtalloc_dlpack_block,
    tensor: *mut c_void,
}

// SAFETY: the library's objects may be used from any thread.
unsafe impl Send for Made {}
// SAFETY: as above.
unsafe impl Sync for Made {}

extern "C" fn capsule_new(_: *mut c_void, _: *const c_char, _: *mut c_void) -> *mut c_void {
    std::ptr::without_provenance_mut(64)
}
extern "C" fn capsule_is_valid(_: *mut c_void, _: *const c_char) -> c_int {
    0
}
extern "C" fn capsule_get_pointer(_: *mut c_void, _: *const c_char) -> *mut c_void {
    null_mut()
}

unsafe extern "C" fn no_retry(_: *mut c_void, _: i32, _: u64) -> bool {
    false
}

/// Whether the function of that name reports by its result that it failed. A function without a result only sets the status.
///
/// # Safety
/// `made` is of this process or of its parent.
unsafe fn fails(name: &str, made: Made) -> bool {
    let Made {
        allocator: a,
        block,
        outputs,
        shared,
        tensor,
    } = made;
    let (mut new, mut output, mut released) = (null_mut(), std::mem::MaybeUninit::zeroed(), 0);
    let (mut stats, mut tag_stats) = (trtalloc_stats::default(), trtalloc_tag_stats::default());
    let mut info = std::mem::MaybeUninit::zeroed();
    let unsupported = |status| status == trtalloc_status::Unsupported;
    let python = trtalloc_dlpack_python {
        capsule_new: capsule_new as *mut c_void,
        capsule_is_valid: capsule_is_valid as *mut c_void,
        capsule_get_pointer: capsule_get_pointer as *mut c_void,
    };
    // SAFETY: as this function demands, locals to write to, and C strings.
    unsafe {
        match name {
            "trtalloc_allocate" => trtalloc_allocate(a, MIB, 0, 0).is_null(),
            "trtalloc_allocate_async" => trtalloc_allocate_async(a, MIB, 0, 0, LEGACY).is_null(),
            "trtalloc_allocate_on" => trtalloc_allocate_on(a, 0, MIB, 0, 0, LEGACY).is_null(),
            "trtalloc_create" => unsupported(trtalloc_create(c"driver=sim".as_ptr(), &mut new)),
            "trtalloc_create_from" => {
                let base = std::ptr::without_provenance_mut(1 << 40);
                unsupported(trtalloc_create_from(base, MIB, c"driver=none".as_ptr(), &mut new))
            }
            "trtalloc_cupy_free" => {
                trtalloc_cupy_free(null_mut(), block, 0);
                true
            }
            "trtalloc_cupy_malloc" => trtalloc_cupy_malloc(null_mut(), 512, 0).is_null(),
            "trtalloc_deallocate" => !trtalloc_deallocate(a, block),
            "trtalloc_deallocate_async" => !trtalloc_deallocate_async(a, block, LEGACY),
            "trtalloc_destroy" => {
                trtalloc_destroy(a);
                true
            }
            "trtalloc_dlpack_allocate" => trtalloc_dlpack_allocate(MIB, 0, 0, -1, LEGACY).is_null(),
            "trtalloc_dlpack_capsule" => trtalloc_dlpack_capsule(&python, tensor, true).is_null(),
            "trtalloc_dlpack_export" => trtalloc_dlpack_export(shared, 1, 8, [16].as_ptr(), 1, LEGACY, true).is_null(),
            "trtalloc_dlpack_get" => !trtalloc_dlpack_get(shared, info.as_mut_ptr()),
            "trtalloc_dlpack_reallocate" => !trtalloc_dlpack_reallocate(shared, 2 * MIB),
            "trtalloc_dlpack_release" => {
                trtalloc_dlpack_release(shared, true);
                true
            }
            "trtalloc_history" => unsupported(trtalloc_history(a, c"all".as_ptr())),
            "trtalloc_inject" => unsupported(trtalloc_inject(0)),
            "trtalloc_metrics" => trtalloc_metrics(a, null_mut(), 0) == 0,
            "trtalloc_on_oom" => unsupported(trtalloc_on_oom(a, Some(no_retry), null_mut())),
            "trtalloc_ort_alloc" => trtalloc_ort_alloc(512).is_null(),
            "trtalloc_ort_empty_cache" => {
                trtalloc_ort_empty_cache();
                true
            }
            "trtalloc_ort_free" => {
                trtalloc_ort_free(block);
                true
            }
            "trtalloc_output_get" => unsupported(trtalloc_output_get(outputs, c"t".as_ptr(), output.as_mut_ptr())),
            "trtalloc_output_release" => unsupported(trtalloc_output_release(outputs, null())),
            "trtalloc_output_take" => unsupported(trtalloc_output_take(outputs, c"t".as_ptr(), output.as_mut_ptr())),
            "trtalloc_reallocate" => trtalloc_reallocate(a, block, 0, MIB).is_null(),
            "trtalloc_record_stream" => unsupported(trtalloc_record_stream(a, block, LEGACY)),
            "trtalloc_set_limit" => unsupported(trtalloc_set_limit(a, 0, 0)),
            "trtalloc_set_tag" => {
                trtalloc_set_tag(c"child".as_ptr());
                true
            }
            "trtalloc_set_tag_limit" => unsupported(trtalloc_set_tag_limit(a, 0, c"child".as_ptr(), 0)),
            "trtalloc_snapshot" => unsupported(trtalloc_snapshot(a, c"/nonexistent/snapshot.json".as_ptr())),
            "trtalloc_stats_get" => unsupported(trtalloc_stats_get(a, 0, &mut stats, size_of::<trtalloc_stats>())),
            "trtalloc_stats_json" => trtalloc_stats_json(a, 0, null_mut(), 0) == 0,
            "trtalloc_stats_reset_peaks" => unsupported(trtalloc_stats_reset_peaks(a, 0)),
            "trtalloc_stream_release" => unsupported(trtalloc_stream_release(a, LEGACY)),
            "trtalloc_tag_stats_get" => {
                let size = size_of::<trtalloc_tag_stats>();
                unsupported(trtalloc_tag_stats_get(a, 0, c"busy".as_ptr(), &mut tag_stats, size))
            }
            "trtalloc_tensorrt_allocator" => trtalloc_tensorrt_allocator(a, VERSION).is_null(),
            "trtalloc_tensorrt_allocator_named" => {
                trtalloc_tensorrt_allocator_named(a, VERSION, c"busy".as_ptr()).is_null()
            }
            "trtalloc_tensorrt_output_allocator" => trtalloc_tensorrt_output_allocator(a, VERSION).is_null(),
            "trtalloc_torch_free" => {
                trtalloc_torch_free(block, MIB as usize, 0, LEGACY);
                true
            }
            "trtalloc_torch_init" => {
                trtalloc_torch_init(1);
                true
            }
            "trtalloc_torch_malloc" => trtalloc_torch_malloc(512, 0, LEGACY).is_null(),
            // Without a C++ runtime in the process it throws nothing.
            "trtalloc_torch_malloc_or_throw" => trtalloc_torch_malloc_or_throw(512, 0, LEGACY).is_null(),
            "trtalloc_torch_memory_fraction" => {
                trtalloc_torch_memory_fraction(0.5, 0);
                true
            }
            "trtalloc_torch_record_stream" => {
                trtalloc_torch_record_stream(block, LEGACY);
                true
            }
            "trtalloc_torch_reset" => {
                trtalloc_torch_reset();
                true
            }
            "trtalloc_trim" => unsupported(trtalloc_trim(a, 0, 0, &mut released)),
            _ => {
                eprintln!("this test has no call of {name}");
                false
            }
        }
    }
}

/// They take no lock and have a result in every process.
const WITHOUT_FAILURE: [&str; 4] = [
    "trtalloc_default",
    "trtalloc_last_error",
    "trtalloc_last_status",
    "trtalloc_version",
];

/// In a child: calls all functions, from one on that another child does not begin with, and ends.
fn call_all(made: Made, first: usize, at: &AtomicU32) -> ! {
    // The interposed names are TensorRT's and libc's.
    let names = NAMES
        .iter()
        .enumerate()
        .filter(|(_, name)| name.starts_with("trtalloc_"));
    let names: Vec<_> = names.filter(|(_, name)| !WITHOUT_FAILURE.contains(name)).collect();
    let mut refused = true;
    for step in 0..names.len() {
        let (number, name) = names[(first + step) % names.len()];
        at.store(number as u32, Ordering::Relaxed);
        // SAFETY: what the parent made; a request for nothing sets another status, without a lock.
        unsafe {
            trtalloc_allocate(made.allocator, 0, 0, 0);
            assert!(trtalloc_last_status() == trtalloc_status::InvalidArgument);
            if !fails(name, made) || trtalloc_last_status() != trtalloc_status::Unsupported {
                eprintln!("{name}: status {:?}", trtalloc_last_status());
                refused = false;
            }
            assert!(!trtalloc_default().is_null() && !trtalloc_version().is_null() && !trtalloc_last_error().is_null());
        }
    }
    // SAFETY: ends the child without its parent's handlers.
    unsafe { libc::_exit(if refused { 0 } else { 1 }) };
}

/// What threads of the parent do until they stop, each of them something that takes other locks.
fn busy(made: Made, thread: usize, round: usize) {
    let size = 4096 << (round % 10);
    let name = [b'a' + (round % 20) as u8, 0];
    // SAFETY: what the parent made, each block freed once, and C strings.
    unsafe {
        match thread {
            0 => {
                let block = trtalloc_allocate_async(made.allocator, size, 0, 0, LEGACY);
                trtalloc_record_stream(made.allocator, block, LEGACY);
                trtalloc_deallocate(made.allocator, block);
            }
            1 => {
                let mut output = std::mem::MaybeUninit::zeroed();
                trtalloc_output_get(made.outputs, c"t".as_ptr(), output.as_mut_ptr());
                trtalloc_output_take(made.outputs, c"t".as_ptr(), output.as_mut_ptr());
                trtalloc_output_release(made.outputs, null());
                if round < 10_000 {
                    trtalloc_tensorrt_output_allocator(made.allocator, VERSION);
                }
                trtalloc_tensorrt_allocator_named(made.allocator, VERSION, name.as_ptr().cast());
                trtalloc_set_tag(name.as_ptr().cast());
            }
            2 => {
                trtalloc_stats_json(made.allocator, 0, null_mut(), 0);
                trtalloc_on_oom(made.allocator, Some(no_retry), null_mut());
                trtalloc_history(made.allocator, [c"all", c"off"][round % 2].as_ptr());
                trtalloc_trim(made.allocator, 0, 0, null_mut());
            }
            _ => {
                let shared = trtalloc_dlpack_allocate(size, 0, 0, -1, LEGACY);
                trtalloc_dlpack_get(shared, std::mem::MaybeUninit::zeroed().as_mut_ptr());
                trtalloc_dlpack_release(shared, true);
                let block = trtalloc_torch_malloc(size as usize, 0, LEGACY);
                trtalloc_torch_free(block, size as usize, 0, LEGACY);
            }
        }
    }
}

#[test]
fn every_function_is_refused_in_a_child() {
    let test = "forked_children::every_function_is_refused_in_a_child";
    if std::env::var(CHILD).is_err() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
        command.env(CHILD, test).env("TRTALLOC_DRIVER", "sim");
        common::run(&mut command);
        return;
    }
    let mut allocator = null_mut();
    // SAFETY: locals to write to, C strings, and extents of that number.
    let made = unsafe {
        assert!(trtalloc_create(c"driver=sim".as_ptr(), &mut allocator) == trtalloc_status::Ok);
        let shared = trtalloc_dlpack_allocate(MIB, 0, 0, -1, LEGACY);
        Made {
            allocator,
            block: trtalloc_allocate(allocator, MIB, 0, 1),
            outputs: trtalloc_tensorrt_output_allocator(allocator, VERSION),
            shared,
            tensor: trtalloc_dlpack_export(shared, 1, 8, [16].as_ptr(), 1, LEGACY, true),
        }
    };
    assert!(!made.block.is_null() && !made.outputs.is_null() && !made.tensor.is_null());
    // SAFETY: a page of its own, shared with the children, and zero bytes are a number.
    let at = unsafe {
        let (access, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        let page = libc::mmap(null_mut(), 4096, access, kind, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        &*page.cast::<AtomicU32>()
    };
    let stop = AtomicBool::new(false);
    let failed = std::thread::scope(|scope| {
        for thread in 0..4 {
            let stop = &stop;
            scope.spawn(move || {
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    busy(made, thread, round);
                }
            });
        }
        let mut failed = Vec::new();
        for first in 0..100 {
            std::thread::sleep(std::time::Duration::from_micros(700));
            // SAFETY: the child calls the library under test, and leaves by _exit.
            let child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child == 0 {
                // A call that waits for ever. SAFETY: ends this child, with the usual action of the signal.
                unsafe { libc::alarm(20) };
                call_all(made, first, at);
            }
            let mut status = 0;
            // SAFETY: the child of this process and a local to write to.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            if status != 0 {
                failed.push((NAMES[at.load(Ordering::Relaxed) as usize], status));
            }
            if failed.len() > 3 {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        failed
    });
    assert!(
        failed.is_empty(),
        "the last call of each child that failed, and its status: {failed:?}"
    );
}
