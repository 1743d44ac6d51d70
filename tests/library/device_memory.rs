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
    if std::env::var_os("TRTALLOC_LOG").is_none() {
        trtalloc::log::init(trtalloc::config::LogLevel::Off);
    }
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

/// What was freed waits for work until a request has found the work complete.
#[test]
fn what_waits_for_work_is_counted_until_the_work_is_known_to_be_complete() {
    for options in ["release_threshold=all", "release_threshold=all,streams=trusted"] {
        let world = world(&format!("wait_ms=100,decay_ms=0,{options}"));
        let machine = world.driver.machine();
        let streams = [0; 2].map(|_| Stream(machine.stream_create(true).unwrap()));
        let waiting = || {
            let stats = world.stats();
            assert!(stats.awaiting_work <= stats.cached + stats.pending, "{stats:?}");
            assert!(stats.awaiting_work <= stats.available, "{stats:?}");
            stats.awaiting_work / MIB
        };
        let free = |block, stream| world.allocator.deallocate(block, stream).unwrap();
        assert_eq!(waiting(), 0, "{options}");
        let [one, two, three] = [2, 4, 8].map(|mib| world.get(mib * MIB, Some(streams[0])));
        let without = world.get(16 * MIB, None);
        machine.launch(streams[0].0, 1_000_000, &[(one, 2 * MIB)]).unwrap();
        machine.launch(streams[1].0, 1_000_000, &[(two, 4 * MIB)]).unwrap();
        assert_eq!(waiting(), 0, "{options}: nothing was freed");
        // In the stream's cache, for that stream alone; and for no stream.
        free(one, Some(streams[0]));
        assert_eq!(waiting(), 2, "{options}");
        free(three, Some(streams[0]));
        assert_eq!(waiting(), 10, "{options}");
        free(without, None);
        assert_eq!((waiting(), world.stats().pending), (26, 16 * MIB), "{options}");
        // The stream takes back what it freed, and another stream frees a block of it.
        let again = world.get(8 * MIB, Some(streams[0]));
        assert_eq!(waiting(), 18, "{options}");
        free(two, Some(streams[1]));
        assert_eq!(waiting(), 22, "{options}");
        free(again, Some(streams[0]));
        assert_eq!(waiting(), 30, "{options}");
        // Another size makes the cached blocks free ranges of the stream. They wait on, but for what is cut from them.
        let cut = world.get(MIB, Some(streams[0]));
        assert_eq!(waiting(), 29, "{options}");
        // Work that is complete counts until a request has queried its events.
        machine.context_synchronize().unwrap();
        assert_eq!(waiting(), 29, "{options}");
        free(cut, Some(streams[0]));
        let queries = machine.count("cuEventQuery");
        assert_eq!(waiting(), 30, "{options}");
        assert!(queries > 0 && machine.count("cuEventQuery") == queries, "{options}");
        // A trim looks at all of them.
        world.allocator.trim(Some(0), 0).unwrap();
        assert_eq!((waiting(), world.stats().cached), (0, 0), "{options}");
    }
}

/// While work runs, what it uses and what was freed counts, whatever streams, frees and requests come.
#[test]
fn all_freed_memory_whose_work_runs_waits_for_work() {
    const GRANULE: u64 = 64 << 10;
    for options in [
        "",
        "limit=256MiB",
        "backing=malloc",
        "streams=trusted",
        "limit=192MiB,backing=malloc",
    ] {
        let world = world(&format!("wait_ms=0,decay_ms=0,{options}"));
        let machine = world.driver.machine();
        let streams: Vec<_> = (0..3).map(|_| Stream(machine.stream_create(true).unwrap())).collect();
        let mut random = 17u64;
        let mut draw = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut live: Vec<(u64, u64)> = Vec::new();
        // When the work on a free granule ends.
        let mut free: std::collections::HashMap<u64, u64> = std::collections::HashMap::new();
        let (mut least, mut most) = (0, 0);
        for step in 0..4000 {
            let stream = streams.get(draw(4) as usize).copied();
            match draw(8) {
                0..=2 if live.len() < 60 => {
                    let size = GRANULE << draw(7);
                    let request = Request {
                        size,
                        alignment: GRANULE,
                        flags: 0,
                        stream,
                        device: None,
                    };
                    let Ok(block) = world.allocator.allocate(request) else {
                        continue;
                    };
                    (block / GRANULE..(block + size) / GRANULE).for_each(|granule| _ = free.remove(&granule));
                    live.push((block, size));
                    if let Some(stream) = stream {
                        machine
                            .launch(stream.0, 1_000_000 * (1 + draw(4)), &[(block, size)])
                            .unwrap();
                    }
                }
                3..=6 if !live.is_empty() => {
                    let (block, size) = live.swap_remove(draw(live.len() as u64) as usize);
                    // Without a stream, what every stream has queued may use the block.
                    let ends = |stream: &Stream| machine.work_ends(stream.0).unwrap();
                    let end = stream
                        .as_ref()
                        .map_or_else(|| streams.iter().map(ends).max().unwrap(), ends);
                    world.allocator.deallocate(block, stream).unwrap();
                    free.extend((block / GRANULE..(block + size) / GRANULE).map(|granule| (granule, end)));
                }
                7 => machine.advance(draw(3_000_000)),
                _ => {}
            }
            let running = free.values().filter(|end| **end > machine.now()).count() as u64 * GRANULE;
            let stats = world.stats();
            assert!(
                running <= stats.awaiting_work && stats.awaiting_work <= stats.cached + stats.pending,
                "{options}, step {step}: {running} bytes of running work; {stats:?}"
            );
            (least, most) = (
                least.max(running),
                most.max(stats.cached + stats.pending - stats.awaiting_work),
            );
        }
        assert!(
            least > 16 * MIB && most > 16 * MIB,
            "{options}: {least} waited, {most} did not"
        );
        for (block, _) in live {
            world.allocator.deallocate(block, None).unwrap();
        }
        machine.context_synchronize().unwrap();
        world.allocator.trim(Some(0), 0).unwrap();
        assert_eq!(world.stats().awaiting_work, 0, "{options}");
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
