//! `block.rs` in the real allocator: each block is freed once, whichever threads try.

use crate::world::{UNIT, World, caught, explore};

/// Frees a block of one stream twice at once, on the given streams.
fn twice(on: [Option<usize>; 2]) -> impl Fn() {
    move || {
        let world = World::new("");
        let streams: [usize; 2] = world.warm(1);
        let block = world.get(UNIT, streams[0]);
        let [here, there] = on.map(|at| at.map(|at| streams[at]));
        let other = world.thread(move |world| world.free(block, there));
        let one = world.free(block, here);
        let other = other.join().unwrap();
        assert!(one != other, "one of two frees is the block's: {one}, {other}");
        world.check(0);
    }
}

#[test]
fn a_double_free_on_its_stream() {
    explore("double free, own stream", 3, twice([Some(0), Some(0)]));
}

#[test]
fn a_double_free_on_two_streams() {
    explore("double free, two streams", 2, twice([Some(0), Some(1)]));
}

#[test]
fn a_double_free_without_a_stream() {
    explore("double free, a stream and none", 2, twice([Some(0), None]));
}

/// The block was allocated without a stream.
#[test]
fn a_double_free_of_a_homeless_block() {
    explore("double free, homeless", 2, || {
        let world = World::new("");
        let [stream] = world.warm(1);
        let block = world.allocate(UNIT, None).unwrap();
        let other = world.thread(move |world| world.free(block, Some(stream)));
        let one = world.free(block, Some(stream));
        assert!(one != other.join().unwrap(), "one of two frees is the block's");
        world.check(0);
    });
}

/// A second free comes while the block is freed and allocated again. It may free the new block, since no call can
/// distinguish it from the first; but the statistics count one free for each block.
#[test]
fn a_double_free_while_it_is_handed_out_again() {
    explore("double free, handed out again", 2, || {
        let world = World::new("");
        let [stream] = world.warm(1);
        let block = world.get(UNIT, stream);
        let other = world.thread(move |world| world.free(block, Some(stream)));
        let first = world.free(block, Some(stream));
        let request = trtalloc::allocator::Request {
            size: UNIT,
            alignment: 0,
            flags: 0,
            stream: Some(trtalloc::driver::Stream(stream)),
            device: None,
        };
        let again = world.allocator.allocate(request).unwrap();
        assert_eq!(again, block);
        let believed = u64::from(first) + u64::from(other.join().unwrap());
        assert!((1..=2).contains(&believed));
        world.check((2 - believed) * UNIT);
    });
}

#[test]
fn claims_without_a_check() {
    let words = ["one of two frees"];
    caught("a claim at the origin compares the state", &words, || {
        explore("", 2, twice([Some(0), Some(0)]))
    });
    caught("a claim with an origin holds its lock", &words, || {
        explore("", 2, twice([Some(0), Some(1)]))
    });
}
