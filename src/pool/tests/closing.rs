//! Frees that race with the end of their allocator, and what work still uses at its end.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use super::MIB;
use super::application::wait_until_gone;
use super::faults::in_full;
use crate::allocator::{Allocator, RESIZABLE, Request};
use crate::driver::Stream;
use crate::driver::sim::model::capture::MODE_RELAXED;
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

/// The driver refuses to take the address range back. It goes back later.
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
    assert_eq!(machine.failures_struck(), 1);
    wait_until_gone(&machine, "the range");
}

/// Work outlasts the close. The helper thread returns everything once it has ended.
#[test]
fn memory_that_work_uses_at_the_close_goes_back_later() {
    for version in [12_090, 12_040, 11_080] {
        for options in [
            "wait_ms=0",
            "wait_ms=20",
            "wait_ms=0,backing=malloc",
            "wait_ms=0,decay_ms=40",
        ] {
            for (closed_first, of_stream, flags) in [
                (false, false, 0),
                (true, false, 0),
                (false, true, 0),
                (false, false, RESIZABLE),
            ] {
                let what = format!("CUDA {version}, {options}, {closed_first}, {of_stream}, {flags}");
                let driver = SimDriver::new(SimConfig {
                    version,
                    ..SimConfig::default()
                });
                let machine = driver.machine().clone();
                machine.context_push(machine.primary_retain(0).unwrap()).unwrap();
                let stream = machine.stream_create(true).unwrap();
                let on = Some(Stream(stream)).filter(|_| of_stream);
                let config = Config::parse(&format!("decay_ms=0,{options}")).unwrap();
                let allocator = Allocator::with_driver(driver, config).unwrap();
                let request = Request {
                    size: 20 * MIB,
                    alignment: 0,
                    flags,
                    stream: on,
                    device: None,
                };
                let block = allocator.allocate(request).unwrap();
                let kernel = machine.launch_persistent(stream, &[(block, 20 * MIB)]).unwrap();
                if closed_first {
                    allocator.close();
                }
                allocator.deallocate(block, on).unwrap();
                allocator.close();
                std::thread::sleep(Duration::from_millis(30));
                assert_ne!(machine.memory_held(), [0, 0, 0], "{what}: work uses it");
                assert!(machine.release_persistent(kernel));
                wait_until_gone(&machine, &what);
                assert_eq!(machine.faults(), Vec::<String>::new(), "{what}");
            }
        }
    }
}

/// A close looks once, also with `wait_ms=0`: the work has ended before.
#[test]
fn memory_of_work_that_has_ended_goes_back_without_a_wait() {
    for version in [12_090, 12_040] {
        let driver = SimDriver::new(SimConfig {
            version,
            ..SimConfig::default()
        });
        let machine = driver.machine().clone();
        machine.context_push(machine.primary_retain(0).unwrap()).unwrap();
        let config = Config::parse("wait_ms=0,decay_ms=0").unwrap();
        let allocator = Allocator::with_driver(driver, config).unwrap();
        let request = Request {
            size: 20 * MIB,
            alignment: 0,
            flags: 0,
            stream: None,
            device: None,
        };
        let block = allocator.allocate(request).unwrap();
        allocator.deallocate(block, None).unwrap();
        machine.context_synchronize().unwrap();
        allocator.close();
        wait_until_gone(&machine, &format!("CUDA {version}"));
    }
}

/// A close beside a capture leaves what it cannot have, and the helper thread ends no capture either.
#[test]
fn memory_closed_beside_a_capture_goes_back_once_that_is_over() {
    for version in [12_090, 12_040] {
        let driver = SimDriver::new(SimConfig {
            version,
            ..SimConfig::default()
        });
        let machine = driver.machine().clone();
        machine.context_push(machine.primary_retain(0).unwrap()).unwrap();
        let stream = machine.stream_create(true).unwrap();
        let make = || Allocator::with_driver(driver.clone(), Config::parse("decay_ms=0").unwrap()).unwrap();
        let (capturing, closed) = (make(), make());
        let request = Request {
            size: 20 * MIB,
            alignment: 0,
            flags: 0,
            stream: None,
            device: None,
        };
        let block = closed.allocate(request).unwrap();
        machine.stream_begin_capture(stream, MODE_RELAXED).unwrap();
        let of_stream = Request {
            stream: Some(Stream(stream)),
            ..request
        };
        let inside = capturing.allocate(of_stream).unwrap();
        closed.deallocate(block, None).unwrap();
        closed.close();
        std::thread::sleep(Duration::from_millis(100));
        let graph = machine.stream_end_capture(stream).unwrap();
        machine.graph_destroy(graph).unwrap();
        capturing.deallocate(inside, None).unwrap();
        machine.drain_user_objects();
        capturing.close();
        wait_until_gone(&machine, &format!("CUDA {version}"));
    }
}
