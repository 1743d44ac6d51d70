//! The CUDA driver through the names of libcuda.so.1: every method of the trait, in child processes whose
//! `LD_LIBRARY_PATH` has the simulated one, or (with `TRTALLOC_TEST_DRIVER=cuda`) over the driver that is installed.

#[path = "common/simcuda.rs"]
mod simcuda;

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
use trtalloc::driver::{Capture, CaptureMode, Driver, Event, Failure, Graph, HandleKind, Stream};

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

/// Whether the test is about a driver that only the simulation can be.
fn needs_simulation() -> bool {
    if real_driver() {
        eprintln!("skipped: needs the simulated libcuda.so.1");
    }
    !real_driver()
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

fn synchronize(stream: Stream) {
    // SAFETY: a living stream.
    ok(unsafe { sys::cuStreamSynchronize(stream.0 as sys::CUstream) });
}

fn read_back(address: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    // SAFETY: the buffer has that many bytes.
    ok(unsafe { sys::cuMemcpyDtoH_v2(data.as_mut_ptr().cast(), address, bytes) });
    data
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
    if !needs_simulation() {
        return;
    }
    if env::var(CHILD).is_ok_and(|role| role == TEST) {
        let error = CudaDriver::open().expect_err("there is no library");
        assert_eq!((error.failure, error.call), (Failure::Missing, "libcuda.so.1"));
        assert_eq!(error.to_string(), "libcuda.so.1 is missing");
        return;
    }
    if Path::new("/dev/nvidiactl").exists() {
        eprintln!("skipped: a driver is installed here, and the loader's cache would find it");
        return;
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
    if !needs_simulation() {
        return;
    }
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
fn devices_and_contexts() {
    if !in_child(
        "devices_and_contexts",
        &[("SIMCUDA_MEMORY", "1073741824"), ("SIMCUDA_DEVICES", "2")],
    ) {
        return;
    }
    let driver = CudaDriver::open().expect("the driver opens");
    assert_eq!(driver.name(), "cuda");
    assert!(driver.version() >= 10010);
    assert_eq!(driver.current_context(), Ok(None));
    assert_eq!(driver.current_device(), Ok(None));
    assert!(driver.stream_id(Stream::DEFAULT).is_err());

    let devices = driver.device_count().unwrap();
    let info = driver.device_info(0).unwrap();
    assert!(!info.name.is_empty());
    assert!(info.virtual_memory);
    assert!(info.granularity.0.is_power_of_two() && info.granularity.1 >= info.granularity.0);
    if !real_driver() {
        assert_eq!((devices, info.total), (2, 1 << 30));
    }
    let error = driver.device_info(devices as i32).unwrap_err();
    assert_eq!((error.code, error.failure), (101, Failure::Other));

    // Asked without a context, it leaves none behind.
    let (free, total) = driver.memory_info(0).unwrap();
    assert!(free <= total && total <= info.total && free > 0);
    assert_eq!(driver.current_context(), Ok(None));
    assert_eq!(driver.primary_active(0), Ok(false));

    let primary = driver.primary_retain(0).unwrap();
    assert_eq!(driver.current_context(), Ok(None), "retaining makes nothing current");
    assert_eq!(driver.primary_active(0), Ok(true));
    driver.context_push(primary).unwrap();
    assert_eq!(driver.current_context(), Ok(Some(primary)));
    assert_eq!(driver.current_device(), Ok(Some(0)));
    assert!(driver.memory_info(0).is_ok());
    assert_eq!(driver.stream_context(Stream::DEFAULT), Ok(primary));
    driver.context_synchronize().unwrap();
    if driver.features().stream_ids {
        let id = driver.context_id(primary).unwrap();
        assert_eq!(driver.context_id(primary), Ok(id));
    }
    if devices > 1 {
        assert!(driver.memory_info(1).is_ok());
        assert_eq!(driver.current_context(), Ok(Some(primary)));
    }
    driver.context_pop().unwrap();
    assert_eq!(driver.context_pop().unwrap_err().failure, Failure::NoContext);
    driver.primary_release(0).unwrap();
    assert_eq!(driver.primary_active(0), Ok(false));
}

#[test]
fn a_context_that_is_gone() {
    if !in_child("a_context_that_is_gone", &[]) {
        return;
    }
    let driver = open();
    let primary = driver.current_context().unwrap().expect("one is current");
    let old = driver
        .features()
        .stream_ids
        .then(|| driver.context_id(primary).unwrap());
    let event = driver.event_create().unwrap();
    // SAFETY: nothing but the event is used after this, and only to be told that it is gone.
    ok(unsafe { sys::cuDevicePrimaryCtxReset_v2(0) });
    assert_eq!(driver.event_query(event).unwrap_err().failure, Failure::ContextDead);
    let again = driver.primary_retain(0).unwrap();
    if let Some(old) = old {
        assert_ne!(
            driver.context_id(again),
            Ok(old),
            "a context at an old handle is told apart"
        );
    }
}

#[test]
fn streams_and_events() {
    if !in_child("streams_and_events", &[]) {
        return;
    }
    let driver = open();
    let primary = driver.current_context().unwrap().expect("one is current");
    let (first, second) = (new_stream(), new_stream());
    if driver.features().stream_ids {
        let ids = [first, second, Stream::DEFAULT].map(|stream| driver.stream_id(stream).unwrap());
        assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
        assert_eq!(driver.stream_id(Stream::LEGACY), Ok(ids[2]));
        assert_ne!(driver.stream_id(Stream::PER_THREAD), Ok(ids[2]));
    }
    assert_eq!(driver.stream_context(first), Ok(primary));

    // A host function holds the stream until it is let go.
    static HELD: AtomicU32 = AtomicU32::new(1);
    unsafe extern "C" fn hold(_: *mut c_void) {
        while HELD.load(Ordering::Acquire) != 0 {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    let event = driver.event_create().unwrap();
    assert_eq!(driver.event_query(event), Ok(true), "never recorded");
    // SAFETY: a living stream, and a function that needs no data.
    ok(unsafe { sys::cuLaunchHostFunc(first.0 as sys::CUstream, Some(hold), null_mut()) });
    driver.event_record(event, first).unwrap();
    driver.stream_wait_event(second, event).unwrap();
    let behind = driver.event_create().unwrap();
    driver.event_record(behind, second).unwrap();
    assert_eq!(driver.event_query(event), Ok(false));
    assert_eq!(driver.event_query(behind), Ok(false));
    let start = Instant::now();
    assert_eq!(driver.event_wait(behind, Duration::from_millis(30)), Ok(false));
    assert!(start.elapsed() >= Duration::from_millis(30));
    let start = Instant::now();
    assert_eq!(driver.event_wait(behind, Duration::ZERO), Ok(false));
    assert!(start.elapsed() < Duration::from_millis(20));
    let all = driver.features().context_events.then(|| {
        let all = driver.event_create().unwrap();
        driver.context_record_event(primary, all).unwrap();
        assert_eq!(driver.event_query(all), Ok(false));
        all
    });
    HELD.store(0, Ordering::Release);
    assert_eq!(driver.event_wait(behind, Duration::from_secs(20)), Ok(true));
    assert_eq!(driver.event_query(event), Ok(true));
    for event in [Some(event), Some(behind), all].into_iter().flatten() {
        assert_eq!(driver.event_wait(event, Duration::from_secs(20)), Ok(true));
        driver.event_destroy(event).unwrap();
    }
    if !real_driver() {
        // On a real driver a made-up handle is undefined behaviour.
        assert_eq!(driver.event_query(Event(16)).unwrap_err().failure, Failure::ContextDead);
    }
}

#[test]
fn virtual_memory() {
    if !in_child("virtual_memory", &[]) {
        return;
    }
    let driver = open();
    let unit = driver.device_info(0).unwrap().granularity.0;
    let stream = new_stream();
    let range = driver.reserve(4 * unit, 0).unwrap();
    assert_eq!(range % unit, 0);
    let kinds = HandleKind::default();
    let (first, second) = (
        driver.create(0, unit, kinds).unwrap(),
        driver.create(0, unit, kinds).unwrap(),
    );
    driver.map(range, unit, first).unwrap();
    driver.map(range + unit, unit, second).unwrap();
    driver.set_access(range, 2 * unit, &[0]).unwrap();
    driver.fill_async(range, 7, 2 * unit, stream).unwrap();
    driver.copy_async(range + unit, range, 16, stream).unwrap();
    driver.fill_async(range, 9, 8, stream).unwrap();
    synchronize(stream);
    assert_eq!(read_back(range, 16), [[9; 8], [7; 8]].concat());
    assert_eq!(read_back(range + unit, 16), [7; 16]);

    // One handle at two addresses is one memory.
    driver.map(range + 2 * unit, unit, first).unwrap();
    driver.set_access(range + 2 * unit, unit, &[0]).unwrap();
    assert_eq!(read_back(range + 2 * unit, 16), [[9; 8], [7; 8]].concat());

    assert!(driver.map(range, unit, second).is_err(), "mapping over a mapping");
    assert!(driver.unreserve(range, 4 * unit).is_err(), "something is mapped");
    driver.unmap(range, 3 * unit).unwrap();
    driver.release(first).unwrap();
    driver.release(second).unwrap();
    driver.unreserve(range, 4 * unit).unwrap();

    let error = driver.create(0, 1 << 50, kinds).unwrap_err();
    assert_eq!(
        (error.call, error.code, error.failure),
        ("cuMemCreate", 2, Failure::OutOfMemory)
    );
}

#[test]
fn plain_memory() {
    if !in_child("plain_memory", &[]) {
        return;
    }
    let driver = open();
    let stream = new_stream();
    let device = driver.malloc(1 << 20).unwrap();
    let host = driver.host_malloc(1 << 16).unwrap();
    driver.fill_async(device, 5, 1 << 20, stream).unwrap();
    synchronize(stream);
    assert_eq!(read_back(device + (1 << 19), 4), [5; 4]);
    // SAFETY: page-locked host memory of that size.
    unsafe { std::ptr::write_bytes(host as *mut u8, 3, 1 << 16) };
    driver.host_free(host).unwrap();
    driver.free(device).unwrap();
    assert!(driver.free(device).is_err());
    let error = driver.malloc(1 << 50).unwrap_err();
    assert_eq!((error.call, error.failure), ("cuMemAlloc_v2", Failure::OutOfMemory));
}

#[test]
fn capture_and_user_objects() {
    if !in_child("capture_and_user_objects", &[]) {
        return;
    }
    let driver = open();
    let stream = new_stream();
    assert_eq!(driver.stream_capture(stream), Ok(Capture::None));
    assert_eq!(driver.stream_capture_info(stream), Ok(None));
    assert_eq!(
        driver.exchange_capture_mode(CaptureMode::Relaxed),
        Ok(CaptureMode::Global)
    );
    assert_eq!(
        driver.exchange_capture_mode(CaptureMode::ThreadLocal),
        Ok(CaptureMode::Relaxed)
    );
    assert_eq!(
        driver.exchange_capture_mode(CaptureMode::Global),
        Ok(CaptureMode::ThreadLocal)
    );

    static DESTROYED: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn destroyed(data: *mut c_void) {
        DESTROYED.fetch_add(data as usize as u32, Ordering::AcqRel);
    }
    let address = driver.malloc(4096).unwrap();
    begin_capture(stream, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
    assert_eq!(driver.stream_capture(stream), Ok(Capture::Active));
    driver.fill_async(address, 1, 4096, stream).unwrap();
    let info = driver.stream_capture_info(stream).unwrap().expect("it captures");
    assert_eq!(driver.stream_capture_info(stream), Ok(Some(info)));
    if driver.features().user_objects {
        assert_ne!(info.graph.0, 0);
        // SAFETY: the function only adds to a static.
        unsafe { driver.retain_user_object(info.graph, destroyed, std::ptr::without_provenance_mut(1)) }.unwrap();
    }
    let graph = end_capture(stream);
    assert_eq!(driver.stream_capture(stream), Ok(Capture::None));
    // SAFETY: a living graph that nothing uses after this.
    ok(unsafe { sys::cuGraphDestroy(graph.0 as sys::CUgraph) });
    if driver.features().user_objects {
        let end = Instant::now() + Duration::from_secs(20);
        while DESTROYED.load(Ordering::Acquire) == 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(DESTROYED.load(Ordering::Acquire), 1);
    }

    // The legacy stream sees a blocking stream's capture.
    let mut blocking: sys::CUstream = null_mut();
    // SAFETY: a local to write to.
    ok(unsafe { sys::cuStreamCreate(&mut blocking, 0) });
    let blocking = Stream(blocking as usize);
    begin_capture(blocking, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_eq!(driver.stream_capture(Stream::DEFAULT), Ok(Capture::Implicit));
    assert_eq!(
        driver.stream_capture(blocking),
        Ok(Capture::Active),
        "asking does no harm"
    );

    // cuMemAlloc under a global capture is refused and ends it.
    let error = driver.malloc(4096).unwrap_err();
    assert_eq!(error.failure, Failure::Capture);
    assert_eq!(driver.stream_capture(blocking), Ok(Capture::Invalidated));
    assert_eq!(driver.stream_capture_info(blocking), Ok(None));
    let mut graph: sys::CUgraph = null_mut();
    // SAFETY: a living stream and a local to write to.
    let code = unsafe { sys::cuStreamEndCapture(blocking.0 as sys::CUstream, &mut graph) };
    assert_ne!(code, sys::CUresult::CUDA_SUCCESS);
    driver.free(address).unwrap();
}

#[test]
fn a_user_object_that_could_not_be_hung_on_its_graph() {
    const TEST: &str = "a_user_object_that_could_not_be_hung_on_its_graph";
    if !needs_simulation() || !in_child(TEST, &[("SIMCUDA_FAIL", "cuGraphRetainUserObject:1:999")]) {
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
    if !needs_simulation() || !in_child(TEST, &[("SIMCUDA_FAIL", RULES)]) {
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
    if !needs_simulation() || !in_child(TEST, &[("SIMCUDA_VERSION", "11020")]) {
        return;
    }
    let driver = open();
    assert_eq!(driver.version(), 11020);
    let features = driver.features();
    assert!(!features.stream_ids && !features.context_events && !features.user_objects);
    assert_eq!(
        driver.stream_id(Stream::DEFAULT).unwrap_err().failure,
        Failure::Unsupported
    );
    let stream = new_stream();
    begin_capture(stream, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
    let info = driver.stream_capture_info(stream).unwrap().expect("it captures");
    assert!(info.id != 0 && info.graph == Graph(0));
    // SAFETY: refused before anything is called.
    let error = unsafe { driver.retain_user_object(info.graph, never, null_mut()) }.unwrap_err();
    assert_eq!(error.failure, Failure::Missing);
    end_capture(stream);
}

unsafe extern "C" fn never(_: *mut c_void) {
    unreachable!("was refused")
}

#[test]
fn an_environment_without_meaning_is_refused() {
    const TEST: &str = "an_environment_without_meaning_is_refused";
    if !needs_simulation() || !in_child(TEST, &[("SIMCUDA_FAIL", "cuMemCrate:1:2")]) {
        return;
    }
    let error = CudaDriver::open().expect_err("there is no cuMemCrate");
    assert_eq!((error.call, error.code, error.failure), ("cuInit", 1, Failure::Other));
}

#[test]
fn published_latencies_pass_on_the_wall_clock() {
    const TEST: &str = "published_latencies_pass_on_the_wall_clock";
    if !needs_simulation() || !in_child(TEST, &[("SIMCUDA_LATENCY", "peers")]) {
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
    if !needs_simulation() || !in_child(TEST, &[]) {
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
    if !needs_simulation() {
        return;
    }
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
