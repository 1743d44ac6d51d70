//! Sizes, alignments, addresses, contexts and devices.

use trtalloc::allocator::RESIZABLE;

use super::{KIB, MIB, Random};
use crate::world::Setup;

pub fn request_for_zero_bytes_is_refused(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    for alignment in [0, 256, 3] {
        assert_eq!(world.interface().allocate(0, alignment, 0), 0);
        assert_eq!(world.interface().allocate(0, alignment, RESIZABLE), 0);
        assert_eq!(world.interface().allocate_async(0, alignment, 0, stream), 0);
        assert_eq!(world.interface().allocate_async(0, alignment, 0, 0), 0);
    }
    let block = world.get_resizable(MIB);
    world.write_edges(stream, block, MIB, 7);
    assert_eq!(world.interface().reallocate(block, 0, 0), 0);
    assert!(world.holds(block, MIB, 7));
    assert_eq!(world.stats().out_of_memory, 0);
    world.finish();
}

pub fn sizes_from_4_bytes_to_1_gib_are_served(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    let mut size = 4;
    while size <= 1 << 30 {
        let block = world.try_get(size, 256, 0);
        assert!(
            block != 0 && block.is_multiple_of(256),
            "{size}: {}",
            world.interface().last_error()
        );
        let other = world.try_get_on(stream, size, 256, 0);
        assert!(
            other != 0 && other.is_multiple_of(256),
            "{size}: {}",
            world.interface().last_error()
        );
        world.write_edges(stream, block, size, 1);
        world.write_edges(stream, other, size, 2);
        assert!(world.holds(block, size, 1) && world.holds(other, size, 2), "{size}");
        world.check_books();
        world.put_on(stream, other);
        world.put(block);
        size *= 4;
    }
    for size in [
        1,
        255,
        256,
        257,
        511,
        513,
        MIB - 1,
        MIB + 1,
        2 * MIB + 1,
        33 * MIB + 12_345,
    ] {
        let block = world.get_on(stream, size);
        world.write_edges(stream, block, size, 3);
        assert!(world.holds(block, size, 3), "{size}");
    }
    world.finish();
}

pub fn every_alignment_is_kept(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    for shift in 0..=21 {
        for size in [1, 700, 3 * MIB + 5] {
            let alignment = 1u64 << shift;
            for block in [
                world.try_get(size, alignment, 0),
                world.try_get_on(stream, size, alignment, 0),
                world.try_get(size, alignment, RESIZABLE),
            ] {
                assert!(block != 0, "{size} at {alignment}: {}", world.interface().last_error());
                assert_eq!(block as u64 % alignment.max(512), 0, "{size} at {alignment}");
                world.write_edges(stream, block, size, shift as u8);
                if shift % 2 == 0 {
                    world.put_on(stream, block);
                }
            }
        }
    }
    // A freed block is reused only if its address is aligned.
    for shift in 0..=21 {
        let block = world.try_get_on(stream, 700, 1 << shift, 0);
        assert!(block != 0 && block.is_multiple_of(1 << shift));
    }
    world.finish();
}

pub fn bad_alignments_are_refused(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    for alignment in [3, 24, 500, 513, 4 * MIB, 1 << 32, 1 << 63, u64::MAX] {
        assert_eq!(world.interface().allocate(4096, alignment, 0), 0, "{alignment}");
        assert_eq!(
            world.interface().allocate_async(4096, alignment, 0, stream),
            0,
            "{alignment}"
        );
        assert!(
            world.interface().last_error().contains("alignment"),
            "{}",
            world.interface().last_error()
        );
    }
    let block = world.get_resizable(4096);
    assert_eq!(world.interface().reallocate(block, 3, 8192), 0);
    world.finish();
}

pub fn request_for_a_pebibyte_is_refused(setup: &Setup) {
    let world = setup.world("wait_ms=0");
    let stream = world.stream();
    let block = world.get_on(stream, MIB);
    let before = world.stats();
    for flags in [0, RESIZABLE] {
        assert_eq!(world.try_get(1 << 50, 0, flags), 0);
        assert_eq!(world.try_get_on(stream, 1 << 50, 0, flags), 0);
        assert_eq!(world.try_get(world.total(0) + MIB, 0, flags), 0);
    }
    assert!(
        world.interface().last_error().starts_with("out of memory"),
        "{}",
        world.interface().last_error()
    );
    let after = world.stats();
    assert!(
        after.reserved <= before.reserved && after.allocated == before.allocated,
        "{after:?}"
    );
    world.write_edges(stream, block, MIB, 9);
    assert!(world.holds(block, MIB, 9));
    world.get(MIB);
    world.finish();
}

pub fn live_blocks_do_not_overlap(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    let first = [world.get(8), world.get_on(stream, 8), world.try_get(8, 0, RESIZABLE)];
    let second = [world.get(8), world.get_on(stream, 8), world.try_get(8, 0, RESIZABLE)];
    for (at, block) in first.iter().chain(&second).enumerate() {
        assert_ne!(*block, 0);
        world.write(stream, *block, 8, at as u8);
    }
    for (at, block) in first.iter().chain(&second).enumerate() {
        assert!(world.holds(*block, 8, at as u8));
    }
    world.finish();
}

pub fn random_sizes_on_four_threads_keep_their_contents(setup: &Setup) {
    let world = setup.world("");
    std::thread::scope(|scope| {
        for seed in 1..=4 {
            let world = &world;
            scope.spawn(move || {
                world.on_thread(|| {
                    let mut random = Random::new(seed);
                    let stream = world.stream();
                    let mut mine = Vec::new();
                    for _ in 0..200 {
                        if mine.len() > 8 || (!mine.is_empty() && random.below(2) == 0) {
                            let (block, plain) = mine.swap_remove(random.below(mine.len() as u64) as usize);
                            if plain {
                                world.put(block)
                            } else {
                                world.put_on(stream, block)
                            }
                        } else {
                            let size = 1 + random.below(5 * MIB);
                            let plain = random.below(4) == 0;
                            let block = if plain {
                                world.get(size)
                            } else {
                                world.get_on(stream, size)
                            };
                            world.write_edges(stream, block, size, seed as u8);
                            mine.push((block, plain));
                        }
                    }
                    world.wait(stream);
                });
            });
        }
    });
    world.finish();
}

pub fn null_may_be_freed(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    assert!(world.interface().deallocate(0) && world.interface().deallocate_async(0, stream));
    assert!(world.interface().deallocate_async(0, 0));
    world.get(100);
    assert!(world.interface().deallocate(0) && world.interface().deallocate_async(0, stream));
    assert_eq!(world.stats().frees, 0);
    world.finish();
}

pub fn unknown_addresses_are_refused(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    let block = world.get_on(stream, 2 * MIB);
    let resizable = world.get_resizable(2 * MIB);
    world.write_edges(stream, block, 2 * MIB, 5);
    let own = world.malloc(4096);
    let local = 0u8;
    let before = world.stats();
    for address in [
        1,
        512,
        own,
        std::ptr::from_ref(&local).addr(),
        usize::MAX,
        usize::MAX / 512 * 512,
        block + 1,
        block + 512,
        block + 1_000_000,
        resizable + 512,
        block.wrapping_sub(512),
    ] {
        assert!(!world.interface().deallocate(address), "{address:#x}");
        assert!(!world.interface().deallocate_async(address, stream), "{address:#x}");
        assert!(!world.interface().deallocate_async(address, 0), "{address:#x}");
        assert_eq!(world.interface().reallocate(address, 0, 4096), 0, "{address:#x}");
        assert_ne!(world.interface().record_stream(address, stream), 0, "{address:#x}");
        assert!(!world.interface().last_error().is_empty());
    }
    let after = world.stats();
    assert_eq!(
        (after.allocated, after.requested, after.frees, after.pending),
        (before.allocated, before.requested, before.frees, before.pending)
    );
    assert!(world.holds(block, 2 * MIB, 5));
    world.free(own);
    world.finish();
}

pub fn second_free_is_refused(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    for flags in [0, RESIZABLE] {
        let plain = world.try_get(MIB, 0, flags);
        let ordered = world.try_get_on(stream, MIB, 0, flags);
        world.put(plain);
        world.put_on(stream, ordered);
        for block in [plain, ordered] {
            assert!(!world.interface().deallocate(block), "{block:#x}");
            assert!(!world.interface().deallocate_async(block, stream), "{block:#x}");
            assert_eq!(world.interface().reallocate(block, 0, 2 * MIB), 0);
            assert_ne!(world.interface().record_stream(block, stream), 0);
        }
    }
    // The reused memory is a block like any other.
    let again = world.get_on(stream, MIB);
    world.put_on(stream, again);
    world.finish();
}

pub fn requests_work_without_a_context_and_leave_none(setup: &Setup) {
    let world = setup.outside("");
    assert!(!world.entered());
    let block = world.get(MIB);
    assert!(!world.entered());
    let resizable = world.get_resizable(MIB);
    let moved = world.resize(resizable, 100 * MIB);
    let on_default = world.get_on(0, 3 * KIB);
    assert!(!world.entered());
    world.put(moved);
    world.put(on_default);
    world.put(block);
    assert!(!world.entered());
    world.trim(0);
    world.check_books();
    assert!(!world.entered());
    world.finish();
}

pub fn default_streams_reuse_their_memory(setup: &Setup) {
    let world = setup.world("");
    for &stream in world.default_streams() {
        let block = world.get_on(stream, 64 * KIB);
        world.write(stream, block, 64 * KIB, 4);
        assert!(world.holds(block, 64 * KIB, 4));
        world.put_on(stream, block);
        assert_eq!(world.get_on(stream, 64 * KIB), block, "{stream}: its own again");
        world.put_on(stream, block);
    }
    // 0 and 1 are one stream.
    let block = world.get_on(0, MIB);
    world.put_on(1, block);
    assert_eq!(world.get_on(0, MIB), block);
    if !world.default_streams().contains(&2) {
        return world.finish();
    }
    // The per-thread default stream of another thread is another stream. So is this thread's own, compared with the
    // legacy one.
    let mine = world.get_on(2, 9 * MIB);
    world.write_edges(2, mine, 9 * MIB, 1);
    world.put_on(2, mine);
    let theirs = world.on_thread(|| {
        let block = world.get_on(2, 9 * MIB);
        world.write_edges(2, block, 9 * MIB, 2);
        world.put_on(2, block);
        world.wait(2);
        block
    });
    let back = world.get_on(2, 9 * MIB);
    assert_eq!(back, mine, "not {theirs:#x}");
    world.finish();
}

pub fn each_device_has_its_pool(setup: &Setup) {
    let world = setup.world("");
    if world.count() < 2 {
        return world.finish();
    }
    let near = world.stream();
    let first = world.get_on(near, 3 * MIB);
    world.enter(1);
    let far = world.stream();
    let second = world.get_of(-1, far, 3 * MIB, false);
    // -1 means the stream's device, whichever is current.
    world.leave();
    let third = world.get_of(-1, far, MIB, false);
    let books = |device: i32| {
        let stats = world.interface().stats(device);
        (stats.allocated, stats.allocations)
    };
    assert_eq!((books(0), books(1)), ((3 * MIB, 1), (4 * MIB, 2)));
    world.put_on(far, second);
    world.put_on(far, third);
    world.put_on(near, first);
    // Memory of device 1 that is freed on a stream of device 0 stays device 1's.
    let stray = world.get_of(1, near, 2 * MIB, true);
    assert_eq!((books(0), books(1)), ((0, 1), (2 * MIB, 3)));
    world.put_on(near, stray);
    let own = world.get_on(near, 2 * MIB);
    world.write_edges(near, own, 2 * MIB, 1);
    world.enter(1);
    let there = world.get_there(1, 5 * MIB);
    world.write_edges(far, there, 5 * MIB, 2);
    world.put_on(far, there);
    world.wait_for_all();
    world.leave();
    assert_eq!(
        world.interface().allocate_on(world.count(), 64, near),
        0,
        "no such device"
    );
    world.finish();
}

pub fn sizes_beyond_any_device_are_refused(setup: &Setup) {
    let world = setup.world("wait_ms=0");
    let stream = world.stream();
    for size in [1 << 47, 1 << 62, 1 << 63, u64::MAX - 511, u64::MAX - 1, u64::MAX] {
        for flags in [0, RESIZABLE] {
            for alignment in [0, 2 * MIB] {
                assert_eq!(world.interface().allocate(size, alignment, flags), 0, "{size}");
                assert_eq!(
                    world.interface().allocate_async(size, alignment, flags, stream),
                    0,
                    "{size}"
                );
            }
        }
        let block = world.get_resizable(MIB);
        assert_eq!(world.interface().reallocate(block, 0, size), 0, "{size}");
    }
    world.finish();
}
