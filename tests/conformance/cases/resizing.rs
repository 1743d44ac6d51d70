//! Resizable blocks.

mod contents;

use std::time::{Duration, Instant};

use trtalloc::allocator::RESIZABLE;

use super::{KIB, MIB, Random};
use crate::device::Hold;
use crate::world::Setup;

pub use contents::{random_resizes_by_copies_keep_every_byte, random_resizes_keep_every_byte};

pub fn growth_in_place_copies_nothing(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    let block = world.get_resizable(MIB);
    world.write_edges(stream, block, MIB, 1);
    let mut size = MIB;
    while size < 56 * MIB {
        let before = world.stats();
        size += 3 * MIB;
        assert_eq!(world.resize(block, size), block, "there is room");
        let after = world.stats();
        assert!(
            after.driver_calls - before.driver_calls <= 3,
            "{size}: {before:?} {after:?}"
        );
        assert!(world.holds(block, MIB, 1));
        world.write(stream, block + (size - 4096) as usize, 4096, 2);
        world.check_books();
    }
    assert_eq!(world.stats().reallocations_in_place, world.stats().reallocations);
    world.finish();
}

pub fn move_keeps_the_bytes(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    let mut block = world.try_get_on(stream, 5 * MIB, 0, RESIZABLE);
    let (mut size, mut moves) = (5 * MIB, 0);
    world.write_edges(stream, block, size, 1);
    for factor in [4, 5, 3, 4] {
        let new = world.resize(block, size * factor);
        moves += u32::from(new != block);
        assert!(world.holds(new, 4096, 1), "{size}");
        assert!(world.holds(new + (5 * MIB - 4096) as usize, 4096, 1), "{size}");
        (block, size) = (new, size * factor);
        world.write(stream, block + (size - 4096) as usize, 4096, 9);
        world.check_books();
    }
    assert!(moves >= 2, "{moves}");
    assert_eq!(world.stats().bytes_copied, 0);
    world.put_on(stream, block);
    world.finish();
}

pub fn shrink_keeps_the_address(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    let block = world.get_resizable(40 * MIB);
    world.write_edges(stream, block, 40 * MIB, 1);
    for size in [30 * MIB, MIB, 100, 1] {
        assert_eq!(world.resize(block, size), block);
        assert!(world.read(block, size.min(100)).iter().all(|byte| *byte == 1));
        world.check_books();
    }
    assert_eq!(world.resize(block, 20 * MIB), block);
    assert_eq!(world.read(block, 1), [1]);
    world.finish();
}

pub fn small_growth_makes_few_driver_calls(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    let mut size = 32 * MIB;
    let block = world.get_resizable(size);
    world.write_edges(stream, block, size, 3);
    let before = world.stats();
    for _ in 0..1000 {
        size += 4 * KIB;
        assert_eq!(world.resize(block, size), block);
    }
    let after = world.stats();
    assert_eq!(after.reallocations - before.reallocations, 1000);
    // Pages are committed ahead, so most calls make no driver call.
    assert!(after.driver_calls - before.driver_calls <= 40, "{before:?} {after:?}");
    assert!(world.holds(block, 32 * MIB, 3));
    world.finish();
}

pub fn failed_resize_leaves_the_block(setup: &Setup) {
    let world = setup.world("limit=96MiB,wait_ms=500");
    let stream = world.stream();
    let block = world.get_resizable(32 * MIB);
    let other = world.get(32 * MIB);
    world.write_edges(stream, block, 32 * MIB, 1);
    for size in [80 * MIB, 1 << 34, 1 << 46, u64::MAX] {
        assert_eq!(world.try_resize(block, size), 0, "{size}");
        assert!(world.holds(block, 32 * MIB, 1), "{size}");
        world.check_books();
    }
    assert_eq!(world.resize(block, 48 * MIB), block);
    world.put(other);
    let moved = world.resize(block, 90 * MIB);
    assert!(world.holds(moved, 4096, 1));
    world.finish();
}

pub fn only_resizable_blocks_are_resized(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    let plain = world.get(MIB);
    let ordered = world.get_on(stream, MIB);
    world.write_edges(stream, plain, MIB, 1);
    let gone = world.get_resizable(MIB);
    world.put(gone);
    for block in [plain, ordered, gone, 0, 12_345] {
        assert_eq!(world.interface().reallocate(block, 0, 2 * MIB), 0, "{block:#x}");
        assert_eq!(world.interface().reallocate(block, 0, 1), 0, "{block:#x}");
    }
    assert!(world.holds(plain, MIB, 1));
    // The same on a stream.
    let block = world.try_get_on(stream, MIB, 0, RESIZABLE);
    let block = world.resize(block, 3 * MIB);
    world.put_on(stream, block);
    world.finish();
}

pub fn resize_with_work_pending_keeps_the_bytes(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    let block = world.try_get_on(stream, 16 * MIB, 0, RESIZABLE);
    world.write_edges(stream, block, 16 * MIB, 1);
    let hold = world.hold(stream);
    world.write_edges(stream, block, 16 * MIB, 2);
    std::thread::scope(|scope| {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        // CUDA does not promise that mapping waits for nothing: a driver in which it waits must not hang here.
        scope.spawn(move || {
            let _ = wait.recv_timeout(Duration::from_secs(2));
            hold.let_go();
        });
        let moved = world.resize(block, 200 * MIB);
        assert_ne!(moved, block);
        let next = world.try_get_on(stream, 16 * MIB, 0, RESIZABLE);
        assert!(next != 0 && next != block && next != moved);
        drop(done);
        assert!(world.holds(moved, 4096, 2));
        assert!(world.holds(moved + (16 * MIB - 4096) as usize, 4096, 2));
    });
    world.finish();
}

/// The bytes that a block grows by may be used on any stream at once: none of the work on the block before writes to them.
pub fn growth_waits_for_the_work_on_the_block_before(setup: &Setup) {
    const HELD: Duration = Duration::from_millis(30);
    let world = setup.world("wait_ms=10000");
    let (stream, other) = (world.stream(), world.stream());
    for round in 0..3 {
        let block = world.try_get_on(stream, 8 * MIB, 0, RESIZABLE);
        let block = world.resize(block, 64 * MIB);
        let (holds, begun) = (round == 2, Instant::now());
        let hold = holds.then(|| world.hold(stream));
        (0..6).for_each(|_| world.write(stream, block, 64 * MIB, 1));
        world.put_on(stream, block);
        let next = world.try_get_on(stream, 8 * MIB, 0, RESIZABLE);
        // No event orders this other stream after the first.
        let use_elsewhere = |grown: usize| world.write(other, grown + 8 * MIB as usize, 24 * MIB, 2);
        let mut grown = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(HELD);
                hold.into_iter().for_each(Hold::let_go);
            });
            let grown = world.try_resize(next, 32 * MIB);
            if grown != 0 {
                // Where a driver writes at once what is queued, only the time shows the wait.
                assert!(!holds || next != block || begun.elapsed() >= HELD);
                use_elsewhere(grown);
            }
            grown
        });
        // A device whose time is simulated may refuse the growth before the work is released.
        if grown == 0 {
            grown = world.resize(next, 32 * MIB);
            use_elsewhere(grown);
        }
        world.wait_for_all();
        assert!(world.holds(grown + 8 * MIB as usize, 24 * MIB, 2));
        world.put_on(stream, grown);
        world.check_books();
    }
    world.finish();
}

/// A copy comes after all work that may still write to the old block, on any stream, and is complete when the call
/// returns.
pub fn copy_waits_for_the_work(setup: &Setup) {
    for options in ["backing=malloc,wait_ms=500", "passthrough=1,wait_ms=500"] {
        let world = setup.world(options);
        let (stream, other) = (world.stream(), world.stream());
        let block = world.try_get_on(stream, 3 * MIB, 0, RESIZABLE);
        world.write(stream, block, 3 * MIB, 1);
        let hold = world.hold(stream);
        world.write(stream, block, 3 * MIB, 2);
        assert_eq!(world.try_resize(block, 9 * MIB), 0, "the work does not end");
        hold.let_go();
        world.check_books();
        let new = world.resize(block, 9 * MIB);
        // No event orders this other stream after the first.
        world.write(other, new, 4096, 3);
        assert!(world.holds(new, 4096, 3));
        assert!(world.holds(new + 4096, 3 * MIB - 4096, 2));
        assert_eq!(world.stats().bytes_copied, 3 * MIB);
        world.put_on(other, new);
        world.finish();
    }
}

pub fn copy_does_not_end_a_capture(setup: &Setup) {
    for blocking in [true, false] {
        let world = setup.world("backing=malloc,wait_ms=300");
        let capturing = match blocking {
            true => world.blocking_stream(),
            false => world.stream(),
        };
        let block = world.get_resizable(MIB);
        let kept = world.get(MIB);
        world.begin_capture(capturing);
        // A request inside it shows a capture on a stream that is not blocking.
        let inside = (!blocking).then(|| world.get_on(capturing, MIB));
        world.write(capturing, kept, MIB, 1);
        assert_eq!(world.try_resize(block, 2 * MIB), 0, "it would end the capture");
        let graph = world.end_capture(capturing).expect("nothing ended the capture");
        world.destroy_graph(graph);
        // A request of its stream outside of it shows that it is over.
        let after = world.get_on(capturing, MIB);
        world.put_on(capturing, after);
        world.resize(block, 2 * MIB);
        inside.into_iter().for_each(|inside| world.put_on(capturing, inside));
        world.wait_for_graph_destructors();
        world.finish();
    }
}

pub fn graph_keeps_the_old_address(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    let old = world.try_get_on(stream, 5 * MIB, 0, RESIZABLE);
    world.write(stream, old, 5 * MIB, 1);
    world.begin_capture(stream);
    world.write(stream, old + MIB as usize, MIB, 7);
    let graph = world.end_capture(stream).expect("nothing ended the capture");
    let executable = world.instantiate(graph);
    let new = world.resize(old, 100 * MIB);
    assert_ne!(new, old);
    let newest = world.resize(new, 500 * MIB);
    assert_ne!(newest, new);
    for byte in [2, 3] {
        world.write(stream, newest, 5 * MIB, byte);
        world.launch(executable, stream);
        assert!(world.holds(newest, MIB, byte));
        assert!(
            world.holds(newest + MIB as usize, MIB, 7),
            "the graph writes where it always did"
        );
        assert!(world.holds(newest + 2 * MIB as usize, 3 * MIB, byte));
    }
    world.destroy_executable(executable);
    world.destroy_graph(graph);
    world.put_on(stream, newest);
    world.finish();
}

pub fn shrink_releases_whole_handles(setup: &Setup) {
    let world = setup.world("release_threshold=0");
    let stream = world.stream();
    let block = world.try_get_on(stream, 4 * MIB, 0, RESIZABLE);
    for size in [10, 20, 40, 60] {
        assert_eq!(world.resize(block, size * MIB), block);
    }
    world.write(stream, block, 60 * MIB, 1);
    let full = world.stats().reserved;
    let hold = world.hold(stream);
    world.write(stream, block, 60 * MIB, 2);
    assert_eq!(world.resize(block, 5 * MIB), block);
    assert_eq!(world.stats().reserved, full, "work that is queued may still use it");
    hold.let_go();
    world.wait(stream);
    world.trim(0);
    let shrunk = world.stats().reserved;
    assert!(shrunk <= 16 * MIB, "{shrunk}");
    assert!(world.holds(block, 5 * MIB, 2));
    // A block that grows before the shrink is reclaimed has all that it had.
    assert_eq!(world.resize(block, 60 * MIB), block);
    world.write(stream, block, 60 * MIB, 3);
    let before = world.stats();
    for _ in 0..50 {
        assert_eq!(world.resize(block, 6 * MIB), block);
        assert_eq!(world.resize(block, 60 * MIB), block);
    }
    assert_eq!(
        world.stats().driver_calls,
        before.driver_calls,
        "nothing was given back"
    );
    world.trim(0);
    assert!(world.holds(block, 60 * MIB, 3));
    // A moved block also releases what its old ranges map.
    let moved = world.resize(block, 300 * MIB);
    world.write(stream, moved, 300 * MIB, 4);
    assert_eq!(world.resize(moved, 5 * MIB), moved);
    world.trim(0);
    assert!(world.stats().reserved <= shrunk, "{:?}", world.stats());
    assert!(world.holds(moved, 5 * MIB, 4));
    world.finish();
}

/// A server's loop: blocks are allocated, grow and are freed, and earlier blocks serve later requests.
pub fn repeated_resizes_make_no_mapping(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    if world.machine().is_some() && !world.features().stream_ids {
        // Streams without ids get nothing back at once.
        return world.finish();
    }
    let mut mapped = 0;
    for round in 0..60u64 {
        let blocks: Vec<usize> = (0..4)
            .map(|at| {
                let size = (1 + (round + at) % 3) * MIB;
                let mut block = world.try_get_on(stream, size, 0, RESIZABLE);
                world.write(stream, block, size, 1);
                for size in [size + 3 * MIB, size + 7 * MIB] {
                    block = world.resize(block, size);
                    world.write(stream, block, size, 1);
                }
                block
            })
            .collect();
        blocks.into_iter().for_each(|block| world.put_on(stream, block));
        world.wait(stream);
        if let Some(machine) = world.machine() {
            let calls = [
                "cuMemCreate",
                "cuMemMap",
                "cuMemUnmap",
                "cuMemSetAccess",
                "cuMemAddressReserve",
            ];
            let now = calls.iter().map(|call| machine.count(call)).sum::<u64>();
            assert!(round < 10 || now == mapped, "round {round}: {}", now - mapped);
            mapped = now;
        }
    }
    // With work pending at every free, the stream still reuses what it freed.
    let mut last = 0;
    for _ in 0..20 {
        let block = world.try_get_on(stream, 40 * MIB, 0, RESIZABLE);
        assert!(last == 0 || block == last);
        world.write(stream, block, 40 * MIB, 2);
        world.put_on(stream, block);
        last = block;
    }
    world.finish();
}

/// No page is free throughout: a small block lives in ordinary free space, and grows there by a copy.
pub fn small_block_is_served_where_no_page_is_free(setup: &Setup) {
    let world = setup.world("limit=32MiB,wait_ms=500");
    let stream = world.stream();
    let mut blocks: Vec<usize> = (0..64).map(|_| world.get(512 * KIB)).collect();
    blocks.sort_unstable();
    for hole in blocks.iter().skip(1).step_by(2) {
        world.put(*hole);
    }
    world.wait_for_all();
    let before = world.stats();
    let mut small = world.get_resizable(300 * KIB);
    world.write_edges(stream, small, 300 * KIB, 1);
    for size in [200 * KIB, 512 * KIB, 100 * KIB] {
        small = world.resize(small, size);
        assert!(world.holds(small, 4096, 1), "{size}");
    }
    assert_eq!(world.try_resize(small, MIB), 0, "no hole is as large");
    assert!(world.holds(small, 4096, 1));
    assert!(world.stats().reserved <= before.reserved.max(32 * MIB));
    assert_eq!(world.stats().out_of_memory - before.out_of_memory, 1);
    world.check_books();
    world.put_on(stream, small);
    world.finish();
}

pub fn resize_with_another_alignment_is_refused(setup: &Setup) {
    let world = setup.world("");
    let block = world.try_get(MIB, 4096, RESIZABLE);
    for alignment in [8192, 2 * MIB, 3, 5 << 20] {
        assert_eq!(
            world.interface().reallocate(block, alignment, 2 * MIB),
            0,
            "{alignment}"
        );
        assert!(!world.interface().last_error().is_empty());
    }
    assert_eq!(world.interface().reallocate(block, 4096, MIB), block);
    let after = world.stats();
    assert_eq!((after.reallocations, after.reallocations_in_place), (1, 1));
    world.put(block);
    for device in 0..world.count() {
        world.interface().trim(device, 0);
    }
    world.right();
}

/// One thread resizes a block that another frees: the free comes before or after, and nothing is lost.
pub fn resize_and_free_at_once_take_turns(setup: &Setup) {
    for options in ["", "backing=malloc"] {
        let world = setup.world(options);
        let mut random = Random::new(7);
        let sizes = [MIB, 3 * MIB, 70 * MIB, 5000];
        for round in 0..60 {
            let block = world.interface().allocate(2 * MIB, 0, RESIZABLE);
            assert_ne!(block, 0);
            let size = sizes[round % 4];
            let delay = random.below(200);
            let (freed, grown) = std::thread::scope(|scope| {
                let free = scope.spawn(|| {
                    world.enter(0);
                    (0..delay).for_each(|_| std::hint::spin_loop());
                    let freed = world.interface().deallocate(block);
                    world.leave();
                    freed
                });
                let grown = world.interface().reallocate(block, 0, size);
                (free.join().unwrap(), grown)
            });
            // If the free came first, there was nothing to resize. If the resize came first, the free freed the resized
            // block, if it is at the same address.
            assert!(freed || grown != 0, "one of them comes first");
            if !freed {
                assert_ne!(grown, block);
                assert!(world.interface().deallocate(grown));
            }
            let stats = world.stats();
            assert_eq!((stats.allocated, stats.requested), (0, 0), "{stats:?}");
            assert_eq!(stats.allocations, stats.frees);
        }
        world.interface().inside().validate().unwrap();
        let (status, _) = world.interface().trim(0, 0);
        assert_eq!((status, world.stats().reserved), (0, 0));
        world.interface().close();
    }
}
