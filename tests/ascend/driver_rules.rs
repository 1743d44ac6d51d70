//! The driver's own rules, over the stand-in in this process.

use std::sync::Arc;

use trtalloc::allocator::{Allocator, RESIZABLE, Request};
use trtalloc::config::Config;
use trtalloc::driver::ascend::AscendDriver;
use trtalloc::driver::sim::model::capture::MODE_GLOBAL;
use trtalloc::driver::sim::model::{Machine, MachineConfig};
use trtalloc::driver::{Capture, Driver, Failure, HandleKind, Stream};

use crate::over::{open, open_without};
use crate::standin::process::{Installed, exclusive};

const PAGE: u64 = 2 << 20;
const MIB: u64 = 1 << 20;

struct Here {
    machine: Arc<Machine>,
    driver: Arc<AscendDriver>,
    _installed: Installed,
}

fn on(config: MachineConfig, media: bool) -> Here {
    let machine = Machine::new(MachineConfig {
        devices: 2,
        memory: 256 * MIB,
        ..config
    });
    let installed = exclusive(machine.clone());
    let driver = open(media).unwrap();
    Here {
        machine,
        driver,
        _installed: installed,
    }
}

fn here() -> Here {
    on(MachineConfig::default(), false)
}

impl Here {
    /// This thread gets the device's own context, as `aclrtSetDevice` would give it.
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
fn initialized_before_and_never_finalized() {
    let here = here();
    // Somebody else, as the application.
    let second = open(false).unwrap();
    assert_eq!(second.device_count(), Ok(2));
    drop((second, here.driver.clone()));
    assert_eq!(here.driver.device_count(), Ok(2));
    assert!(here.driver.device_info(1).unwrap().name.contains("Ascend"));
}

#[test]
fn no_thread_gets_a_context_or_another_one() {
    let here = here();
    let allocator = here.allocator("rule=ascend");
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
                assert_eq!(here.machine.context_current(), Ok(0));
                assert_eq!(here.driver.current_device(), Ok(None));
            }
        });
        scope.spawn(|| {
            let own = here.enter(1);
            for device in [0, 1] {
                life(device);
                assert_eq!(here.machine.context_current(), Ok(own));
                assert_eq!(here.driver.current_device(), Ok(Some(1)));
            }
        });
    });
    allocator.close();
    assert_eq!(here.machine.memory_held(), [0, 0, 0]);
}

#[test]
fn what_is_pushed_is_where_calls_are_made() {
    let here = here();
    let own = here.enter(0);
    let other = here.driver.primary_retain(1).unwrap();
    here.driver.context_push(other).unwrap();
    assert_eq!(here.driver.current_context(), Ok(Some(other)));
    assert_eq!(here.driver.current_device(), Ok(Some(1)));
    let address = here.driver.malloc(MIB).unwrap();
    assert_eq!(here.machine.memory_at(address).unwrap().device, 1);
    let stream = here.driver.create_stream().unwrap();
    assert_eq!(here.machine.stream_context(stream.0), Ok(other.0));
    here.driver.fill_async(address, 7, MIB, stream).unwrap();
    here.driver.context_synchronize().unwrap();
    here.driver.context_pop().unwrap();
    assert_eq!(here.driver.current_context().unwrap().unwrap().0, own);
    assert_eq!(here.driver.context_pop().unwrap_err().failure, Failure::NoContext);
    // A stream is of the thread's context.
    let event = here.driver.event_create().unwrap();
    assert_eq!(here.driver.event_record(event, stream).unwrap_err().code, 107_003);
    here.driver.free(address).unwrap();
    // A context that is gone is told at once.
    here.driver.primary_release(1).unwrap();
    let gone = here.driver.context_push(other).unwrap_err();
    assert_eq!(gone.failure, Failure::ContextDestroyed, "{gone}");
    assert_eq!(here.driver.current_context().unwrap().unwrap().0, own);
}

#[test]
fn the_device_stays_open_for_those_who_use_it() {
    let here = here();
    assert_eq!(here.driver.primary_active(0), Ok(false));
    let context = here.enter(0);
    assert_eq!(here.driver.primary_retain(0).unwrap().0, context);
    // The application's own is over; ours is not.
    here.machine.primary_release(0).unwrap();
    assert_eq!(here.driver.primary_active(0), Ok(true));
    here.driver.primary_release(0).unwrap();
    assert_eq!(here.driver.primary_active(0), Ok(false));
}

#[test]
fn nothing_is_not_even_asked_for() {
    let here = here();
    here.enter(0);
    let before = here.machine.calls_made();
    assert!(here.driver.malloc(0).is_err() && here.driver.free(0).is_err());
    assert!(here.driver.host_malloc(0).is_err() && here.driver.host_free(0).is_err());
    assert!(here.driver.unreserve(0, PAGE).is_err() && here.driver.unmap(0, PAGE).is_err());
    assert_eq!(here.machine.calls_made(), before);
    let full = here.driver.malloc(1 << 40).unwrap_err();
    assert_eq!((full.failure, full.code), (Failure::OutOfMemory, 207_001));
    let full = here.driver.create(0, 1 << 40, HandleKind::default()).unwrap_err();
    assert_eq!((full.failure, full.code), (Failure::OutOfMemory, 207_001));
}

#[test]
fn what_this_driver_does_not_offer() {
    let here = here();
    here.enter(0);
    let shared = HandleKind {
        share_fd: true,
        ..HandleKind::default()
    };
    let error = here.driver.create(0, PAGE, shared).unwrap_err();
    assert_eq!(error.failure, Failure::Unsupported);
    let (base, handle) = (
        here.driver.reserve(PAGE, PAGE).unwrap(),
        here.driver.create(0, PAGE, HandleKind::default()).unwrap(),
    );
    here.driver.map(base, PAGE, handle).unwrap();
    assert_eq!(
        here.driver.set_access(base, PAGE, &[0, 1]).unwrap_err().failure,
        Failure::Unsupported
    );
    assert!(
        here.driver
            .event_record(here.driver.event_create().unwrap(), Stream::PER_THREAD)
            .is_err()
    );
    assert_eq!(here.driver.stream_capture(Stream::DEFAULT), Ok(Capture::None));
    let features = here.driver.features();
    assert!(!features.stream_ids && !features.context_events && !features.user_objects);
}

/// A range of three mappings.
fn mapped(here: &Here) -> u64 {
    let base = here.driver.reserve(4 * PAGE, PAGE).unwrap();
    for at in 0..3 {
        let handle = here.driver.create(0, PAGE, HandleKind::default()).unwrap();
        here.driver.map(base + at * PAGE, PAGE, handle).unwrap();
        here.driver.release(handle).unwrap();
    }
    base
}

#[test]
fn a_range_is_unmapped_mapping_by_mapping() {
    let here = here();
    here.enter(0);
    let base = mapped(&here);
    assert!(here.driver.set_access(base, 3 * PAGE, &[0]).is_ok());
    assert!(
        here.driver.set_access(base, 4 * PAGE, &[0]).is_err(),
        "not all of it is mapped"
    );
    assert!(here.driver.set_access(base + 1, PAGE, &[0]).is_err());
    // One is refused: what went before is gone, and the next call goes on.
    assert!(here.machine.fail_nth(Some("cuMemUnmap"), 2, 999));
    assert!(here.driver.unmap(base, 3 * PAGE).is_err());
    assert_eq!(here.machine.memory_held(), [1, 2, 2]);
    here.driver.unmap(base, 3 * PAGE).unwrap();
    assert!(here.driver.unmap(base, 3 * PAGE).is_err(), "there is nothing left");
    here.driver.unreserve(base, 4 * PAGE).unwrap();
    assert_eq!(here.machine.memory_held(), [0, 0, 0]);
}

#[test]
fn other_work_keeps_nothing_mapped() {
    let here = here();
    here.enter(0);
    let stream = here.machine.stream_create(true).unwrap();
    let (first, second) = (mapped(&here), mapped(&here));
    let forever = here.machine.launch_persistent(stream, &[]).unwrap();
    here.driver.unmap(first, 3 * PAGE).unwrap();
    // Nor where nobody can be told how long to wait.
    let older = open_without("aclrtSynchronizeDeviceWithTimeout", false).unwrap();
    let base = older.reserve(PAGE, PAGE).unwrap();
    let handle = older.create(0, PAGE, HandleKind::default()).unwrap();
    older.map(base, PAGE, handle).unwrap();
    older.unmap(base, PAGE).unwrap();
    assert!(here.machine.release_persistent(forever));
    // A capture is not ended by it.
    here.machine.stream_begin_capture(stream, MODE_GLOBAL).unwrap();
    let relaxed = here
        .driver
        .exchange_capture_mode(trtalloc::driver::CaptureMode::Relaxed)
        .unwrap();
    here.driver.unmap(second, 3 * PAGE).unwrap();
    here.driver.exchange_capture_mode(relaxed).unwrap();
    assert_eq!(here.driver.stream_capture(Stream(stream)), Ok(Capture::Active));
    assert_eq!(here.machine.faults(), Vec::<String>::new());
}

/// AscendCL holds a lock over the context's streams while it waits.
#[test]
fn a_context_is_waited_for_in_turns() {
    let here = here();
    here.enter(0);
    let stream = here.machine.stream_create(true).unwrap();
    let hold = here.machine.launch_persistent(stream, &[]).unwrap();
    let turns = || here.machine.count("cuCtxRecordEvent");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The second turn has begun, or a wait without turns.
            while turns() < 2 && here.machine.count("cuCtxSynchronize") == 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            assert!(here.machine.release_persistent(hold));
        });
        here.driver.context_synchronize().unwrap();
    });
    assert!(turns() >= 2 && here.machine.count("cuCtxSynchronize") == 0);
    // A capture is not waited for, in turns or otherwise, and an older AscendCL waits at once.
    here.machine.stream_begin_capture(stream, MODE_GLOBAL).unwrap();
    assert_eq!(here.driver.context_synchronize().unwrap_err().failure, Failure::Capture);
    here.machine.stream_end_capture(stream).unwrap();
    let older = open_without("aclrtSynchronizeDeviceWithTimeout", false).unwrap();
    older.context_synchronize().unwrap();
    assert_eq!(here.machine.count("cuCtxSynchronize"), 1);
}

#[test]
fn a_pool_that_begins_in_a_capture_has_virtual_memory() {
    let here = here();
    here.enter(0);
    let stream = here.machine.stream_create(true).unwrap();
    let allocator = here.allocator("");
    here.machine.stream_begin_capture(stream, MODE_GLOBAL).unwrap();
    let block = get(&allocator, MIB, 0, None, Some(stream));
    let info = here.driver.stream_capture_info(Stream(stream)).unwrap().unwrap();
    assert_eq!(info.id, info.graph.0 as u64);
    let graph = here.machine.stream_end_capture(stream).unwrap();
    assert_eq!(graph, info.graph.0);
    assert_ne!(here.machine.memory_at(block).unwrap().handle, 0, "a mapping");
    allocator.deallocate(block, None).unwrap();
}

#[test]
fn media_memory_is_its_librarys() {
    let here = on(MachineConfig::default(), true);
    here.enter(0);
    assert!(!here.driver.device_info(0).unwrap().virtual_memory);
    let allocator = here.allocator("rule=ascend-media");
    let before = here.machine.count("cuMemAlloc");
    let blocks = [1000, 1000, 5 * MIB].map(|size| get(&allocator, size, 0, None, None));
    for block in blocks {
        assert_eq!(block % 128, 0);
        // What `aclrtFree` would refuse.
        let at = here.machine.memory_at(block).unwrap();
        assert_eq!(at.handle, 0);
    }
    assert!(here.machine.count("cuMemAlloc") > before);
    for block in blocks {
        allocator.deallocate(block, None).unwrap();
    }
    allocator.trim(None, 0).unwrap();
    allocator.close();
    assert_eq!(here.machine.memory_held(), [0, 0, 0]);
}

/// `hi_mpi_…` answers with numbers of its own.
#[test]
fn the_other_media_library_is_full_in_its_own_words() {
    let here = here();
    here.enter(0);
    let driver = open_without("acldvppMalloc", true).unwrap();
    let full = driver.malloc(1 << 40).unwrap_err();
    assert_eq!((full.failure, full.code), (Failure::OutOfMemory, 0xa002_800c));
    let wrong = driver.free(4096).unwrap_err();
    assert_eq!((wrong.failure, wrong.code), (Failure::Other, 0xa002_8003));
    // What is kept is given back for it, and there is room.
    let allocator = Allocator::with_driver(driver, Config::parse("rule=ascend-media").unwrap()).unwrap();
    for size in [100 * MIB, 200 * MIB, 150 * MIB] {
        let block = get(&allocator, size, 0, None, None);
        allocator.deallocate(block, None).unwrap();
    }
    allocator.close();
    assert_eq!(here.machine.memory_held(), [0, 0, 0]);
}

#[test]
fn without_virtual_memory() {
    let here = on(
        MachineConfig {
            virtual_memory: false,
            ..MachineConfig::default()
        },
        false,
    );
    here.enter(0);
    let allocator = here.allocator("rule=ascend");
    let block = get(&allocator, 10 * MIB, RESIZABLE, None, None);
    here.machine.write(block, &[7; 64]).unwrap();
    let block = allocator.reallocate(block, 0, 30 * MIB).unwrap();
    let mut kept = [0; 64];
    here.machine.read(block, &mut kept).unwrap();
    assert_eq!(kept, [7; 64]);
    allocator.deallocate(block, None).unwrap();
    let forced = here.allocator("backing=vmm");
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

/// No manual promises that one handle can be mapped at two addresses.
#[test]
fn a_second_mapping_is_refused() {
    let here = here();
    here.enter(0);
    let allocator = here.allocator("rule=ascend");
    let block = get(&allocator, MIB, RESIZABLE, None, None);
    here.machine.write(block, &[7; 64]).unwrap();
    assert!(here.machine.fail_every(Some("cuMemMap"), 1, 107_000));
    // Far beyond its room.
    assert!(allocator.reallocate(block, 0, 120 * MIB).is_err());
    here.machine.clear_failures();
    let mut kept = [0; 64];
    here.machine.read(block, &mut kept).unwrap();
    assert_eq!(kept, [7; 64]);
    allocator.validate().unwrap();
    let grown = allocator.reallocate(block, 0, 120 * MIB).unwrap();
    here.machine.read(grown, &mut kept).unwrap();
    assert_eq!(kept, [7; 64]);
    allocator.deallocate(grown, None).unwrap();
    allocator.trim(None, 0).unwrap();
    allocator.close();
    assert_eq!(here.machine.memory_held(), [0, 0, 0]);
}
