//! The driver's own rules, over the stand-in in this process.

use std::sync::Arc;

use trtalloc::allocator::{Allocator, RESIZABLE, Request};
use trtalloc::config::Config;
use trtalloc::driver::ascend::AscendDriver;
use trtalloc::driver::sim::model::capture::MODE_GLOBAL;
use trtalloc::driver::sim::model::{Machine, MachineConfig};
use trtalloc::driver::{Capture, Driver, Failure, HandleKind, Stream, Tools};

use crate::over::{open, open_without};
use crate::standin::process::{Installed, exclusive};

const PAGE: u64 = 2 << 20;
const MIB: u64 = 1 << 20;

struct Setup {
    machine: Arc<Machine>,
    driver: Arc<AscendDriver>,
    _installed: Installed,
}

fn on(config: MachineConfig, media: bool) -> Setup {
    let machine = Machine::new(MachineConfig {
        devices: 2,
        memory: 256 * MIB,
        ..config
    });
    let installed = exclusive(machine.clone());
    let driver = open(media).unwrap();
    driver.running_captures().forget();
    Setup {
        machine,
        driver,
        _installed: installed,
    }
}

fn setup() -> Setup {
    on(MachineConfig::default(), false)
}

impl Setup {
    /// Makes the device's own context current to this thread, as `aclrtSetDevice` does.
    fn enter(&self, device: i32) -> usize {
        let context = self.machine.primary_retain(device).unwrap();
        self.machine.context_set_current(context).unwrap();
        context
    }

    fn allocator(&self, options: &str) -> Arc<Allocator> {
        Allocator::with_driver(self.driver.clone(), Config::parse(options).unwrap()).unwrap()
    }
}

fn get(allocator: &Allocator, size: u64, flags: u32, device: Option<i32>, stream: Option<usize>) -> u64 {
    let request = Request {
        size,
        alignment: 0,
        flags,
        stream: stream.map(Stream),
        device,
    };
    allocator.allocate(request).unwrap()
}

#[test]
fn open_accepts_initialized_acl_and_never_finalizes_it() {
    let setup = setup();
    // A second user, like the application.
    let second = open(false).unwrap();
    assert_eq!(second.device_count(), Ok(2));
    drop((second, setup.driver.clone()));
    assert_eq!(setup.driver.device_count(), Ok(2));
    assert!(setup.driver.device_info(1).unwrap().name.contains("Ascend"));
}

#[test]
fn context_of_threads_never_changes() {
    let setup = setup();
    let allocator = setup.allocator("rule=ascend");
    let life = |device: i32| {
        let block = get(&allocator, 3 * MIB, 0, Some(device), None);
        let grown = get(&allocator, MIB, RESIZABLE, Some(device), None);
        let grown = allocator.reallocate(grown, 0, 90 * MIB).unwrap();
        allocator.deallocate(block, None).unwrap();
        allocator.deallocate(grown, None).unwrap();
        allocator.trim(Some(device), 0).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for device in [0, 1] {
                life(device);
                assert_eq!(setup.machine.context_current(), Ok(0));
                assert_eq!(setup.driver.current_device(), Ok(None));
            }
        });
        scope.spawn(|| {
            let own = setup.enter(1);
            for device in [0, 1] {
                life(device);
                assert_eq!(setup.machine.context_current(), Ok(own));
                assert_eq!(setup.driver.current_device(), Ok(Some(1)));
            }
        });
    });
    allocator.close();
    assert_eq!(setup.machine.memory_held(), [0, 0, 0]);
}

#[test]
fn calls_are_made_in_the_pushed_context() {
    let setup = setup();
    let own = setup.enter(0);
    let other = setup.driver.primary_retain(1).unwrap();
    setup.driver.context_push(other).unwrap();
    assert_eq!(setup.driver.current_context(), Ok(Some(other)));
    assert_eq!(setup.driver.current_device(), Ok(Some(1)));
    let address = setup.driver.malloc(MIB).unwrap();
    assert_eq!(setup.machine.memory_at(address).unwrap().device, 1);
    let stream = setup.driver.create_stream().unwrap();
    assert_eq!(setup.machine.stream_context(stream.0), Ok(other.0));
    setup.driver.fill_async(address, 7, MIB, stream).unwrap();
    setup.driver.context_synchronize().unwrap();
    setup.driver.context_pop().unwrap();
    assert_eq!(setup.driver.current_context().unwrap().unwrap().0, own);
    assert_eq!(setup.driver.context_pop().unwrap_err().failure, Failure::NoContext);
    // A stream belongs to the thread's context.
    let event = setup.driver.event_create().unwrap();
    assert_eq!(setup.driver.event_record(event, stream).unwrap_err().code, 107_003);
    setup.driver.free(address).unwrap();
    // A destroyed context is refused at once.
    setup.driver.primary_release(1).unwrap();
    let gone = setup.driver.context_push(other).unwrap_err();
    assert_eq!(gone.failure, Failure::ContextDestroyed, "{gone}");
    assert_eq!(setup.driver.current_context().unwrap().unwrap().0, own);
}

#[test]
fn device_stays_open_while_retained() {
    let setup = setup();
    assert_eq!(setup.driver.primary_active(0), Ok(false));
    let context = setup.enter(0);
    assert_eq!(setup.driver.primary_retain(0).unwrap().0, context);
    // The application releases the device; the driver does not.
    setup.machine.primary_release(0).unwrap();
    assert_eq!(setup.driver.primary_active(0), Ok(true));
    setup.driver.primary_release(0).unwrap();
    assert_eq!(setup.driver.primary_active(0), Ok(false));
}

#[test]
fn zero_sizes_and_addresses_make_no_call() {
    let setup = setup();
    setup.enter(0);
    let before = setup.machine.calls_made();
    assert!(setup.driver.malloc(0).is_err() && setup.driver.free(0).is_err());
    assert!(setup.driver.host_malloc(0).is_err() && setup.driver.host_free(0).is_err());
    assert!(setup.driver.unreserve(0, PAGE).is_err() && setup.driver.unmap(0, PAGE).is_err());
    assert_eq!(setup.machine.calls_made(), before);
    let full = setup.driver.malloc(1 << 40).unwrap_err();
    assert_eq!((full.failure, full.code), (Failure::OutOfMemory, 207_001));
    let full = setup.driver.create(0, 1 << 40, HandleKind::default()).unwrap_err();
    assert_eq!((full.failure, full.code), (Failure::OutOfMemory, 207_001));
}

#[test]
fn unsupported_calls_are_refused() {
    let setup = setup();
    setup.enter(0);
    let shared = HandleKind {
        share_fd: true,
        ..HandleKind::default()
    };
    let error = setup.driver.create(0, PAGE, shared).unwrap_err();
    assert_eq!(error.failure, Failure::Unsupported);
    let (base, handle) = (
        setup.driver.reserve(PAGE, PAGE).unwrap(),
        setup.driver.create(0, PAGE, HandleKind::default()).unwrap(),
    );
    setup.driver.map(base, PAGE, handle).unwrap();
    assert_eq!(
        setup.driver.set_access(base, PAGE, &[0, 1]).unwrap_err().failure,
        Failure::Unsupported
    );
    assert!(
        setup
            .driver
            .event_record(setup.driver.event_create().unwrap(), Stream::PER_THREAD)
            .is_err()
    );
    assert_eq!(setup.driver.stream_capture(Stream::DEFAULT), Ok(Capture::None));
    let features = setup.driver.features();
    assert!(!features.stream_ids && !features.context_events && !features.user_objects);
}

/// A range of three mappings.
fn mapped(setup: &Setup) -> u64 {
    let base = setup.driver.reserve(4 * PAGE, PAGE).unwrap();
    for at in 0..3 {
        let handle = setup.driver.create(0, PAGE, HandleKind::default()).unwrap();
        setup.driver.map(base + at * PAGE, PAGE, handle).unwrap();
        setup.driver.release(handle).unwrap();
    }
    base
}

#[test]
fn unmap_of_a_range_unmaps_each_mapping() {
    let setup = setup();
    setup.enter(0);
    let base = mapped(&setup);
    assert!(setup.driver.set_access(base, 3 * PAGE, &[0]).is_ok());
    assert!(
        setup.driver.set_access(base, 4 * PAGE, &[0]).is_err(),
        "not all of it is mapped"
    );
    assert!(setup.driver.set_access(base + 1, PAGE, &[0]).is_err());
    // One unmapping is refused: the mappings before it are gone, and the next call continues.
    assert!(setup.machine.fail_nth(Some("cuMemUnmap"), 2, 999));
    assert!(setup.driver.unmap(base, 3 * PAGE).is_err());
    assert_eq!(setup.machine.memory_held(), [1, 2, 2]);
    // Until then, nothing is mapped in the range: the next call would unmap it.
    let handle = setup.driver.create(0, PAGE, HandleKind::default()).unwrap();
    assert!(setup.driver.map(base, PAGE, handle).is_err());
    setup.driver.unmap(base, 3 * PAGE).unwrap();
    setup.driver.map(base, PAGE, handle).unwrap();
    setup.driver.release(handle).unwrap();
    setup.driver.unmap(base, PAGE).unwrap();
    assert!(setup.driver.unmap(base, 3 * PAGE).is_err(), "no mapping is left");
    setup.driver.unreserve(base, 4 * PAGE).unwrap();
    assert_eq!(setup.machine.memory_held(), [0, 0, 0]);
}

#[test]
fn unmap_succeeds_while_other_work_runs() {
    let setup = setup();
    setup.enter(0);
    let stream = setup.machine.stream_create(true).unwrap();
    let (first, second) = (mapped(&setup), mapped(&setup));
    let forever = setup.machine.launch_persistent(stream, &[]).unwrap();
    setup.driver.unmap(first, 3 * PAGE).unwrap();
    // Nor does an AscendCL that has no wait with a limit.
    let older = open_without("aclrtSynchronizeDeviceWithTimeout", false).unwrap();
    let base = older.reserve(PAGE, PAGE).unwrap();
    let handle = older.create(0, PAGE, HandleKind::default()).unwrap();
    older.map(base, PAGE, handle).unwrap();
    older.unmap(base, PAGE).unwrap();
    assert!(setup.machine.release_persistent(forever));
    // It ends no capture.
    setup.machine.stream_begin_capture(stream, MODE_GLOBAL).unwrap();
    let relaxed = setup
        .driver
        .exchange_capture_mode(trtalloc::driver::CaptureMode::Relaxed)
        .unwrap();
    setup.driver.unmap(second, 3 * PAGE).unwrap();
    setup.driver.exchange_capture_mode(relaxed).unwrap();
    assert_eq!(setup.driver.stream_capture(Stream(stream)), Ok(Capture::Active));
    assert_eq!(setup.machine.faults(), Vec::<String>::new());
}

/// AscendCL holds a lock over the context's streams while it waits.
#[test]
fn context_synchronize_waits_in_slices() {
    let setup = setup();
    setup.enter(0);
    let stream = setup.machine.stream_create(true).unwrap();
    let hold = setup.machine.launch_persistent(stream, &[]).unwrap();
    let turns = || setup.machine.count("cuCtxRecordEvent");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Waits for the second slice, or for a wait without slices.
            while turns() < 2 && setup.machine.count("cuCtxSynchronize") == 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            assert!(setup.machine.release_persistent(hold));
        });
        setup.driver.context_synchronize().unwrap();
    });
    assert!(turns() >= 2 && setup.machine.count("cuCtxSynchronize") == 0);
    // It never waits for a capturing stream. An older AscendCL waits without slices.
    setup.machine.stream_begin_capture(stream, MODE_GLOBAL).unwrap();
    assert_eq!(
        setup.driver.context_synchronize().unwrap_err().failure,
        Failure::Capture
    );
    setup.machine.stream_end_capture(stream).unwrap();
    let older = open_without("aclrtSynchronizeDeviceWithTimeout", false).unwrap();
    older.context_synchronize().unwrap();
    assert_eq!(setup.machine.count("cuCtxSynchronize"), 1);
}

#[test]
fn pool_created_in_a_capture_has_virtual_memory() {
    let setup = setup();
    setup.enter(0);
    let stream = setup.machine.stream_create(true).unwrap();
    let allocator = setup.allocator("");
    setup.machine.stream_begin_capture(stream, MODE_GLOBAL).unwrap();
    let block = get(&allocator, MIB, 0, None, Some(stream));
    let info = setup.driver.stream_capture_info(Stream(stream)).unwrap().unwrap();
    assert_eq!(info.id, info.graph.0 as u64);
    let graph = setup.machine.stream_end_capture(stream).unwrap();
    assert_eq!(graph, info.graph.0);
    assert_ne!(setup.machine.memory_at(block).unwrap().handle, 0, "a mapping");
    allocator.deallocate(block, None).unwrap();
}

#[test]
fn media_memory_comes_from_the_media_library() {
    let setup = on(MachineConfig::default(), true);
    setup.enter(0);
    assert!(!setup.driver.device_info(0).unwrap().virtual_memory);
    let allocator = setup.allocator("rule=ascend-media");
    let before = setup.machine.count("cuMemAlloc");
    let blocks = [1000, 1000, 5 * MIB].map(|size| get(&allocator, size, 0, None, None));
    for block in blocks {
        assert_eq!(block % 128, 0);
        // `aclrtFree` would refuse this address.
        let at = setup.machine.memory_at(block).unwrap();
        assert_eq!(at.handle, 0);
    }
    assert!(setup.machine.count("cuMemAlloc") > before);
    for block in blocks {
        allocator.deallocate(block, None).unwrap();
    }
    allocator.trim(None, 0).unwrap();
    allocator.close();
    assert_eq!(setup.machine.memory_held(), [0, 0, 0]);
}

/// `hi_mpi_…` has error numbers of its own.
#[test]
fn out_of_memory_of_the_other_media_library_is_recognized() {
    let setup = setup();
    setup.enter(0);
    let driver = open_without("acldvppMalloc", true).unwrap();
    let full = driver.malloc(1 << 40).unwrap_err();
    assert_eq!((full.failure, full.code), (Failure::OutOfMemory, 0xa002_800c));
    let wrong = driver.free(4096).unwrap_err();
    assert_eq!((wrong.failure, wrong.code), (Failure::Other, 0xa002_8003));
    // The pool releases cached memory for the request, and then there is enough.
    let allocator = Allocator::with_driver(driver, Config::parse("rule=ascend-media").unwrap()).unwrap();
    for size in [100 * MIB, 200 * MIB, 150 * MIB] {
        let block = get(&allocator, size, 0, None, None);
        allocator.deallocate(block, None).unwrap();
    }
    allocator.close();
    assert_eq!(setup.machine.memory_held(), [0, 0, 0]);
}

#[test]
fn pool_works_without_virtual_memory() {
    let setup = on(
        MachineConfig {
            virtual_memory: false,
            ..MachineConfig::default()
        },
        false,
    );
    setup.enter(0);
    let allocator = setup.allocator("rule=ascend");
    let block = get(&allocator, 10 * MIB, RESIZABLE, None, None);
    setup.machine.write(block, &[7; 64]).unwrap();
    let block = allocator.reallocate(block, 0, 30 * MIB).unwrap();
    let mut kept = [0; 64];
    setup.machine.read(block, &mut kept).unwrap();
    assert_eq!(kept, [7; 64]);
    allocator.deallocate(block, None).unwrap();
    let forced = setup.allocator("backing=vmm");
    let request = Request {
        size: MIB,
        alignment: 0,
        flags: 0,
        stream: None,
        device: None,
    };
    assert!(
        forced
            .allocate(request)
            .unwrap_err()
            .to_string()
            .contains("Unsupported")
    );
}

/// The manuals do not say that one handle can be mapped at two addresses.
#[test]
fn handles_are_mapped_only_once() {
    let setup = setup();
    setup.enter(0);
    let allocator = setup.allocator("rule=ascend");
    let block = get(&allocator, MIB, RESIZABLE, None, None);
    setup.machine.write(block, &[7; 64]).unwrap();
    assert!(setup.machine.fail_every(Some("cuMemMap"), 1, 107_000));
    // Far larger than its reservation.
    assert!(allocator.reallocate(block, 0, 120 * MIB).is_err());
    setup.machine.clear_failures();
    let mut kept = [0; 64];
    setup.machine.read(block, &mut kept).unwrap();
    assert_eq!(kept, [7; 64]);
    allocator.validate().unwrap();
    let grown = allocator.reallocate(block, 0, 120 * MIB).unwrap();
    setup.machine.read(grown, &mut kept).unwrap();
    assert_eq!(kept, [7; 64]);
    allocator.deallocate(grown, None).unwrap();
    allocator.trim(None, 0).unwrap();
    allocator.close();
    assert_eq!(setup.machine.memory_held(), [0, 0, 0]);
}
