//! The CUDA driver through the names of libcuda.so.1: every method of the trait, in child processes whose
//! `LD_LIBRARY_PATH` has the simulated one, or (with `TRTALLOC_TEST_DRIVER=cuda`) over the driver that is installed.

#[macro_use]
extern crate trial;

mod calls;
#[path = "../support/common/mod.rs"]
mod common;

use common::simcuda;

use std::env;
use std::ffi::c_void;
use std::path::Path;
use std::process::{Command, Output};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use trtalloc::driver::cuda::CudaDriver;
use trtalloc::driver::{Capture, Driver, Failure, Graph, HandleKind, Stream};

fn main() -> std::process::ExitCode {
    common::harness::main()
}

const CHILD: &str = "TRTALLOC_TEST_ROLE";

fn real_driver() -> bool {
    env::var("TRTALLOC_TEST_DRIVER").is_ok_and(|driver| driver == "cuda")
}

/// Runs the test of that name again in a process of its own, there with the role `test`.
fn child(test: &str, libraries: Option<&Path>, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env::current_exe().expect("this program has a path"));
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, test);
    if let Some(libraries) = libraries {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    for (name, value) in variables {
        command.env(name, value);
    }
    command.output().expect("a child process starts")
}

/// Whether this process is the child of that test; else starts it and demands that it passes.
fn in_child(test: &str, variables: &[(&str, &str)]) -> bool {
    if env::var(CHILD).is_ok_and(|role| role == test) {
        return true;
    }
    let folder =
        (!real_driver()).then(|| simcuda::directory().expect("the simulated libcuda.so.1 is there or can be built"));
    let output = child(test, folder.as_deref(), variables);
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success() && out.contains("1 passed"),
        "{test}: {}\n{out}\n{err}",
        output.status
    );
    false
}

/// Ends a test that is about a driver that only the simulation can be.
fn needs_simulation() {
    if real_driver() {
        common::unsupported("needs the simulated libcuda.so.1");
    }
}

/// The driver with device 0's primary context current.
fn open() -> Arc<CudaDriver> {
    let driver = CudaDriver::open().expect("the driver opens");
    let primary = driver.primary_retain(0).expect("device 0 has a primary context");
    driver.context_push(primary).expect("it can be pushed");
    driver
}

fn ok(code: sys::CUresult) {
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
}

/// A non-blocking stream, made by cudarc's own path to the same library.
fn new_stream() -> Stream {
    let mut stream: sys::CUstream = null_mut();
    // SAFETY: a local to write to.
    ok(unsafe { sys::cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32) });
    Stream(stream as usize)
}

fn begin_capture(stream: Stream, mode: sys::CUstreamCaptureMode) {
    // SAFETY: a living stream.
    ok(unsafe { sys::cuStreamBeginCapture_v2(stream.0 as sys::CUstream, mode) });
}

fn end_capture(stream: Stream) -> Graph {
    let mut graph: sys::CUgraph = null_mut();
    // SAFETY: a living stream and a local to write to.
    ok(unsafe { sys::cuStreamEndCapture(stream.0 as sys::CUstream, &mut graph) });
    Graph(graph as usize)
}

#[test]
fn no_library_is_an_error_that_names_it() {
    const TEST: &str = "no_library_is_an_error_that_names_it";
    needs_simulation();
    if env::var(CHILD).is_ok_and(|role| role == TEST) {
        let error = CudaDriver::open().expect_err("there is no library");
        assert_eq!((error.failure, error.call), (Failure::Missing, "libcuda.so.1"));
        assert_eq!(error.to_string(), "libcuda.so.1 is missing");
        return;
    }
    if Path::new("/dev/nvidiactl").exists() {
        common::unsupported("a driver is installed here, and the loader's cache would find it");
    }
    let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("empty-{}", std::process::id()));
    std::fs::create_dir_all(&empty).expect("a folder can be made");
    let output = child(TEST, Some(&empty), &[]);
    let _ = std::fs::remove_dir(&empty);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

#[test]
fn a_library_that_is_no_driver_is_an_error_that_names_what_it_lacks() {
    const TEST: &str = "a_library_that_is_no_driver_is_an_error_that_names_what_it_lacks";
    needs_simulation();
    if env::var(CHILD).is_ok_and(|role| role == TEST) {
        let error = CudaDriver::open().expect_err("libm is no driver");
        assert_eq!((error.failure, error.call), (Failure::Missing, "cuInit"));
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("no-driver-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has it");
    let libc = maps
        .lines()
        .find_map(|line| line.split_whitespace().nth(5).filter(|path| path.contains("/libc.so")));
    std::fs::copy(libc.expect("this program has a libc"), folder.join("libcuda.so.1")).expect("it can be copied");
    let output = child(TEST, Some(&folder), &[]);
    let _ = std::fs::remove_dir_all(&folder);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && out.contains("1 passed"), "{out}");
}

#[test]
fn a_user_object_that_could_not_be_hung_on_its_graph() {
    const TEST: &str = "a_user_object_that_could_not_be_hung_on_its_graph";
    needs_simulation();
    if !in_child(TEST, &[("SIMCUDA_FAIL", "cuGraphRetainUserObject:1:999")]) {
        return;
    }
    static DESTROYED: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn destroyed(_: *mut c_void) {
        DESTROYED.fetch_add(1, Ordering::AcqRel);
    }
    let driver = open();
    let stream = new_stream();
    begin_capture(stream, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
    let info = driver.stream_capture_info(stream).unwrap().expect("it captures");
    // SAFETY: the function only adds to a static.
    let error = unsafe { driver.retain_user_object(info.graph, destroyed, null_mut()) }.unwrap_err();
    assert_eq!((error.call, error.code), ("cuGraphRetainUserObject", 999));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(DESTROYED.load(Ordering::Acquire), 0, "the data is the caller's again");
    end_capture(stream);
}

#[test]
fn injected_failures_carry_their_name_and_code() {
    const TEST: &str = "injected_failures_carry_their_name_and_code";
    const RULES: &str = "cuMemCreate:2:2;cuEventQuery:1:700;cuMemMap:1:424242";
    needs_simulation();
    if !in_child(TEST, &[("SIMCUDA_FAIL", RULES)]) {
        return;
    }
    let driver = open();
    let unit = driver.device_info(0).unwrap().granularity.0;
    let handle = driver.create(0, unit, HandleKind::default()).unwrap();
    let error = driver.create(0, unit, HandleKind::default()).unwrap_err();
    assert_eq!(
        (error.call, error.code, error.failure),
        ("cuMemCreate", 2, Failure::OutOfMemory)
    );
    let event = driver.event_create().unwrap();
    assert_eq!(driver.event_query(event).unwrap_err().failure, Failure::ContextDead);
    let range = driver.reserve(unit, 0).unwrap();
    // A code that no header knows is an ordinary error.
    let error = driver.map(range, unit, handle).unwrap_err();
    assert_eq!((error.code, error.failure), (424242, Failure::Other));
    driver.map(range, unit, handle).unwrap();
}

#[test]
fn an_old_driver_only_switches_features_off() {
    const TEST: &str = "an_old_driver_only_switches_features_off";
    needs_simulation();
    if !in_child(TEST, &[("SIMCUDA_VERSION", "11020")]) {
        return;
    }
    let driver = open();
    assert_eq!(driver.version(), 11020);
    let features = driver.features();
    assert!(!features.stream_ids && !features.context_events && !features.user_objects);
    assert_eq!(driver.stream_id(Stream::DEFAULT).unwrap_err().failure, Failure::Missing);
    let stream = new_stream();
    begin_capture(stream, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
    let info = driver.stream_capture_info(stream).unwrap().expect("it captures");
    assert!(info.id != 0 && info.graph == Graph(0));
    // SAFETY: refused before anything is called.
    let error = unsafe { driver.retain_user_object(info.graph, never, null_mut()) }.unwrap_err();
    assert_eq!(error.failure, Failure::Missing);
    end_capture(stream);
    // A budget of several processes cannot be counted without the device's UUID.
    let allocator = trtalloc::allocator::Allocator::create("driver=cuda,share_budget=jobs:1GiB").unwrap();
    let request = trtalloc::allocator::Request {
        size: 1,
        alignment: 0,
        flags: 0,
        stream: None,
        device: None,
    };
    let error = allocator.allocate(request).unwrap_err().to_string();
    assert!(
        error.contains("share_budget jobs:1073741824") && error.contains("cuDeviceGetUuid_v2"),
        "{error}"
    );
}

unsafe extern "C" fn never(_: *mut c_void) {
    unreachable!("was refused")
}

#[test]
fn tools_give_streams_and_work() {
    const TEST: &str = "tools_give_streams_and_work";
    if !in_child(TEST, &[]) {
        return;
    }
    let driver = open();
    let tools = driver.tools().expect("CUDA has tools");
    assert!(tools.description().starts_with("CUDA 1"), "{}", tools.description());
    assert!(tools.simulation().is_none());
    let stream = tools.create_stream().unwrap();
    // Only a stream that does not wait for the legacy default stream leaves that one alone.
    begin_capture(stream, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
    assert_eq!(driver.stream_capture(Stream::DEFAULT), Ok(Capture::None));
    end_capture(stream);
    let block = driver.malloc(4096).unwrap();
    tools.launch(stream, block, 4096).unwrap();
    driver.context_synchronize().unwrap();
    driver.free(block).unwrap();
    let id = driver.stream_id(stream).unwrap();
    tools.destroy_stream(stream).unwrap();
    let stream = tools.create_stream().unwrap();
    assert_ne!(driver.stream_id(stream).unwrap(), id);
    match tools.malloc_async(4096, stream) {
        Ok(block) => tools.free_async(block, stream).unwrap(),
        Err(error) => assert_eq!((error.call, error.failure), ("cuMemAllocAsync", Failure::Missing)),
    }
    tools.destroy_stream(stream).unwrap();
}

#[test]
fn an_environment_without_meaning_is_refused() {
    const TEST: &str = "an_environment_without_meaning_is_refused";
    needs_simulation();
    if !in_child(TEST, &[("SIMCUDA_FAIL", "cuMemCrate:1:2")]) {
        return;
    }
    let error = CudaDriver::open().expect_err("there is no cuMemCrate");
    assert_eq!((error.call, error.code, error.failure), ("cuInit", 1, Failure::Other));
}

#[test]
fn published_latencies_pass_on_the_wall_clock() {
    const TEST: &str = "published_latencies_pass_on_the_wall_clock";
    needs_simulation();
    if !in_child(TEST, &[("SIMCUDA_LATENCY", "peers")]) {
        return;
    }
    let driver = open();
    let unit = driver.device_info(0).unwrap().granularity.0;
    let start = Instant::now();
    for _ in 0..10 {
        let handle = driver.create(0, unit, HandleKind::default()).unwrap();
        driver.release(handle).unwrap();
    }
    assert!(start.elapsed() >= Duration::from_micros(1930));
}

#[test]
fn the_driver_does_not_survive_a_fork() {
    const TEST: &str = "the_driver_does_not_survive_a_fork";
    needs_simulation();
    if !in_child(TEST, &[]) {
        return;
    }
    let driver = open();
    // SAFETY: the child makes one call that neither allocates nor locks, and leaves.
    let forked = unsafe { libc::fork() };
    if forked == 0 {
        let code = driver.current_context().err().map_or(0, |error| error.code);
        // SAFETY: ends the child without running what the parent registered.
        unsafe { libc::_exit(code as i32) };
    }
    let mut status = 0;
    // SAFETY: our own child and a local to write to.
    assert_eq!(unsafe { libc::waitpid(forked, &mut status, 0) }, forked);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 3,
        "status {status}"
    );
    assert!(driver.current_context().is_ok(), "the parent goes on");
}

#[test]
fn the_simulated_library_exports_the_drivers_names_only() {
    needs_simulation();
    let folder = simcuda::directory().expect("the simulated libcuda.so.1 is there or can be built");
    let listed = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(folder.join("libcuda.so.1"))
        .output();
    let listed = String::from_utf8(listed.expect("binutils are there, as the linker is").stdout).expect("names");
    let names: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    assert!(names.contains(&"cuMemCreate"));
    let strange: Vec<&&str> = names.iter().filter(|name| !name.starts_with("cu")).collect();
    assert!(strange.is_empty(), "{strange:?}");
}

#[test]
fn a_client_of_the_driver_api_finds_its_way() {
    if !in_child("a_client_of_the_driver_api_finds_its_way", &[]) {
        return;
    }
    // cudarc's own safe layer, which knows nothing of this crate.
    let context = cudarc::driver::CudaContext::new(0).expect("device 0 has a context");
    let stream = context.new_stream().expect("it has streams");
    let there = stream.clone_htod(&[1u8, 2, 3, 4]).expect("bytes go there");
    assert_eq!(stream.clone_dtoh(&there).expect("and back"), [1, 2, 3, 4]);
    let zeros = stream.alloc_zeros::<u8>(1 << 20).expect("it has memory");
    assert!(
        stream
            .clone_dtoh(&zeros)
            .expect("it can be read")
            .iter()
            .all(|byte| *byte == 0)
    );
    drop((there, zeros));
    let mut text = std::ptr::null();
    // SAFETY: a local to write to.
    ok(unsafe { sys::cuGetErrorName(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY, &mut text) });
    // SAFETY: the driver's static text.
    assert_eq!(unsafe { std::ffi::CStr::from_ptr(text) }, c"CUDA_ERROR_OUT_OF_MEMORY");
}
