use std::time::Duration;

use trtalloc::allocator::Allocator;
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::driver::{Capture, CaptureMode, Driver, Failure, HandleKind, Stream};

use crate::sim::MIB;

#[test]
fn driver_calls_reach_the_machine() {
    let sim = SimDriver::new(SimConfig::default());
    let driver: &dyn Driver = &*sim;
    assert_eq!(driver.name(), "sim");
    assert_eq!(driver.device_count(), Ok(1));
    let info = driver.device_info(0).unwrap();
    assert_eq!(
        (info.total, info.granularity, info.virtual_memory),
        (24 << 30, (2 * MIB, 2 * MIB), true)
    );
    assert!(driver.device_info(1).is_err());
    assert_eq!(driver.current_context(), Ok(None));
    assert_eq!(driver.current_device(), Ok(None));
    assert_eq!(
        driver.stream_id(Stream::DEFAULT).unwrap_err().failure,
        Failure::NoContext
    );
    let context = driver.primary_retain(0).unwrap();
    driver.context_push(context).unwrap();
    assert_eq!(driver.current_context(), Ok(Some(context)));
    assert_eq!(driver.current_device(), Ok(Some(0)));

    let at = driver.reserve(4 * MIB, 0).unwrap();
    let handle = driver.create(0, 4 * MIB, HandleKind::default()).unwrap();
    driver.map(at, 4 * MIB, handle).unwrap();
    driver.set_access(at, 4 * MIB, &[0]).unwrap();
    let stream = Stream(sim.machine().stream_create(false).unwrap());
    driver.fill_async(at, 9, 4 * MIB, stream).unwrap();
    let event = driver.event_create().unwrap();
    driver.event_record(event, stream).unwrap();
    assert_eq!(driver.event_query(event), Ok(false));
    assert_eq!(driver.event_wait(event, Duration::from_nanos(1)), Ok(false));
    assert_eq!(driver.event_wait(event, Duration::from_secs(1)), Ok(true));

    let error = driver.create(0, 48 << 30, HandleKind::default()).unwrap_err();
    assert_eq!(
        (error.call, error.code, error.failure),
        ("cuMemCreate", 2, Failure::OutOfMemory)
    );

    assert_eq!(driver.stream_capture(stream), Ok(Capture::None));
    sim.machine().stream_begin_capture(stream.0, 0).unwrap();
    assert_eq!(driver.stream_capture(stream), Ok(Capture::Active));
    assert_eq!(driver.stream_capture(Stream::LEGACY), Ok(Capture::Implicit));
    assert!(driver.stream_capture_info(stream).unwrap().is_some());
    assert_eq!(
        driver.exchange_capture_mode(CaptureMode::Relaxed),
        Ok(CaptureMode::Global)
    );
    assert_eq!(
        driver.exchange_capture_mode(CaptureMode::Global),
        Ok(CaptureMode::Relaxed)
    );
    assert_eq!(driver.malloc(1).unwrap_err().failure, Failure::Capture);
    assert_eq!(driver.stream_capture(stream), Ok(Capture::Invalidated));
    assert!(sim.machine().stream_end_capture(stream.0).is_err());

    sim.machine().primary_reset(0).unwrap();
    assert_eq!(
        driver.context_id(context).unwrap_err().failure,
        Failure::ContextDestroyed
    );
    assert_eq!(driver.malloc(1).unwrap_err().failure, Failure::ContextDestroyed);
    driver.context_pop().unwrap();
}

#[test]
fn older_driver_lacks_newer_functions() {
    let config = SimConfig {
        version: 11_080,
        virtual_memory: false,
        ..SimConfig::default()
    };
    let sim = SimDriver::new(config);
    let driver: &dyn Driver = &*sim;
    assert!(!driver.features().stream_ids && !driver.features().context_events && driver.features().user_objects);
    let error = driver.stream_id(Stream::DEFAULT).unwrap_err();
    assert_eq!(
        (error.call, error.code, error.failure),
        ("cuStreamGetId", 0, Failure::Missing)
    );
    assert_eq!(driver.device_info(0).unwrap().granularity, (0, 0));
    assert_eq!(driver.reserve(2 * MIB, 0).unwrap_err().failure, Failure::Unsupported);
}

#[test]
fn latency_option_sets_how_long_calls_take() {
    for (value, expected) in [("short", 1_000), ("a100", 30_000)] {
        let allocator = Allocator::create(&format!("driver=sim,sim_latency={value}")).unwrap();
        let machine = allocator.driver().tools().unwrap().simulation().unwrap();
        let before = machine.now();
        allocator.driver().create(0, 2 * MIB, HandleKind::default()).unwrap();
        assert_eq!(machine.now() - before, expected, "{value}");
    }
}

#[test]
fn version_option_sets_the_driver_version() {
    for (version, known) in [("11.2", 0), ("11.8", 1), ("12.4", 2), ("12.9", 3)] {
        let allocator = Allocator::create(&format!("driver=sim,sim_driver={version}")).unwrap();
        let features = allocator.driver().features();
        let all = [features.user_objects, features.stream_ids, features.context_events];
        assert_eq!(all, std::array::from_fn(|at| at < known), "{version}");
    }
}
