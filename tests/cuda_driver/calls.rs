//! Every method of the trait, as it should be on any driver.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use trtalloc::allocator::Allocator;
use trtalloc::config::Config;
use trtalloc::driver::cuda::CudaDriver;
use trtalloc::driver::{Capture, CaptureMode, Driver, Event, Failure, HandleKind, Stream};
use trtalloc::error::Error;

use crate::{begin_capture, end_capture, in_child, needs_simulation, new_stream, ok, open, real_driver};

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

/// On most machines without a device `cuInit` fails with this error already.
#[test]
fn driver_without_a_device_is_refused_and_not_needed_for_external_memory() {
    needs_simulation();
    let name = "calls::driver_without_a_device_is_refused_and_not_needed_for_external_memory";
    if !in_child(name, &[("SIMCUDA_DEVICES", "0")]) {
        return;
    }
    for options in ["", "driver=cuda"] {
        match Allocator::create(options) {
            Err(Error::Driver(error)) => assert_eq!((error.code, error.failure), (100, Failure::Unsupported)),
            other => panic!("{options:?}: {:?}", other.err()),
        }
    }
    let over = |options| Allocator::over(1 << 21, 1 << 20, Config::parse(options).unwrap());
    assert!(!over("").unwrap().driver().knows_work());
    assert!(over("driver=cuda").is_err());
}

/// The driver names the primary context for them, so the pool makes no call for a green context.
#[test]
fn green_contexts_count_as_the_primary_context() {
    if !in_child("calls::green_contexts_count_as_the_primary_context", &[]) {
        return;
    }
    let driver = open();
    if driver.version() < 12050 {
        return;
    }
    let primary = driver.current_context().unwrap().expect("the primary context");
    assert_eq!(driver.covering_context(primary), Ok(primary));
    let own = new_stream();
    assert_eq!(driver.stream_context(own), Ok(primary));
    assert_eq!(driver.is_of_green_context(own), Ok(false));

    let (mut green, mut context) = (null_mut(), null_mut());
    // SAFETY: each output is written before it is read; a resource of all zeroes is one of no type.
    unsafe {
        let mut resource: sys::CUdevResource = std::mem::zeroed();
        let mut description = null_mut();
        let multiprocessors = sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        ok(sys::cuDeviceGetDevResource(0, &mut resource, multiprocessors));
        ok(sys::cuDevResourceGenerateDesc(&mut description, &mut resource, 1));
        ok(sys::cuGreenCtxCreate(&mut green, description, 0, 1));
        ok(sys::cuCtxFromGreenCtx(&mut context, green));
        ok(sys::cuCtxPushCurrent_v2(context));
    }
    let current = driver.current_context().unwrap().expect("the green context");
    assert_ne!(current, primary);
    assert_eq!(driver.covering_context(current), Ok(primary));
    let stream = new_stream();
    for stream in [Stream::DEFAULT, Stream::LEGACY, stream] {
        assert_eq!(driver.stream_context(stream), Ok(primary));
        assert_eq!(driver.is_of_green_context(stream), Ok(true));
    }
    driver.context_pop().unwrap();
    let event = driver.event_create().unwrap();
    driver.event_record(event, stream).unwrap();
    assert!(driver.event_wait(event, Duration::from_secs(10)).unwrap());
    driver.event_destroy(event).unwrap();
    // SAFETY: a stream and a green context that nothing else uses.
    unsafe {
        ok(sys::cuStreamDestroy_v2(stream.0 as sys::CUstream));
        ok(sys::cuGreenCtxDestroy(green));
    }
}

#[test]
fn devices_and_contexts() {
    if !in_child(
        "calls::devices_and_contexts",
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

    let uuids: Vec<_> = (0..devices as i32)
        .map(|device| driver.device_uuid(device).unwrap())
        .collect();
    assert!(
        uuids
            .iter()
            .all(|uuid| uuids.iter().filter(|other| *other == uuid).count() == 1),
        "{uuids:?}"
    );
    assert!(driver.device_uuid(devices as i32).is_err());

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
fn a_destroyed_context_is_noticed() {
    if !in_child("calls::a_destroyed_context_is_noticed", &[]) {
        return;
    }
    let driver = open();
    let primary = driver.current_context().unwrap().expect("one is current");
    let old = driver
        .features()
        .stream_ids
        .then(|| driver.context_id(primary).unwrap());
    let event = driver.event_create().unwrap();
    // SAFETY: nothing but the event is used after this, and only to see that it is destroyed.
    ok(unsafe { sys::cuDevicePrimaryCtxReset_v2(0) });
    assert_eq!(
        driver.event_query(event).unwrap_err().failure,
        Failure::ContextDestroyed
    );
    let again = driver.primary_retain(0).unwrap();
    if let Some(old) = old {
        assert_ne!(
            driver.context_id(again),
            Ok(old),
            "a context at an old handle has another id"
        );
    }
}

#[test]
fn streams_and_events() {
    if !in_child("calls::streams_and_events", &[]) {
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
        assert_eq!(
            driver.event_query(Event(16)).unwrap_err().failure,
            Failure::ContextDestroyed
        );
    }
}

#[test]
fn virtual_memory() {
    if !in_child("calls::virtual_memory", &[]) {
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
    if !in_child("calls::plain_memory", &[]) {
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
    if !in_child("calls::capture_and_user_objects", &[]) {
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
