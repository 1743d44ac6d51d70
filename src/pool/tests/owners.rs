//! Declared stream uses and a graph's hold on a block still count when the block is freed.

use super::{Bench, MIB};
use crate::driver::Stream;
use crate::driver::sim::model::capture::MODE_RELAXED;

/// Freed memory is filled in the order of the stream that frees it, and of no other. Where others may still use it, it
/// is not filled.
#[test]
fn memory_that_others_may_use_is_not_filled() {
    let bench = Bench::new("fill=0xcd,wait_ms=1");
    let (first, second) = (bench.stream(), bench.stream());
    let filled = |free: &dyn Fn()| {
        let before = bench.machine.count("cuMemsetD8Async");
        free();
        bench.machine.count("cuMemsetD8Async") - before
    };
    let own = bench.get(MIB, Some(first));
    assert_eq!(filled(&|| bench.put(own, Some(first))), 1, "its stream's own");
    let shared = bench.get(MIB, Some(first));
    bench.allocator.record_stream(shared, Stream(second)).unwrap();
    let kernel = bench
        .app(|machine| machine.launch_persistent(second, &[(shared, MIB)]))
        .unwrap();
    bench.machine.checker().used(shared, second);
    assert_eq!(
        filled(&|| bench.put(shared, Some(first))),
        0,
        "the other stream reads it"
    );
    let plain = bench.get(MIB, Some(second));
    bench.launch(second, plain, MIB);
    assert_eq!(
        filled(&|| bench.put(plain, None)),
        0,
        "nothing is ordered behind that stream"
    );
    assert!(bench.machine.release_persistent(kernel));
    // A graph's block is freed on a stream while the graph may run on another.
    bench
        .app(|machine| machine.stream_begin_capture(first, MODE_RELAXED))
        .unwrap();
    let inside = bench.get(MIB, Some(first));
    bench.launch(first, inside, MIB);
    let graph = bench.app(|machine| machine.stream_end_capture(first)).unwrap();
    let executable = bench.app(|machine| machine.graph_instantiate(graph)).unwrap();
    bench.app(|machine| machine.graph_launch(executable, second)).unwrap();
    assert_eq!(
        filled(&|| bench.put(inside, Some(first))),
        0,
        "the graph may be launched again"
    );
    bench.app(|machine| {
        machine.graph_exec_destroy(executable).unwrap();
        machine.graph_destroy(graph).unwrap();
        machine.stream_synchronize(second).unwrap();
        machine.stream_synchronize(first).unwrap();
    });
    bench.machine.drain_user_objects();
    bench.finish();
}

/// The stream uses of a graph's block do not pass to the next block with its number.
#[test]
fn stream_uses_of_a_graphs_block_are_forgotten_with_it() {
    let bench = Bench::new("");
    let (first, second) = (bench.stream(), bench.stream());
    bench
        .app(|machine| machine.stream_begin_capture(first, MODE_RELAXED))
        .unwrap();
    let inside = bench.get(MIB, Some(first));
    let graph = bench.app(|machine| machine.stream_end_capture(first)).unwrap();
    bench.allocator.record_stream(inside, Stream(second)).unwrap();
    bench.put(inside, Some(first));
    assert!(bench.allocator.pool_of(0).core.lock().reclaimer.uses.is_empty());
    bench.app(|machine| machine.graph_destroy(graph)).unwrap();
    bench.machine.drain_user_objects();
    bench.finish();
}

/// A block waits for the streams that were declared: the next request on each of them records the event, also where no memory is
/// short.
#[test]
fn declared_stream_records_the_event_at_its_next_request() {
    let bench = Bench::new("");
    let (first, second) = (bench.stream(), bench.stream());
    let warm = bench.get(MIB, Some(second));
    bench.put(warm, Some(second));
    let shared = bench.get(MIB, Some(first));
    bench.allocator.record_stream(shared, Stream(second)).unwrap();
    bench.put(shared, Some(first));
    for stream in [first, second] {
        let before = bench.machine.count("cuEventRecord");
        let block = bench.get(3 * MIB, Some(stream));
        assert_eq!(bench.machine.count("cuEventRecord") - before, 1);
        bench.put(block, Some(stream));
    }
    bench.finish();
}
