//! What the statistics say of the device: its free memory, what others hold of it, the largest free range; and how often the
//! pool waited, trimmed and called the driver, and for how long.

use std::sync::Arc;

use trtalloc::allocator::{Allocator, Request};
use trtalloc::config::Config;
use trtalloc::driver::Stream;
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::ffi::ExportedAllocator;
use trtalloc::ffi::c::{self, trtalloc_stats, trtalloc_status};
use trtalloc::tags;

const MIB: u64 = 1 << 20;

struct World {
    driver: Arc<SimDriver>,
    allocator: Arc<Allocator>,
    handle: *mut c::trtalloc_allocator,
}

fn world(options: &str) -> World {
    let driver = SimDriver::new(SimConfig {
        memory: 1 << 30,
        ..SimConfig::default()
    });
    let machine = driver.machine();
    machine.context_push(machine.primary_retain(0).unwrap()).unwrap();
    let allocator = Allocator::with_driver(driver.clone(), Config::parse(options).unwrap()).unwrap();
    let exported = ExportedAllocator::new(allocator.clone());
    World {
        driver,
        allocator,
        handle: std::ptr::from_ref(exported).cast_mut().cast(),
    }
}

impl World {
    fn stats(&self) -> trtalloc_stats {
        let mut stats = trtalloc_stats::default();
        // SAFETY: an allocator of the library, and a local.
        let status = unsafe { c::trtalloc_stats_get(self.handle, -1, &mut stats, size_of_val(&stats)) };
        assert_eq!(status, trtalloc_status::Ok);
        stats
    }

    fn get(&self, size: u64, stream: Option<Stream>) -> u64 {
        let request = Request {
            size,
            alignment: 0,
            flags: 0,
            stream,
            device: None,
        };
        self.allocator.allocate(request).unwrap()
    }
}

#[test]
fn statistics_say_what_the_device_has_and_others_hold() {
    for options in ["", "backing=malloc", "limit=512MiB"] {
        let world = world(options);
        let machine = world.driver.machine();
        // Before the first request, too.
        let at_rest = world.stats();
        assert_eq!(
            (at_rest.device_free, at_rest.device_total),
            (1024 * MIB, 1024 * MIB),
            "{options}"
        );
        assert_eq!(
            (at_rest.held_by_others, at_rest.driver_calls, at_rest.reserved),
            (0, 0, 0)
        );
        let theirs = machine.memory_malloc(200 * MIB).unwrap();
        let ours = world.get(64 * MIB, None);
        let stats = world.stats();
        assert_eq!(stats.device_total, 1024 * MIB);
        assert_eq!(stats.held_by_others, 200 * MIB, "{options}");
        assert_eq!(stats.device_free, 824 * MIB - stats.reserved, "{options}");
        // Another allocator is one of the others.
        let second = Allocator::with_driver(world.driver.clone(), Config::default()).unwrap();
        let request = Request {
            size: 32 * MIB,
            alignment: 0,
            flags: 0,
            stream: None,
            device: Some(0),
        };
        let block = second.allocate(request).unwrap();
        assert_eq!(world.stats().held_by_others, 232 * MIB);
        second.deallocate(block, None).unwrap();
        second.close();
        machine.memory_free(theirs).unwrap();
        world.allocator.deallocate(ours, None).unwrap();
        assert_eq!(world.stats().held_by_others, 0, "{options}");
        // What is called at any time asks nothing.
        let quiet = world.allocator.stats(Some(0)).unwrap();
        assert_eq!((quiet.device_total, quiet.largest_free), (0, 0));
        assert!(!world.allocator.metrics().unwrap().contains("device_free"));
        let json = world.allocator.stats_json(Some(0)).unwrap();
        assert!(
            json.contains("\"device_total\":1073741824,\"held_by_others\":0,"),
            "{json}"
        );
    }
}

/// What is available is what requests get, to the page, whatever bounds it.
#[test]
fn available_is_what_requests_can_have() {
    for (options, others, at_rest) in [
        ("", 0, 1024),
        ("", 200, 824),
        ("limit=512MiB", 200, 512),
        ("limit=900MiB", 200, 824),
        ("headroom=256MiB", 0, 768),
        ("headroom=25%", 200, 568),
        ("headroom=256MiB,limit=50%", 200, 512),
        ("headroom=900MiB", 200, 0),
    ] {
        let world = world(&format!("wait_ms=0,{options}"));
        let machine = world.driver.machine();
        let theirs = (others > 0).then(|| machine.memory_malloc(others * MIB).unwrap());
        let available = || world.stats().available / MIB;
        assert_eq!(available(), at_rest, "{options}");
        let mut blocks = Vec::new();
        let (mut left, mut size) = (at_rest, 64);
        while size > 0 {
            while left >= size {
                blocks.push(world.get(size * MIB, None));
                left -= size;
                assert_eq!(available(), left, "{options}");
            }
            size /= 2;
        }
        // A page less than the next request needs.
        let request = Request {
            size: 3 * MIB,
            alignment: 0,
            flags: 0,
            stream: None,
            device: None,
        };
        let error = world.allocator.allocate(request).unwrap_err().to_string();
        assert!(
            error.contains("0 available, which is 3145728 too few"),
            "{options}: {error}"
        );
        // What is free in the pool is available, too.
        for block in blocks {
            world.allocator.deallocate(block, None).unwrap();
        }
        assert_eq!(available(), at_rest, "{options}");
        if let Some(theirs) = theirs {
            machine.memory_free(theirs).unwrap();
        }
    }
}

/// Memory that is given has its size, and pinned memory is not the device's.
#[test]
fn available_of_given_and_of_pinned_memory() {
    let mut memory: *mut c::trtalloc_allocator = std::ptr::null_mut();
    let mut stats = trtalloc_stats::default();
    let (base, options) = (std::ptr::without_provenance_mut(1 << 40), c"driver=none");
    // SAFETY: an allocator never touches external memory; the others are locals.
    let made = unsafe { c::trtalloc_create_from(base, 64 * MIB, options.as_ptr(), &mut memory) };
    assert_eq!(made, trtalloc_status::Ok);
    // SAFETY: an allocator of the library, and a local.
    let block = unsafe { c::trtalloc_allocate(memory, 24 * MIB, 0, 0) };
    // SAFETY: as above.
    let read = unsafe { c::trtalloc_stats_get(memory, -1, &mut stats, size_of_val(&stats)) };
    assert_eq!((read, stats.available), (trtalloc_status::Ok, 40 * MIB));
    // SAFETY: a block of the allocator, and the allocator.
    assert!(unsafe { c::trtalloc_deallocate(memory, block) });
    // SAFETY: an allocator of the library.
    unsafe { c::trtalloc_destroy(memory) };

    for (options, available) in [
        ("kind=pinned,limit=2GiB", 2048 * MIB - 512),
        ("kind=pinned", 2 * MIB - 512),
    ] {
        let world = world(options);
        let block = world.get(512, None);
        let stats = world.stats();
        assert_eq!(stats.available, available, "{options}: {} reserved", stats.reserved);
        world.allocator.deallocate(block, None).unwrap();
    }
}

/// A refusal says by how much it missed, and who holds the most.
#[test]
fn refusals_say_what_is_missing_and_who_holds_the_rest() {
    let world = world("limit=512MiB,wait_ms=0");
    let request = |size, tag| {
        tags::set(Some(tag)).unwrap();
        let request = Request {
            size: size * MIB,
            alignment: 0,
            flags: 0,
            stream: None,
            device: None,
        };
        let outcome = world.allocator.allocate(request);
        tags::set(None).unwrap();
        outcome
    };
    let blocks = [("resnet", 100), ("bert", 300)].map(|(tag, size)| request(size, tag).unwrap());
    let error = request(150, "bert").unwrap_err().to_string();
    assert!(
        error.contains("117440512 available, which is 39845888 too few"),
        "{error}"
    );
    assert!(
        error.ends_with("; by tag `bert` 314572800, `resnet` 104857600"),
        "{error}"
    );
    for block in blocks {
        world.allocator.deallocate(block, None).unwrap();
    }
}

/// Memory enough in total is not too little: the message names another reason.
#[test]
fn refusals_say_where_the_total_would_suffice() {
    let world = world("limit=64MiB,backing=malloc,wait_ms=0");
    let blocks: Vec<u64> = (0..6).map(|_| world.get(8 * MIB, None)).collect();
    for block in blocks.iter().step_by(2) {
        world.allocator.deallocate(*block, None).unwrap();
    }
    let available = world.stats().available;
    let request = Request {
        size: available,
        alignment: 0,
        flags: 0,
        stream: None,
        device: None,
    };
    let error = world.allocator.allocate(request).unwrap_err().to_string();
    let said = format!("{available} available, but not in one piece");
    assert!(available >= 24 * MIB && error.contains(&said), "{error}");
    for block in blocks.iter().skip(1).step_by(2) {
        world.allocator.deallocate(*block, None).unwrap();
    }
}

#[test]
fn largest_free_range_is_what_a_request_can_have_at_once() {
    let world = world("release_threshold=all");
    let blocks: Vec<u64> = (0..8).map(|_| world.get(8 * MIB, None)).collect();
    assert!(world.stats().largest_free < 8 * MIB);
    for at in [1, 2, 5] {
        world.allocator.deallocate(blocks[at], None).unwrap();
    }
    // An event covers what was freed without a stream once that is much, or after two windows of decay.
    for _ in 0..3 {
        world.allocator.end_window();
    }
    let small = world.get(512, None);
    let largest = world.stats().largest_free;
    assert!((16 * MIB - 512..=16 * MIB).contains(&largest), "{largest}");
    let before = world.stats();
    let block = world.get(largest, None);
    assert_eq!(world.stats().driver_calls, before.driver_calls);
    for address in [0, 3, 4, 6, 7].map(|at| blocks[at]).into_iter().chain([small, block]) {
        world.allocator.deallocate(address, None).unwrap();
    }
}

#[test]
fn waits_trims_and_driver_calls_are_counted_and_timed() {
    let world = world("limit=64MiB,wait_ms=500");
    let machine = world.driver.machine();
    let (one, other) = (
        machine.stream_create(true).unwrap(),
        machine.stream_create(true).unwrap(),
    );
    let first = world.get(48 * MIB, Some(Stream(one)));
    let stats = world.stats();
    assert_eq!((stats.waits, stats.trims), (0, 0));
    assert!(stats.driver_calls > 0 && stats.driver_ns > 0);
    world.allocator.deallocate(first, Some(Stream(one))).unwrap();
    let mut released = 0;
    // SAFETY: an allocator of the library, and a local.
    let status = unsafe { c::trtalloc_trim(world.handle, 0, 0, &mut released) };
    assert_eq!((status, released), (trtalloc_status::Ok, 48 * MIB));
    let stats = world.stats();
    assert_eq!(stats.trims, 1);
    assert!(stats.trim_ns > 0);
    // A caller without a stream waits for the work of the one that freed the memory.
    let second = world.get(48 * MIB, Some(Stream(other)));
    machine.launch(other, 5_000_000, &[(second, 48 * MIB)]).unwrap();
    world.allocator.deallocate(second, Some(Stream(other))).unwrap();
    let third = world.get(48 * MIB, None);
    let stats = world.stats();
    assert!(stats.waits > 0 && stats.wait_ns > 0, "{stats:?}");
    world.allocator.deallocate(third, None).unwrap();
    // It stays reserved until the limit is lowered.
    let fourth = world.get(16 * MIB, None);
    world.allocator.deallocate(fourth, None).unwrap();
    // SAFETY: as above. An older caller knows fewer fields.
    unsafe {
        let mut older = [0u64; 17];
        let status = c::trtalloc_stats_get(world.handle, 0, older.as_mut_ptr().cast(), size_of_val(&older));
        assert_eq!(status, trtalloc_status::Ok);
        assert_eq!(older[16], world.stats().remaps);
        assert_eq!(c::trtalloc_set_limit(world.handle, 0, MIB), trtalloc_status::Ok);
    }
    assert_eq!(world.stats().trims, 2);
}
