//! Stream capture: whose memory is whose, and that no capture is broken.

use super::MIB;
use crate::world::Setup;

pub fn captured_memory_is_the_graphs(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    world.begin_capture(stream);
    let block = world.get_on(stream, 5 * MIB);
    world.write_edges(stream, block, 5 * MIB, 1);
    world.put_on(stream, block);
    let kept = world.get_on(stream, 3 * MIB);
    world.write_edges(stream, kept, 3 * MIB, 2);
    let graph = world.end_capture(stream).expect("nothing ended the capture");
    let executable = world.instantiate(graph);
    for _ in 0..3 {
        world.launch(executable, stream);
    }
    // While the graph can be launched, its memory is nobody else's, whoever asks.
    let others = [
        world.get_on(stream, 5 * MIB),
        world.get_on(stream, 3 * MIB),
        world.get(5 * MIB),
        world.get_on(0, 3 * MIB),
    ];
    let apart = |other: usize, size: u64| {
        let beside = |at: usize, len: u64| other as u64 + size <= at as u64 || at as u64 + len <= other as u64;
        beside(block, 5 * MIB) && beside(kept, 3 * MIB)
    };
    assert!(apart(others[0], 5 * MIB) && apart(others[1], 3 * MIB));
    assert!(apart(others[2], 5 * MIB) && apart(others[3], 3 * MIB));
    world.put_on(stream, kept);
    let another = world.get_on(stream, 3 * MIB);
    assert!(apart(another, 3 * MIB), "its owner gave it back, the graph did not");
    world.launch(executable, stream);
    world.wait(stream);
    world.destroy_graph(graph);
    let another = world.get_on(stream, 3 * MIB);
    assert!(apart(another, 3 * MIB), "there still is the executable");
    world.launch(executable, stream);
    world.wait(stream);
    world.destroy_executable(executable);
    world.settle_graphs();
    world.finish();
}

pub fn reuse_inside_a_capture(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    // What the stream freed before is not the capture's.
    let before = world.get_on(stream, 4 * MIB);
    world.write_edges(stream, before, 4 * MIB, 9);
    world.put_on(stream, before);
    world.begin_capture(stream);
    let first = world.get_on(stream, 4 * MIB);
    for byte in 0..20 {
        world.write_edges(stream, first, 4 * MIB, byte);
        world.put_on(stream, first);
        assert_eq!(world.get_on(stream, 4 * MIB), first, "inside, at once");
    }
    world.put_on(stream, first);
    world.check_books();
    let graph = world.end_capture(stream).expect("nothing ended the capture");
    let executable = world.instantiate(graph);
    world.launch(executable, stream);
    let ordinary = world.get_on(stream, 4 * MIB);
    assert_ne!(ordinary, first);
    world.put_on(stream, ordinary);
    world.wait(stream);
    world.destroy_executable(executable);
    world.destroy_graph(graph);
    world.settle_graphs();
    // It is free now: a second capture of the same shape needs no more memory than there is.
    let held = world.stats().reserved;
    world.begin_capture(stream);
    let again = world.get_on(stream, 4 * MIB);
    world.write_edges(stream, again, 4 * MIB, 1);
    world.put_on(stream, again);
    let graph = world.end_capture(stream).expect("nothing ended the capture");
    assert!(world.stats().reserved <= held + 4 * MIB, "{:?}", world.stats());
    world.destroy_graph(graph);
    world.settle_graphs();
    world.finish();
}

pub fn memory_allocated_before_a_capture(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    let block = world.get_on(stream, 2 * MIB);
    let plain = world.get(2 * MIB);
    world.begin_capture(stream);
    world.write_edges(stream, block, 2 * MIB, 3);
    world.write_edges(stream, plain, 2 * MIB, 4);
    let graph = world.end_capture(stream).expect("nothing ended the capture");
    let executable = world.instantiate(graph);
    world.launch(executable, stream);
    assert!(world.holds(block, 2 * MIB, 3) && world.holds(plain, 2 * MIB, 4));
    world.launch(executable, stream);
    world.destroy_executable(executable);
    world.destroy_graph(graph);
    world.put_on(stream, block);
    world.put_on(stream, plain);
    world.settle_graphs();
    world.finish();
}

pub fn a_graph_dropped_before_it_is_made_executable(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    for round in 0..6 {
        world.begin_capture(stream);
        let inside = world.get_on(stream, MIB);
        let outlives = world.get_on(stream, MIB);
        world.write_edges(stream, inside, MIB, round);
        world.put_on(stream, inside);
        let graph = world.end_capture(stream).expect("nothing ended the capture");
        world.destroy_graph(graph);
        world.settle_graphs();
        // What is still out is an ordinary block from now on.
        world.write_edges(stream, outlives, MIB, 7);
        assert!(world.holds(outlives, MIB, 7));
        world.put_on(stream, outlives);
        // A stream is stamped in calls that are given it outside a capture only: without one, what graphs leave on it would
        // wait for a call without a stream.
        let between = world.get_on(stream, MIB);
        world.put_on(stream, between);
    }
    assert!(
        world.stats().reserved <= 8 * MIB || world.keeps_captures(),
        "{:?}",
        world.stats()
    );
    world.finish();
}

pub fn frees_without_a_stream_wait_for_a_capture(setup: &Setup) {
    let world = setup.world("wait_ms=20");
    let (blocking, other) = (world.blocking_stream(), world.stream());
    let blocks = [0; 6].map(|_| world.get(3 * MIB));
    world.begin_capture(blocking);
    let captured = world.get_on(blocking, MIB);
    world.write_edges(blocking, captured, MIB, 1);
    for block in blocks {
        world.put(block);
        let ordered = world.get_on(other, 5 * MIB);
        world.put_on(other, ordered);
        let plain = world.get(20 * MIB);
        world.put(plain);
    }
    world.put_on(blocking, captured);
    let graph = world.end_capture(blocking).expect("nothing ended the capture");
    world.destroy_graph(graph);
    world.settle_graphs();
    world.finish();
}
