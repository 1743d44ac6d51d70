//! What options change, and what they leave unchanged.

use trtalloc::allocator::RESIZABLE;

use super::{KIB, MIB, Random};
use crate::world::{Setup, World};

/// Allocates and frees in all ways.
fn mixed(world: &World, rounds: u64, largest: u64) {
    let streams = [world.stream(), world.stream(), 0];
    let mut random = Random::new(largest + rounds);
    let mut live = Vec::new();
    for round in 0..rounds {
        if live.len() > 12 || (!live.is_empty() && random.below(5) < 2) {
            let (block, size, byte, stream) = live.swap_remove(random.below(live.len() as u64) as usize);
            assert!(round % 7 != 0 || world.holds(block, size, byte));
            if random.below(3) == 0 {
                world.put(block)
            } else {
                world.put_on(stream, block)
            }
        } else {
            let stream = streams[random.below(3) as usize];
            let size = 1 + random.below(largest);
            let block = if random.below(4) == 0 {
                world.get(size)
            } else {
                world.get_on(stream, size)
            };
            world.write_edges(stream, block, size, round as u8);
            live.push((block, size, round as u8, stream));
        }
        if round % 16 == 0 {
            world.check_books();
        }
    }
    for (block, size, byte, _) in live {
        assert!(world.holds(block, size, byte));
    }
}

pub fn backing_malloc_serves_requests(setup: &Setup) {
    let world = setup.world("backing=malloc");
    mixed(&world, 300, 9 * MIB);
    for shift in 0..=21 {
        let block = world.try_get(3000, 1 << shift, 0);
        assert!(block != 0 && block.is_multiple_of(1 << shift), "{shift}");
    }
    let large = world.get(300 * MIB);
    assert!(world.stats().reserved >= 300 * MIB);
    world.put(large);
    world.finish();
}

pub fn passthrough_calls_the_driver_for_each_request(setup: &Setup) {
    let world = setup.world("passthrough=1");
    let stream = world.stream();
    let count = |call| world.machine().map(|machine| machine.count(call));
    let before = [count("cuMemAlloc"), count("cuMemFree")];
    let blocks = [0; 5].map(|_| world.get_on(stream, 100 * KIB));
    // Each block is an allocation of the driver's, which is repeated once if an address is not aligned.
    if let [Some(asked), Some(freed)] = before {
        let again = count("cuMemFree").unwrap() - freed;
        assert_eq!(count("cuMemAlloc").unwrap() - asked, 5 + again);
    }
    // Each lies in a granule of the driver's, or in two, and several may share one.
    let reserved = world.stats().reserved;
    assert!(
        reserved.is_multiple_of(2 * MIB) && (2 * MIB..=20 * MIB).contains(&reserved),
        "{reserved}"
    );
    blocks.iter().for_each(|block| world.put_on(stream, *block));
    mixed(&world, 100, 2 * MIB);
    let block = world.try_get(MIB, 0, RESIZABLE);
    assert_ne!(block, 0);
    let block = world.resize(block, 2 * MIB);
    let plain = world.get(MIB);
    assert_eq!(world.try_resize(plain, 2 * MIB), 0, "not resizable");
    world.write_edges(stream, block, 2 * MIB, 5);
    let block = world.resize(block, 5 * MIB);
    assert!(world.holds(block, 4096, 5) && world.holds(block + (2 * MIB - 4096) as usize, 4096, 5));
    world.resize(block, 1000);
    world.finish();
}

pub fn guard_leaves_a_page_unmapped(setup: &Setup) {
    let world = setup.world("guard=1");
    let stream = world.stream();
    for size in [1, 511, 512, 100 * KIB, 2 * MIB, 5 * MIB + 700] {
        let block = world.get_on(stream, size);
        world.write_edges(stream, block, size, 1);
        assert!(world.holds(block, size, 1));
        if let Some(machine) = world.machine() {
            let end = (block as u64 + size).next_multiple_of(512);
            assert!(machine.read(end, &mut [0]).is_err(), "{size}: no page lies behind");
            assert!(machine.read(end - 1, &mut [0]).is_ok(), "{size}");
        }
        world.put_on(stream, block);
    }
    for shift in [9, 12, 16, 21] {
        let block = world.try_get(1000, 1 << shift, 0);
        assert!(
            block != 0 && block.is_multiple_of(1 << shift),
            "{shift}: {}",
            world.interface().last_error()
        );
    }
    mixed(&world, 60, 4 * MIB);
    let block = world.get_resizable(MIB);
    world.resize(block, 100 * MIB);
    world.finish();
}

pub fn fill_overwrites_new_and_freed_memory(setup: &Setup) {
    let world = setup.world("fill=0xAB");
    let stream = world.stream();
    let fresh = [
        world.get(10_000),
        world.get_on(stream, 10_000),
        world.try_get(10_000, 0, RESIZABLE),
        world.get_on(0, 10_000),
    ];
    for block in fresh {
        assert!(world.holds(block, 10_000, 0xab), "fresh");
        world.write(stream, block, 10_000, 1);
    }
    world.wait(stream);
    let [plain, ordered, ..] = fresh;
    world.put_on(stream, ordered);
    assert!(world.holds(ordered, 10_000, 0xab), "freed");
    assert!(world.holds(plain, 10_000, 1), "not its neighbour");
    let again = world.get_on(stream, 10_000);
    assert!(again == ordered && world.holds(again, 10_000, 0xab));
    mixed(&world, 100, MIB);
    world.finish();
}

pub fn trusted_streams_are_not_queried(setup: &Setup) {
    let world = setup.world("streams=trusted");
    let stream = world.stream();
    let block = world.get_on(stream, MIB);
    world.put_on(stream, block);
    let before = world.stats();
    for _ in 0..500 {
        assert_eq!(world.get_on(stream, MIB), block);
        world.put_on(stream, block);
    }
    let after = world.stats();
    assert_eq!(
        (after.driver_calls, after.driver_queries),
        (before.driver_calls, before.driver_queries)
    );
    mixed(&world, 200, 4 * MIB);
    world.finish();
}

/// Writes to pinned memory from the host, at once.
fn host_writes(address: usize, bytes: u64, byte: u8) {
    // SAFETY: a live block of host memory with so many bytes, and no other thread touches it.
    unsafe { std::ptr::write_bytes(address as *mut u8, byte, bytes as usize) };
}

pub fn pinned_memory_serves_requests(setup: &Setup) {
    let world = setup.world("kind=pinned");
    mixed(&world, 300, 9 * MIB);
    for shift in 0..=21 {
        let block = world.try_get(3000, 1 << shift, 0);
        assert!(block != 0 && block.is_multiple_of(1 << shift), "{shift}");
    }
    let (stream, block) = (world.stream(), world.get(5 * MIB));
    host_writes(block, 5 * MIB, 7);
    assert!(world.holds(block, 5 * MIB, 7));
    // Pinned memory is not virtual memory.
    let resizable = world.try_get_on(stream, MIB, 0, RESIZABLE);
    assert_ne!(resizable, 0, "{}", world.interface().last_error());
    assert_eq!(world.try_resize(resizable, 2 * MIB), 0);
    assert!(
        world.interface().last_error().contains("pinned"),
        "{}",
        world.interface().last_error()
    );
    world.finish();

    let world = setup.world("kind=pinned,limit=16MiB,wait_ms=300");
    let first = world.get(10 * MIB);
    assert_eq!(world.try_get(10 * MIB, 0, 0), 0);
    world.put(first);
    let first = world.get_on(world.stream(), 10 * MIB);
    world.put(first);
    world.finish();
}

pub fn pinned_memory_waits_for_the_stream_that_used_it(setup: &Setup) {
    let world = setup.world("kind=pinned");
    let stream = world.stream();
    for round in 0..20u8 {
        let hold = world.hold(stream);
        // The host must not write to memory that a later copy will read, on that stream either.
        let blocks: Vec<usize> = (0..4).map(|_| world.get_on(stream, 3 * MIB)).collect();
        for block in &blocks {
            host_writes(*block, 3 * MIB, round);
            world.write_edges(stream, *block, 3 * MIB, round);
            world.put_on(stream, *block);
        }
        let next = world.get_on(stream, 3 * MIB);
        assert!(!blocks.contains(&next), "{next:#x} is in use");
        host_writes(next, 3 * MIB, 99);
        hold.let_go();
        world.wait(stream);
        assert!(world.holds(next, 3 * MIB, 99));
        world.put_on(stream, next);
    }
    // The memory is reused: twenty rounds took no more than a few did.
    assert!(world.stats().reserved <= 64 * MIB, "{:?}", world.stats());
    world.finish();
}

pub fn pinned_memory_of_a_graph_is_used_once(setup: &Setup) {
    let world = setup.world("kind=pinned");
    let stream = world.stream();
    // With free memory, the capture need not call the driver for it.
    let before: Vec<usize> = (0..4).map(|_| world.get(MIB)).collect();
    before.into_iter().for_each(|block| world.put(block));
    world.begin_capture(stream);
    let first = world.get_on(stream, MIB);
    world.write(stream, first, MIB, 1);
    world.put_on(stream, first);
    // The graph will read what the host wrote before its launch, so even the capture itself must not reuse it.
    let second = world.get_on(stream, MIB);
    assert_ne!(first, second);
    let graph = world.end_capture(stream).expect("the capture stands");
    let elsewhere = world.get(MIB);
    assert_ne!(elsewhere, first);
    let executable = world.instantiate(graph);
    world.destroy_graph(graph);
    world.launch(executable, stream);
    world.wait(stream);
    world.destroy_executable(executable);
    world.wait_for_graph_destructors();
    world.finish();
}
