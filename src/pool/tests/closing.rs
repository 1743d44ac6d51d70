//! Frees that race with the end of their allocator.

use std::sync::{Arc, Barrier};

use super::MIB;
use super::faults::in_full;
use crate::allocator::{Allocator, RESIZABLE, Request};
use crate::driver::Stream;
use crate::driver::sim::{SimConfig, SimDriver};
use crate::support::config::Config;

/// Runs one round: the allocator is destroyed, then two threads free its last two blocks at once.
fn race(driver: &Arc<SimDriver>, options: &str, flags: u32, stream: Option<Stream>, start: &Barrier) {
    let allocator = Allocator::with_driver(driver.clone(), Config::parse(options).unwrap()).unwrap();
    let blocks = [(); 2].map(|()| {
        let request = Request {
            size: MIB,
            alignment: 0,
            flags,
            stream,
            device: Some(0),
        };
        allocator.allocate(request).unwrap()
    });
    allocator.close();
    std::thread::scope(|scope| {
        for block in blocks {
            let allocator = &allocator;
            scope.spawn(move || {
                start.wait();
                allocator.deallocate(block, stream).unwrap();
            });
        }
    });
}

/// No work is pending, so the memory of a destroyed allocator goes back with its last block, whichever thread frees it.
#[test]
fn two_threads_free_the_last_two_blocks_of_a_destroyed_allocator() {
    for (rounds, version, options, flags) in [
        (1_500, 12_090, "guard=1", 0),
        (300, 12_090, "passthrough=1", 0),
        (300, 12_090, "", RESIZABLE),
        (300, 12_090, "", 0),
        (300, 11_080, "guard=1", 0),
        (300, 11_080, "", 0),
    ] {
        let driver = SimDriver::new(SimConfig {
            version,
            memory: 4 << 30,
            ..SimConfig::default()
        });
        let machine = driver.machine().clone();
        machine.context_push(machine.primary_retain(0).unwrap()).unwrap();
        let stream = Stream(machine.stream_create(true).unwrap());
        let start = Barrier::new(2);
        let rounds = if in_full() { rounds } else { rounds / 5 };
        for round in 0..rounds {
            race(&driver, options, flags, Some(stream).filter(|_| round % 2 == 0), &start);
        }
        let (free, total) = machine.memory_info(0).unwrap();
        assert_eq!(
            total - free,
            0,
            "bytes lost with {options:?} on CUDA {version}, flags {flags}"
        );
        assert_eq!(machine.faults(), Vec::<String>::new());
    }
}

/// The driver refuses to take the address range back. The next close returns it.
#[test]
fn address_range_that_is_refused_goes_back_later() {
    let driver = SimDriver::new(SimConfig::default());
    let machine = driver.machine().clone();
    machine.context_push(machine.primary_retain(0).unwrap()).unwrap();
    let allocator = Allocator::with_driver(driver, Config::parse("").unwrap()).unwrap();
    let request = Request {
        size: MIB,
        alignment: 0,
        flags: 0,
        stream: None,
        device: None,
    };
    let block = allocator.allocate(request).unwrap();
    allocator.deallocate(block, None).unwrap();
    machine.fail_nth(Some("cuMemAddressFree"), 1, 999);
    allocator.close();
    assert_eq!(machine.memory_held(), [1, 0, 0]);
    allocator.close();
    assert_eq!(machine.memory_held(), [0, 0, 0]);
}
