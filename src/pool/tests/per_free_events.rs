//! Per-free events: memory of streams without ids is reused only behind the event of each free.

use crate::driver::sim::SimConfig;
use crate::driver::sim::model::capture::MODE_RELAXED;
use crate::driver::sim::model::functions::Call;

use super::{Bench, MIB};
use crate::sync::breaking;

fn bench(options: &str) -> Bench {
    let config = SimConfig {
        version: 11_080,
        ..SimConfig::default()
    };
    let bench = Bench::on(config, options);
    // Only work that was waited for advances the clock.
    for call in Call::ALL {
        bench.machine.set_latency(call.name(), 0);
    }
    bench
}

#[test]
fn stream_reuses_its_own_while_the_work_is_pending() {
    let bench = bench("");
    let stream = bench.stream();
    let first = bench.use_and_free(stream, 1, 3 * MIB)[0];
    let (start, held) = (bench.machine.now(), bench.allocator.stats(Some(0)).unwrap().reserved);
    for _ in 0..100 {
        assert_eq!(bench.use_and_free(stream, 1, 3 * MIB), [first]);
    }
    assert_eq!(bench.machine.now(), start, "the host waited");
    assert_eq!(bench.machine.count("cuCtxSynchronize"), 0);
    assert_eq!(bench.allocator.stats(Some(0)).unwrap().reserved, held);
    assert!(
        bench.machine.count("cuEventCreate") <= 2,
        "an event serves again once its memory was taken"
    );
    bench.finish();
}

#[test]
fn other_stream_takes_memory_behind_the_event() {
    let bench = bench("limit=64MiB");
    let (first, second) = (bench.stream(), bench.stream());
    let start = bench.machine.now();
    for round in 0..50 {
        let stream = [first, second][round % 2];
        bench.use_and_free(stream, 1, 64 * MIB);
    }
    assert_eq!(bench.machine.now(), start, "the host waited");
    bench.finish();
}

#[test]
fn pending_neighbours_join_for_one_block() {
    let bench = bench("limit=64MiB");
    let (first, second, third) = (bench.stream(), bench.stream(), bench.stream());
    let start = bench.machine.now();
    let blocks: Vec<(usize, u64)> = (0..64)
        .map(|at| [first, second][at % 2])
        .map(|stream| (stream, bench.get(MIB, Some(stream))))
        .collect();
    for (stream, block) in blocks {
        bench.launch(stream, block, MIB);
        bench.put(block, Some(stream));
    }
    let block = bench.get(48 * MIB, Some(third));
    bench.launch(third, block, 48 * MIB);
    // The rest of what the third stream took is behind the third stream's work.
    let rest = bench.get(10 * MIB, Some(first));
    bench.launch(first, rest, 10 * MIB);
    assert_eq!(bench.machine.now(), start, "the host waited");
    bench.put(block, Some(third));
    bench.put(rest, Some(first));
    bench.finish();
}

#[test]
fn request_without_a_stream_waits_for_the_event_only() {
    let bench = bench("limit=64MiB");
    let (stream, busy) = (bench.stream(), bench.stream());
    let start = bench.machine.now();
    bench.use_and_free(stream, 1, 64 * MIB);
    bench.app(|machine| machine.launch(busy, 500_000_000, &[]).unwrap());
    let block = bench.get(64 * MIB, None);
    assert_eq!(bench.machine.now() - start, 1_000_000, "the kernel that used it");
    assert_eq!(bench.machine.count("cuCtxSynchronize"), 0);
    bench.put(block, None);
    bench.finish();
}

#[test]
fn resize_keeps_a_block_whose_handle_was_reused() {
    let bench = bench("limit=64MiB");
    for _ in 0..20 {
        let dying = bench.stream();
        bench.use_and_free(dying, 3, 16 * MIB);
        bench.app(|machine| machine.stream_destroy(dying)).unwrap();
        let born = bench.stream();
        assert_eq!(born, dying);
        bench.use_and_free(born, 2, 20 * MIB);
        bench.use_and_free(born, 1, 60 * MIB);
        bench.app(|machine| machine.stream_destroy(born)).unwrap();
    }
    bench.finish();
}

#[test]
fn reuse_without_the_wait_is_noticed() {
    let bench = bench("limit=64MiB");
    breaking("a stream waits for what another one freed", || {
        let (first, second) = (bench.stream(), bench.stream());
        bench.use_and_free(first, 1, 48 * MIB);
        bench.use_and_free(second, 1, 48 * MIB);
    });
    assert!(bench.wrong()[0].contains("not known to be over"), "{:?}", bench.wrong());
}

#[test]
fn events_without_stream_ids_are_bounded() {
    let bench = bench("");
    let stream = bench.stream();
    let inspect = bench.app(|machine| machine.launch_persistent(stream, &[]).unwrap());
    let blocks: Vec<u64> = (0..2000).map(|_| bench.get(4096, Some(stream))).collect();
    let before = bench.machine.count("cuEventRecord");
    blocks.iter().for_each(|block| bench.put(*block, Some(stream)));
    let stats = bench.allocator.stats(Some(0)).unwrap();
    assert_eq!(bench.machine.count("cuEventRecord") - before, 512);
    assert_eq!(
        stats.pending,
        (2000 - 512) * 4096,
        "the rest is as if freed without a stream"
    );
    assert!(bench.app(|machine| machine.release_persistent(inspect)));
    bench.finish();
}

#[test]
fn free_without_an_event_waits_for_all_contexts() {
    for call in [
        "cuEventRecord",
        "cuEventCreate",
        "cuEventQuery",
        "cuStreamGetCtx",
        "cuStreamIsCapturing",
    ] {
        let bench = bench("limit=64MiB");
        let stream = bench.stream();
        let block = bench.get(64 * MIB, Some(stream));
        bench.launch(stream, block, 64 * MIB);
        assert!(bench.machine.fail_every(Some(call), 1, 999));
        bench.put(block, Some(stream));
        // Whatever the call is needed for, no stream gets the memory too early, and nothing is lost.
        let refused = bench.request(64 * MIB, 0, Some(stream));
        bench.machine.clear_failures();
        refused.into_iter().for_each(|block| bench.put(block, Some(stream)));
        let block = bench.get(64 * MIB, None);
        bench.put(block, None);
        bench.finish();
    }
}

#[test]
fn events_do_not_end_a_capture() {
    let bench = bench("");
    let stream = bench.stream();
    let before = bench.get(4 * MIB, Some(stream));
    bench.launch(stream, before, 4 * MIB);
    bench
        .app(|machine| machine.stream_begin_capture(stream, MODE_RELAXED))
        .unwrap();
    let events = bench.machine.count("cuEventRecord");
    let inside = bench.get(MIB, Some(stream));
    bench.launch(stream, inside, MIB);
    bench.put(inside, Some(stream));
    assert_eq!(bench.get(MIB, Some(stream)), inside, "inside, at once");
    bench.put(inside, Some(stream));
    assert_eq!(bench.machine.count("cuEventRecord"), events);
    let graph = bench
        .app(|machine| machine.stream_end_capture(stream))
        .expect("nothing ended it");
    bench.put(before, Some(stream));
    bench.app(|machine| machine.graph_destroy(graph)).unwrap();
    bench.machine.drain_user_objects();
    bench.finish();
}

/// The event is recorded in the stream's context, whichever context is current. The memory comes back when that context
/// is gone.
#[test]
fn streams_of_other_contexts_are_waited_for() {
    let bench = bench("limit=64MiB");
    let other = bench.app(|machine| machine.context_create(0)).unwrap();
    let stream = bench.stream();
    bench.app(|machine| machine.context_pop()).unwrap();
    let block = bench.get(64 * MIB, Some(stream));
    bench.launch(stream, block, 64 * MIB);
    bench.put(block, Some(stream));
    let home = bench.stream();
    bench.use_and_free(home, 1, 64 * MIB);
    let again = bench.get(64 * MIB, Some(stream));
    bench.launch(stream, again, 64 * MIB);
    bench.put(again, Some(stream));
    bench.app(|machine| machine.context_destroy(other)).unwrap();
    let block = bench.get(64 * MIB, Some(home));
    bench.put(block, Some(home));
    bench.finish();
}

/// A default stream of another device is not the one on which such memory is filled.
#[test]
fn fill_and_free_work_on_the_default_stream_of_another_device() {
    let config = SimConfig {
        version: 11_080,
        devices: 2,
        ..SimConfig::default()
    };
    let bench = Bench::on(config, "fill=0xcd,limit=64MiB");
    let stream = bench.stream();
    let block = bench.get(64 * MIB, None);
    bench.app(|machine| machine.context_push(machine.primary_retain(1).unwrap()).unwrap());
    bench.put(block, Some(0));
    bench.app(|machine| machine.context_pop()).unwrap();
    let block = bench.get(64 * MIB, Some(stream));
    bench.put(block, Some(stream));
    bench.finish();
}
