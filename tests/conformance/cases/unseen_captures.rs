//! Captures that the pool cannot see, because they are on a non-blocking stream and request nothing.

use super::MIB;
use crate::device::Mode;
use crate::world::{Setup, World};

/// The blocks of a request: 63 MiB. All rounds together leave a part of the device free, so memory is never short.
const REQUEST: [u64; 6] = [32 * MIB, 16 * MIB, 8 * MIB, 4 * MIB, 2 * MIB, MIB];

/// How many captures run one after another.
fn rounds(world: &World) -> u64 {
    world.total(0) / 2 / (64 * MIB)
}

/// Serves a request on a new stream, which is destroyed once its work is complete.
fn serve_on_a_new_stream(world: &World) {
    let stream = world.stream();
    let blocks = REQUEST.map(|size| world.get_on(stream, size));
    for (block, size) in blocks.into_iter().zip(REQUEST) {
        world.write_edges(stream, block, size, 1);
    }
    blocks.into_iter().for_each(|block| world.put_on(stream, block));
    world.wait(stream);
    world.destroy(stream);
}

/// Runs captures that request nothing, each beside a request on a new stream of another thread. Returns how many of them were
/// ended.
fn captures_ended(world: &World) -> usize {
    let stream = world.stream();
    let block = world.get(MIB);
    let capture = |_: u64| {
        world.begin_capture_in(stream, Mode::Relaxed);
        world.write(stream, block, MIB, 1);
        world.on_thread(|| serve_on_a_new_stream(world));
        let graph = world.end_capture(stream);
        graph.into_iter().for_each(|graph| world.destroy_graph(graph));
        graph.is_none()
    };
    let ended = (0..rounds(world)).filter(|round| capture(*round)).count();
    world.put(block);
    ended
}

/// The first context event that the driver refuses for a capture makes captures known, in all allocators of the process. So at
/// most one is ended as long as memory is not short.
pub fn context_events_end_one_capture_that_is_not_seen(setup: &Setup) {
    let world = setup.world("");
    let ended = captures_ended(&world);
    assert!(ended <= 1, "{ended} of {} captures were ended", rounds(&world));
    world.finish();
}

/// None is ended where captures are known from the start.
pub fn context_events_end_no_declared_capture_that_is_not_seen(setup: &Setup) {
    let world = setup.world("captures=1");
    let ended = captures_ended(&world);
    assert_eq!(ended, 0, "of {} captures", rounds(&world));
    world.finish();
}
