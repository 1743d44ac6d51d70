//! Pinned host memory on the simulated device: what it refuses, and random work of several threads under the order checker.

use std::sync::Mutex;

use trtalloc::allocator::{Allocator, Request};
use trtalloc::config::Config;
use trtalloc::driver::Stream;
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::error::Error;

#[test]
fn options_without_meaning_for_host_memory_are_refused() {
    for options in [
        "backing=vmm",
        "guard=1",
        "fill=7",
        "peers=auto",
        "share=fd",
        "rdma=1",
        "limit=50%",
    ] {
        let driver = SimDriver::new(SimConfig::default());
        let config = Config::parse(&format!("kind=pinned,{options}")).unwrap();
        let error = Allocator::with_driver(driver, config).err().expect(options);
        assert!(matches!(error, Error::Unsupported(_)), "{options}: {error}");
        let (key, _) = options.split_once('=').unwrap();
        assert!(error.to_string().contains(key), "{options}: {error}");
    }
}

#[test]
fn several_threads_under_the_order_checker() {
    let driver = SimDriver::new(SimConfig::default());
    let machine = driver.machine().clone();
    let context = machine.primary_retain(0).unwrap();
    machine.context_push(context).unwrap();
    let device = machine.memory_malloc(1 << 20).unwrap();
    let config = Config::parse("kind=pinned,limit=64MiB,wait_ms=200").unwrap();
    let allocator = Allocator::with_driver(driver, config).unwrap();
    let shared: Mutex<Vec<(u64, u64)>> = Mutex::default();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (machine, allocator, shared) = (&machine, &allocator, &shared);
            scope.spawn(move || {
                machine.context_push(context).unwrap();
                let own = machine.stream_create(true).unwrap();
                let second_stream = machine.stream_create(true).unwrap();
                let mut random = thread * 7 + 1;
                let mut met = 0;
                for _ in 0..600 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let draw = random >> 33;
                    let size = 1 + draw % (1 << 20);
                    let stream = Some(own).filter(|_| !draw.is_multiple_of(5));
                    let request = Request {
                        size,
                        alignment: 0,
                        flags: 0,
                        stream: stream.map(Stream),
                        device: None,
                    };
                    let Ok(block) = allocator.allocate(request) else {
                        continue;
                    };
                    met += 1;
                    // The host writes to it at once.
                    machine.checker().hand_out(block, size, None);
                    machine.write(block, &vec![thread as u8; size as usize]).unwrap();
                    machine.copy_async(device, block, size, own).unwrap();
                    if draw.is_multiple_of(7) {
                        machine.copy_async(device, block, size, second_stream).unwrap();
                        allocator.record_stream(block, Stream(second_stream)).unwrap();
                    }
                    if draw.is_multiple_of(11) {
                        // Somebody else will free it, without a stream.
                        shared.lock().unwrap().push((block, size));
                    } else {
                        // A stream-less free waits for everything, one on a stream for that stream.
                        let freed_on = Some(own).filter(|_| !draw.is_multiple_of(3));
                        machine.checker().give_back(block, freed_on);
                        allocator.deallocate(block, freed_on.map(Stream)).unwrap();
                    }
                    if draw.is_multiple_of(4) {
                        let taken = shared.lock().unwrap().pop();
                        if let Some((block, _)) = taken {
                            machine.checker().give_back(block, None);
                            allocator.deallocate(block, None).unwrap();
                        }
                    }
                    machine.advance(50_000);
                }
                assert!(met > 100, "{met} requests were met");
                machine.context_pop().unwrap();
            });
        }
    });
    for (block, _) in shared.into_inner().unwrap() {
        machine.checker().give_back(block, None);
        allocator.deallocate(block, None).unwrap();
    }
    allocator.validate().unwrap();
    allocator.trim(Some(0), 0).unwrap();
    let stats = allocator.stats(Some(0)).unwrap();
    assert_eq!((stats.allocated, stats.pending, stats.reserved), (0, 0, 0), "{stats:?}");
    assert!(stats.reserved_peak <= 64 << 20, "{stats:?}");
    assert_eq!(machine.checker().violations(), Vec::<String>::new());
    assert_eq!(machine.faults(), Vec::<String>::new());
}
