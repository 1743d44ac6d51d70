//! A device whose memory is the host's, as on Jetson (`sim_integrated`): what limit, headroom and pinned memory mean there.
//! docs/jetson.md says it for users.

use std::sync::Arc;

use trtalloc::allocator::{Allocator, Request};
use trtalloc::config::Config;
use trtalloc::driver::Driver;
use trtalloc::driver::sim::{SimConfig, SimDriver};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A board with 8 GiB, of which the host's programs use 2.
fn board() -> Arc<SimDriver> {
    let driver = SimDriver::new(SimConfig {
        memory: 8 * GIB,
        integrated: Some(2 * GIB),
        contents: false,
        ..SimConfig::default()
    });
    enter(&driver);
    driver
}

fn enter(driver: &SimDriver) {
    let context = driver.machine().primary_retain(0).unwrap();
    driver.machine().context_push(context).unwrap();
}

fn free(driver: &SimDriver) -> u64 {
    driver.memory_info(0).unwrap().0
}

fn open(driver: &Arc<SimDriver>, options: &str) -> Arc<Allocator> {
    Allocator::with_driver(driver.clone(), Config::parse(options).unwrap()).unwrap()
}

fn request(size: u64) -> Request {
    Request {
        size,
        alignment: 0,
        flags: 0,
        device: None,
        stream: None,
    }
}

/// Allocates pieces of this size until one is refused. Returns how many bytes there were, and the reason.
fn fill(allocator: &Allocator, piece: u64) -> (u64, String) {
    let mut bytes = 0;
    loop {
        match allocator.allocate(request(piece)) {
            Ok(_) => bytes += piece,
            Err(error) => return (bytes, error.to_string()),
        }
    }
}

#[test]
fn free_memory_is_what_the_host_leaves() {
    let driver = board();
    assert_eq!(driver.memory_info(0).unwrap(), (6 * GIB, 8 * GIB));
    driver.machine().others_hold(0, 3 * GIB).unwrap();
    assert_eq!(driver.memory_info(0).unwrap(), (5 * GIB, 8 * GIB));
}

#[test]
fn pinned_memory_comes_out_of_the_same_memory() {
    let driver = board();
    let pinned = open(&driver, "kind=pinned");
    let block = pinned.allocate(request(512 * MIB)).unwrap();
    let left = 6 * GIB - 512 * MIB;
    // A segment is up to 2 MiB larger, so that its pages begin where they should.
    assert!((left - 2 * MIB..=left).contains(&free(&driver)), "{}", free(&driver));
    pinned.deallocate(block, None).unwrap();
    pinned.trim(None, 0).unwrap();
    assert_eq!(free(&driver), 6 * GIB);
    // A GPU with memory of its own has nothing less.
    let driver = SimDriver::new(SimConfig::default());
    enter(&driver);
    let before = free(&driver);
    let pinned = open(&driver, "kind=pinned");
    pinned.allocate(request(512 * MIB)).unwrap();
    assert_eq!(free(&driver), before);
}

#[test]
fn headroom_leaves_memory_for_the_host() {
    let driver = board();
    let allocator = open(&driver, "headroom=1GiB,wait_ms=0");
    let (bytes, reason) = fill(&allocator, 64 * MIB);
    assert!(free(&driver) >= GIB, "{}", free(&driver));
    assert_eq!(bytes, 5 * GIB, "{reason}");
    assert!(reason.contains("headroom 1073741824 bytes, 0 available"), "{reason}");
}

#[test]
fn headroom_is_judged_by_what_the_host_leaves_at_that_time() {
    let driver = board();
    let allocator = open(&driver, "headroom=1GiB,wait_ms=0");
    allocator.allocate(request(GIB)).unwrap();
    // The host's programs and pinned memory take all but 1.25 GiB.
    driver.machine().others_hold(0, 5 * GIB).unwrap();
    let pinned = open(&driver, "kind=pinned");
    pinned.allocate(request(768 * MIB)).unwrap();
    let error = allocator.allocate(request(512 * MIB)).unwrap_err().to_string();
    assert!(error.contains("headroom"), "{error}");
    allocator.allocate(request(128 * MIB)).unwrap();
    // They give it back.
    driver.machine().others_hold(0, 2 * GIB).unwrap();
    allocator.allocate(request(512 * MIB)).unwrap();
}

#[test]
fn a_limit_in_percent_is_of_the_hosts_memory_too() {
    let driver = board();
    let (bytes, reason) = fill(&open(&driver, "limit=50%,wait_ms=0"), 64 * MIB);
    assert!(reason.contains("limit 4294967296"), "{reason}");
    assert!(bytes > 4 * GIB - 128 * MIB, "{bytes}");
}

/// A range of eight times the memory is refused there. A smaller one serves, and what it cannot hold is a small part.
#[test]
fn virtual_memory_uses_most_of_what_is_free() {
    let driver = board();
    let allocator = open(&driver, "backing=vmm,wait_ms=0");
    let (bytes, reason) = fill(&allocator, 64 * MIB);
    assert!(bytes >= 6 * GIB / 8 * 7, "{bytes}: {reason}");
    assert!(driver.machine().memory_held()[0] > 0, "a reservation");
}
