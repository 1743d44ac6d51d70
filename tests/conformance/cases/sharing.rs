//! One stream allocates memory, and another uses or frees it, while a third has work. No call waits for the third.

use super::MIB;
use crate::world::{Setup, World};

/// PyTorch's pattern: allocated on one stream, declared for another, freed on the first while the other works.
pub fn declared_block_is_reused_behind_its_streams(setup: &Setup) {
    let world = setup.world("limit=64MiB,wait_ms=100");
    let (main, side, busy) = (world.stream(), world.stream(), world.stream());
    // While this lasts, no context event completes: all reuse is behind completion events of the streams.
    let hold = world.hold(busy);
    for round in 0..32u8 {
        let block = world.get_on(main, 16 * MIB);
        world.record(block, side);
        world.write_edges(side, block, 16 * MIB, round);
        world.put_on(main, block);
        world.wait(side);
        world.wait(main);
    }
    hold.let_go();
    world.finish();
}

/// PyTorch's loader threads do this: a thread without a context declares the default stream, which means that of the
/// device's primary context.
pub fn block_declared_for_the_default_stream_without_a_context_is_reused(setup: &Setup) {
    let world = setup.outside("");
    // The pool retains the primary context.
    let first = world.get(MIB);
    world.put(first);
    world.enter(0);
    let stream = world.stream();
    for _ in 0..2_000 {
        let block = world.get_on(stream, MIB);
        world.leave();
        world.record(block, 0);
        world.enter(0);
        world.put_on(stream, block);
        [stream, 0].iter().for_each(|stream| world.wait(*stream));
    }
    world.leave();
    // Without stream ids, a block that is declared for several streams waits until its memory is needed.
    if world.features().stream_ids {
        let stats = world.stats();
        assert!(stats.reserved_peak <= 16 * MIB, "1 MiB in use: {stats:?}");
    }
    world.finish();
}

pub fn declared_block_waits_for_its_streams(setup: &Setup) {
    let world = setup.world("limit=64MiB,wait_ms=300");
    let (main, side) = (world.stream(), world.stream());
    let block = world.get_on(main, 64 * MIB);
    world.record(block, side);
    let hold = world.hold(side);
    world.write_edges(side, block, 64 * MIB, 1);
    world.put_on(main, block);
    for stream in [main, side] {
        assert_eq!(world.try_get_on(stream, 64 * MIB, 0, 0), 0, "the work is not over");
    }
    hold.let_go();
    world.wait(side);
    let block = world.get_on(main, 64 * MIB);
    world.write_edges(main, block, 64 * MIB, 2);
    assert!(world.holds(block, 64 * MIB, 2));
    world.finish();
}

/// Work outlives its stream, and the handle comes back as other streams: their work does not cover it.
pub fn declared_block_waits_for_a_destroyed_stream(setup: &Setup) {
    let world = setup.world("limit=72MiB,wait_ms=100");
    blocks_wait_for_a_destroyed_stream(&world);
    world.finish();
    setup.device().leave();
    // The same where the device has no more, and the allocator has no limit.
    let world = setup.world("wait_ms=100");
    let (free, _) = world.interface().inside().driver().memory_info(0).unwrap();
    let theirs = world.malloc(free - 72 * MIB);
    blocks_wait_for_a_destroyed_stream(&world);
    world.free(theirs);
    world.finish();
}

/// The allocator can get 72 MiB.
fn blocks_wait_for_a_destroyed_stream(world: &World) {
    let (main, side) = (world.stream(), world.stream());
    let blocks: Vec<usize> = (0..6).map(|_| world.get_on(main, 8 * MIB)).collect();
    let hold = world.hold(side);
    for block in &blocks {
        world.write_edges(side, *block, 8 * MIB, 1);
        world.record(*block, side);
    }
    world.destroy(side);
    for block in &blocks {
        let heir = world.stream();
        // No work waits for the new stream, so nothing is left of the earlier ones.
        let own = world.get_on(heir, MIB);
        world.put_on(main, *block);
        let more = world.get_on(heir, 2 * MIB);
        [heir, main].iter().for_each(|stream| world.wait(*stream));
        let taken = std::iter::from_fn(|| Some(world.try_get_on(main, 8 * MIB, 0, 0)).filter(|address| *address != 0));
        let taken: Vec<usize> = taken.collect();
        assert!(taken.len() <= 3, "the work is not over");
        taken
            .into_iter()
            .chain([own, more])
            .for_each(|address| world.put_on(main, address));
        world.destroy(heir);
    }
    hold.let_go();
}

/// A block is allocated on one stream and freed on another that never allocates.
pub fn frees_of_a_stream_that_never_allocates_are_reclaimed(setup: &Setup) {
    let world = setup.world("limit=64MiB,wait_ms=100");
    let (producer, consumer, busy) = (world.stream(), world.stream(), world.stream());
    let hold = world.hold(busy);
    for round in 0..64u8 {
        let block = world.get_on(producer, 8 * MIB);
        world.write_edges(producer, block, 8 * MIB, round);
        world.order(producer, consumer);
        world.write_edges(consumer, block, 8 * MIB, round);
        world.put_on(consumer, block);
    }
    hold.let_go();
    world.finish();
}

/// Two streams that take turns under a limit wait for each other on the device, not on the host, once the host had to
/// wait.
pub fn two_streams_share_memory_under_a_limit(setup: &Setup) {
    let world = setup.world("limit=64MiB,wait_ms=5000");
    let streams = [world.stream(), world.stream()];
    for round in 0..8 {
        let block = world.get_on(streams[round % 2], 64 * MIB);
        world.write_edges(streams[round % 2], block, 64 * MIB, 1);
        world.put_on(streams[round % 2], block);
    }
    let hold = world.hold(streams[0]);
    for round in 0..8 {
        let block = world.get_on(streams[round % 2], 64 * MIB);
        world.write_edges(streams[round % 2], block, 64 * MIB, 2);
        world.put_on(streams[round % 2], block);
    }
    hold.let_go();
    world.finish();
}
