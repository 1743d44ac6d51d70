//! A new driver is one folder and its line in the registry: `support/toy` is written as docs/add-a-driver.md says, and
//! serves allocations here.

#[path = "../support/toy/mod.rs"]
mod toy;

use std::sync::Arc;

use toy::{TOTAL, ToyDriver};
use trtalloc::allocator::{Allocator, RESIZABLE, Request};
use trtalloc::config::Config;
use trtalloc::driver::{DriverChoice, Stream};
use trtalloc::error::Error;
use trtalloc::trace::application::Application;

const MIB: u64 = 1 << 20;

fn request(size: u64, stream: Option<Stream>) -> Request {
    Request {
        size,
        alignment: 0,
        flags: 0,
        stream,
        device: None,
    }
}

/// An allocator over a toy, with an application that creates streams on it.
fn over(options: &str) -> (Arc<ToyDriver>, Application, Arc<Allocator>) {
    let driver = Arc::new(ToyDriver::default());
    let application = Application::new(driver.clone(), 0).unwrap();
    let config = Config::parse(options).unwrap();
    let allocator = Allocator::with_driver(driver.clone(), config).unwrap();
    (driver, application, allocator)
}

/// Closes the allocator, and checks that the device has everything back.
fn close(driver: &ToyDriver, allocator: &Allocator) {
    allocator.validate().unwrap();
    allocator.close();
    assert_eq!((driver.allocated(), driver.events()), (0, 0));
}

fn byte_at(address: u64) -> u8 {
    // SAFETY: the device's memory is the host's, and the caller holds the block.
    unsafe { *std::ptr::with_exposed_provenance(address as usize) }
}

/// The choice is what the registry's line gives the option `driver=toy`.
#[test]
fn descriptor_opens_the_driver_for_an_allocator() {
    let config = Config {
        driver: DriverChoice::Named(&toy::DRIVER),
        ..Config::default()
    };
    let allocator = Allocator::from_config(config).unwrap();
    let block = allocator.allocate(request(1000, None)).unwrap();
    allocator.deallocate(block, None).unwrap();
    assert_eq!(allocator.stats(None).unwrap().allocations, 1);
}

#[test]
fn stream_reuses_what_it_freed_at_once() {
    let (driver, application, allocator) = over("");
    let stream = application.create_stream().unwrap();
    let first = allocator.allocate(request(MIB, Some(stream))).unwrap();
    driver.hold();
    application.launch(stream, first, MIB).unwrap();
    allocator.deallocate(first, Some(stream)).unwrap();
    let calls = allocator.stats(None).unwrap().driver_calls;
    assert_eq!(allocator.allocate(request(MIB, Some(stream))).unwrap(), first);
    assert_eq!(allocator.stats(None).unwrap().driver_calls, calls);
    allocator.deallocate(first, Some(stream)).unwrap();
    driver.complete();
    close(&driver, &allocator);
}

#[test]
fn memory_without_a_stream_waits_for_its_work() {
    let (driver, application, allocator) = over("");
    let stream = application.create_stream().unwrap();
    let first = allocator.allocate(request(MIB, Some(stream))).unwrap();
    driver.hold();
    application.launch(stream, first, MIB).unwrap();
    allocator.deallocate(first, None).unwrap();
    let second = allocator.allocate(request(MIB, None)).unwrap();
    assert_ne!(second, first, "the work has not completed");
    driver.complete();
    // What was freed without a stream serves requests once no more memory may be created.
    let reserved = allocator.stats(None).unwrap().reserved;
    allocator.set_limit(None, reserved).unwrap();
    let mut blocks = vec![second];
    while let Ok(block) = allocator.allocate(request(MIB, None)) {
        blocks.push(block);
    }
    assert!(blocks.contains(&first), "it came back");
    for block in blocks {
        allocator.deallocate(block, None).unwrap();
    }
    close(&driver, &allocator);
}

#[test]
fn blocks_are_apart_aligned_and_counted() {
    let (driver, application, allocator) = over("");
    let stream = application.create_stream().unwrap();
    let mut blocks = Vec::new();
    for (number, size) in [1, 511, 512, 513, 4096, 100_000, 3 * MIB].into_iter().enumerate() {
        for alignment in [0, 4096] {
            let block = allocator.allocate(Request {
                alignment,
                ..request(size, Some(stream))
            });
            let block = block.unwrap();
            assert!(block.is_multiple_of(alignment.max(512)));
            let byte = (2 * number + usize::from(alignment > 0)) as u8;
            application.fill(stream, block, byte, size).unwrap();
            blocks.push((block, size, byte));
        }
    }
    for &(block, size, byte) in &blocks {
        assert_eq!((byte_at(block), byte_at(block + size - 1)), (byte, byte));
    }
    let stats = allocator.stats(None).unwrap();
    assert_eq!(stats.allocations, blocks.len() as u64);
    assert_eq!(stats.requested, blocks.iter().map(|(_, size, _)| size).sum::<u64>());
    assert_eq!(stats.reserved, driver.allocated());
    for (block, ..) in blocks {
        allocator.deallocate(block, Some(stream)).unwrap();
    }
    assert_eq!(allocator.stats(None).unwrap().allocated, 0);
    close(&driver, &allocator);
}

#[test]
fn growing_block_keeps_its_bytes() {
    let (driver, application, allocator) = over("");
    let block = allocator.allocate(Request {
        flags: RESIZABLE,
        ..request(1000, None)
    });
    let block = block.unwrap();
    application.fill(Stream::DEFAULT, block, 7, 1000).unwrap();
    let grown = allocator.reallocate(block, 0, MIB).unwrap();
    assert_eq!((byte_at(grown), byte_at(grown + 999)), (7, 7));
    allocator.deallocate(grown, None).unwrap();
    close(&driver, &allocator);
}

#[test]
fn full_device_refuses_until_memory_is_freed() {
    let (driver, application, allocator) = over("");
    let stream = application.create_stream().unwrap();
    let all = allocator.allocate(request(TOTAL - MIB, Some(stream))).unwrap();
    let refused = allocator.allocate(request(2 * MIB, None));
    assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
    allocator.deallocate(all, Some(stream)).unwrap();
    // The pool returns the large segment to the device for the small one.
    let other = allocator.allocate(request(2 * MIB, None)).unwrap();
    allocator.deallocate(other, None).unwrap();
    close(&driver, &allocator);
}

#[test]
fn missing_calls_are_unsupported() {
    let driver = Arc::new(ToyDriver::default());
    for options in ["backing=vmm", "kind=pinned"] {
        let config = Config::parse(options).unwrap();
        let allocator = Allocator::with_driver(driver.clone(), config).unwrap();
        let refused = allocator.allocate(request(MIB, None));
        assert!(refused.is_err(), "{options}");
        close(&driver, &allocator);
    }
}

#[test]
fn random_blocks_keep_their_bytes() {
    let (driver, application, allocator) = over("limit=32MiB");
    let streams = [(); 3].map(|()| application.create_stream().unwrap());
    let mut random = 1u64;
    let mut blocks: Vec<(u64, u64, u8)> = Vec::new();
    for _ in 0..5000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let draw = random >> 33;
        let stream = streams.get(draw as usize % 4).copied();
        match draw % 26 {
            0 => driver.hold(),
            1..4 => driver.complete(),
            _ => {}
        }
        if blocks.len() < 40 && !draw.is_multiple_of(3) {
            let (size, byte) = (1 + draw % 300_000, draw as u8);
            let block = allocator.allocate(request(size, stream)).unwrap();
            application
                .fill(stream.unwrap_or(Stream::DEFAULT), block, byte, size)
                .unwrap();
            blocks.push((block, size, byte));
        } else if !blocks.is_empty() {
            let (block, size, byte) = blocks.swap_remove(draw as usize % blocks.len());
            // Another owner of these bytes would have filled them.
            assert_eq!((byte_at(block), byte_at(block + size - 1)), (byte, byte));
            allocator.deallocate(block, stream).unwrap();
        }
    }
    for (block, ..) in blocks {
        allocator.deallocate(block, None).unwrap();
    }
    driver.complete();
    close(&driver, &allocator);
}
