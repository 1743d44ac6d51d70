//! How much a pool holds where streams and threads come and go, and where one stream frees what another allocates.

use std::collections::VecDeque;

use super::{MIB, Random};
use crate::device::Hold;
use crate::world::{Setup, World};

/// The blocks of a request: 63 MiB.
const REQUEST: [u64; 6] = [32 * MIB, 16 * MIB, 8 * MIB, 4 * MIB, 2 * MIB, MIB];
const REQUESTS: usize = 600;

/// How many streams count as ones that requested lately. Each may keep a page of 2 MiB.
const LATELY: u64 = 32;

/// Serves one request on `stream`, and waits for it.
fn serve(world: &World, stream: usize) {
    let blocks = REQUEST.map(|size| world.get_on(stream, size));
    for (block, size) in blocks.into_iter().zip(REQUEST) {
        world.write_edges(stream, block, size, 1);
    }
    blocks.into_iter().for_each(|block| world.put_on(stream, block));
    world.wait(stream);
}

/// Checks that at most `most` bytes were reserved.
fn is_bounded(world: &World, most: u64) {
    let stats = world.stats();
    assert!(
        stats.reserved_peak <= most,
        "{} MiB were reserved, which is more than {} MiB; at most {} MiB were in use",
        stats.reserved_peak / MIB,
        most / MIB,
        stats.allocated_peak / MIB
    );
}

/// At most 4 × the peak in use and a page for each stream that requested lately.
pub fn streams_for_one_request_each_leave_little_memory(setup: &Setup) {
    let world = setup.world("");
    for _ in 0..REQUESTS {
        let stream = world.stream();
        serve(&world, stream);
        world.destroy(stream);
    }
    is_bounded(&world, 4 * world.stats().allocated_peak + LATELY * 2 * MIB);
    world.finish();
}

/// As above, but the streams stay, and request nothing any more.
pub fn streams_that_stop_requesting_leave_little_memory(setup: &Setup) {
    let world = setup.world("");
    for _ in 0..REQUESTS {
        serve(&world, world.stream());
    }
    is_bounded(&world, 4 * world.stats().allocated_peak + LATELY * 2 * MIB);
    world.finish();
}

/// As above, with the threads' default streams.
pub fn threads_for_one_request_each_leave_little_memory(setup: &Setup) {
    let world = setup.world("");
    let stream = *world.default_streams().last().expect("there are default streams");
    for _ in 0..REQUESTS {
        world.on_thread(|| serve(&world, stream));
    }
    is_bounded(&world, 4 * world.stats().allocated_peak + LATELY * 2 * MIB);
    world.finish();
}

/// Outputs of eight producers that consumers free, which never allocate. Their work on the last four is pending. Returns the
/// most bytes that were in use or pending at a time.
fn consume(world: &World, names_its_stream: bool) -> u64 {
    let (producers, consumers) = ([0; 8].map(|_| world.stream()), [0; 4].map(|_| world.stream()));
    let mut random = Random::new(5);
    let (mut pending, mut most) = (VecDeque::new(), 0);
    for (producer, consumer) in producers
        .into_iter()
        .cycle()
        .zip(consumers.into_iter().cycle())
        .take(300)
    {
        if pending.len() == consumers.len()
            && let Some((held, first, _)) = pending.pop_front()
        {
            Hold::let_go(held);
            world.wait(first);
        }
        let sizes: Vec<u64> = (0..4).map(|_| (1 + random.below(24)) * MIB).collect();
        let output: Vec<usize> = sizes.iter().map(|size| world.get_on(producer, *size)).collect();
        for (block, size) in output.iter().zip(&sizes) {
            world.write_edges(producer, *block, *size, 1);
        }
        assert!(world.order(producer, consumer));
        for (block, size) in output.iter().zip(&sizes) {
            world.write_edges(consumer, *block, *size, 2);
        }
        pending.push_back((world.hold(consumer), consumer, sizes.iter().sum::<u64>()));
        for block in output {
            match names_its_stream {
                true => world.put_on(consumer, block),
                false => world.put(block),
            }
        }
        most = most.max(pending.iter().map(|(_, _, bytes)| bytes).sum());
    }
    pending.into_iter().for_each(|(held, ..)| held.let_go());
    most
}

/// At most 2 × what was in use or pending.
pub fn outputs_that_a_consumer_frees_leave_little_memory(setup: &Setup) {
    let world = setup.world("");
    let needs = consume(&world, true);
    is_bounded(&world, 2 * needs);
    world.finish();
}

/// As above.
pub fn outputs_that_are_freed_without_a_stream_leave_little_memory(setup: &Setup) {
    let world = setup.world("");
    let needs = consume(&world, false);
    is_bounded(&world, 2 * needs);
    world.finish();
}

/// At most 1.2 × the peak in use: both streams are synchronized before the memory is needed again.
pub fn declared_blocks_leave_little_memory(setup: &Setup) {
    let world = setup.world("");
    let (main, side) = (world.stream(), world.stream());
    for _ in 0..8 {
        let blocks: Vec<usize> = (0..50).map(|_| world.get_on(main, 4 * MIB)).collect();
        for block in &blocks {
            world.record(*block, side);
            world.write_edges(side, *block, 4 * MIB, 1);
        }
        blocks.into_iter().for_each(|block| world.put_on(main, block));
        world.wait(main);
        world.wait(side);
    }
    is_bounded(&world, world.stats().allocated_peak * 12 / 10);
    world.finish();
}
