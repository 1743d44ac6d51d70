//! Blocks that grow.

use std::time::Duration;

use trtalloc::allocator::RESIZABLE;

use super::{KIB, MIB};
use crate::world::Setup;

pub fn in_place(setup: &Setup) {
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
            after.driver_calls - before.driver_calls <= 12,
            "{size}: {before:?} {after:?}"
        );
        assert!(world.holds(block, MIB, 1));
        world.write(stream, block + (size - 4096) as usize, 4096, 2);
        world.check_books();
    }
    assert_eq!(world.stats().reallocations_in_place, world.stats().reallocations);
    world.finish();
}

pub fn moving_keeps_the_bytes(setup: &Setup) {
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

pub fn shrinking(setup: &Setup) {
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

pub fn by_small_amounts(setup: &Setup) {
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
    // Pages are committed ahead: most calls ask the driver nothing.
    assert!(after.driver_calls - before.driver_calls <= 40, "{before:?} {after:?}");
    assert!(world.holds(block, 32 * MIB, 3));
    world.finish();
}

pub fn failure_leaves_the_block(setup: &Setup) {
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

pub fn only_what_was_asked_resizable(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    let plain = world.get(MIB);
    let ordered = world.get_on(stream, MIB);
    world.write_edges(stream, plain, MIB, 1);
    let gone = world.get_resizable(MIB);
    world.put(gone);
    for block in [plain, ordered, gone, 0, 12_345] {
        assert_eq!(world.face().reallocate(block, 0, 2 * MIB), 0, "{block:#x}");
        assert_eq!(world.face().reallocate(block, 0, 1), 0, "{block:#x}");
    }
    assert!(world.holds(plain, MIB, 1));
    // On a stream, too.
    let block = world.try_get_on(stream, MIB, 0, RESIZABLE);
    let block = world.resize(block, 3 * MIB);
    world.put_on(stream, block);
    world.finish();
}

pub fn with_work_pending(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    let block = world.try_get_on(stream, 16 * MIB, 0, RESIZABLE);
    world.write_edges(stream, block, 16 * MIB, 1);
    let hold = world.hold(stream);
    world.write_edges(stream, block, 16 * MIB, 2);
    std::thread::scope(|scope| {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        // Mapping is not promised to wait for nothing: a driver in which it waits must not hang here.
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
