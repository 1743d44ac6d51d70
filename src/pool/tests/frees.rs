//! Streams that free before they allocate, in contexts that the pool does not know: reclamation waits for their work.

use super::{Bench, MIB, RESIZABLE};
use crate::allocator::Request;
use crate::driver::Stream;
use crate::driver::sim::SimConfig;
use crate::driver::sim::model::Machine;
use crate::driver::sim::model::capture::MODE_RELAXED;

/// A bench with memory for one block, and another context, which is current now.
fn visited(options: &str) -> (Bench, usize) {
    let bench = Bench::new(&format!("limit=64MiB,wait_ms=1{options}"));
    let context = bench.app(|machine| machine.context_create(0)).unwrap();
    (bench, context)
}

/// Uses and frees the block on `stream`, and checks that a request without a stream does not get it before that work is
/// complete.
fn freed_there_is_not_handed_out_early(bench: Bench, block: u64, stream: usize, leave: impl FnOnce(&Bench)) {
    let kernel = bench
        .app(|machine| machine.launch_persistent(stream, &[(block, 64 * MIB)]))
        .unwrap();
    bench.put(block, Some(stream));
    leave(&bench);
    for _ in 0..3 {
        let early = bench.request(64 * MIB, 0, None);
        assert_eq!(bench.wrong(), Vec::<String>::new());
        assert!(early.is_err(), "the work on the block is not over");
    }
    assert!(bench.machine.release_persistent(kernel));
    bench.finish();
}

fn pop(bench: &Bench) {
    bench.app(|machine| machine.context_pop()).unwrap();
}

#[test]
fn stream_at_a_returned_handle_is_waited_for_after_its_context_returned_too() {
    let (bench, context) = visited("");
    pop(&bench);
    let first = bench.stream();
    let warm = bench.get(MIB, Some(first));
    bench.app(|machine| machine.context_push(context)).unwrap();
    // A free makes the context known, and the pool forgets the context when it is gone.
    bench.put(warm, Some(first));
    bench.app(|machine| machine.context_destroy(context)).unwrap();
    bench.allocator.trim(Some(0), 0).unwrap();
    let block = bench.get(64 * MIB, Some(first));
    assert_eq!(
        bench.app(|machine| machine.context_create(0)),
        Ok(context),
        "it comes back"
    );
    bench.app(|machine| machine.stream_destroy(first)).unwrap();
    let second = bench.stream();
    assert_eq!(first, second, "the handle comes back");
    freed_there_is_not_handed_out_early(bench, block, second, pop);
}

#[test]
fn stream_of_another_context_than_the_current_one_is_waited_for() {
    for flags in [0, RESIZABLE] {
        let (bench, _) = visited("");
        let stream = bench.stream();
        pop(&bench);
        let block = bench.request(64 * MIB, flags, None).unwrap();
        freed_there_is_not_handed_out_early(bench, block, stream, |_| {});
    }
}

#[test]
fn default_stream_of_a_returned_context_is_waited_for() {
    let (bench, context) = visited("");
    bench.use_and_free(0, 1, MIB);
    bench.app(|machine| machine.context_destroy(context)).unwrap();
    let block = bench.get(MIB, None);
    bench.put(block, None);
    // The pool has forgotten the context by now.
    bench.allocator.trim(Some(0), 0).unwrap();
    let block = bench.get(64 * MIB, None);
    assert_eq!(
        bench.app(|machine| machine.context_create(0)),
        Ok(context),
        "it comes back"
    );
    freed_there_is_not_handed_out_early(bench, block, 0, pop);
}

/// The driver answers no query about a context while a block is freed in it. Reclamation waits for that context's work
/// nevertheless.
#[test]
fn free_in_a_context_that_does_not_answer_is_waited_for() {
    let (bench, _) = visited("");
    let stream = bench.stream();
    let block = bench.get(64 * MIB, None);
    bench.machine.fail_every(Some("cuCtxGetId"), 1, 999);
    freed_there_is_not_handed_out_early(bench, block, stream, |bench| {
        bench.machine.clear_failures();
        pop(bench);
    });
}

/// A stream frees blocks of two devices' pools: each pool notes the context of the free.
#[test]
fn context_of_frees_is_known_to_each_pool() {
    let config = SimConfig {
        devices: 2,
        ..SimConfig::default()
    };
    let bench = Bench::on(config, "limit=64MiB,wait_ms=1,peers=0:1");
    let far = || {
        bench.allocator.allocate(Request {
            size: 64 * MIB,
            alignment: 0,
            flags: 0,
            stream: None,
            device: Some(1),
        })
    };
    let context = bench.app(|machine| machine.context_create(0)).unwrap();
    pop(&bench);
    let first = bench.stream();
    let (near, block) = (bench.get(MIB, Some(first)), far().unwrap());
    bench.app(|machine| machine.stream_destroy(first)).unwrap();
    bench.app(|machine| machine.context_push(context)).unwrap();
    let second = bench.stream();
    assert_eq!(first, second, "the handle comes back");
    bench.put(near, Some(second));
    let kernel = bench
        .app(|machine| machine.launch_persistent(second, &[(block, 64 * MIB)]))
        .unwrap();
    bench.allocator.deallocate(block, Some(Stream(second))).unwrap();
    pop(&bench);
    assert!(far().is_err(), "the work on the block is not over");
    assert!(bench.machine.release_persistent(kernel));
    bench.app(|machine| machine.stream_synchronize(second)).unwrap();
    bench.finish();
}

/// A driver may have no events for a context, as for a feature that a device does not support: what was freed without a
/// stream comes back all the same.
#[test]
fn context_without_events_is_synchronized() {
    for limit in [64, 0] {
        let bench = Bench::new(&format!("limit={limit}MiB,wait_ms=1000"));
        let stream = bench.stream();
        assert!(bench.machine.fail_every(Some("cuCtxRecordEvent"), 1, 801));
        for _ in 0..20 {
            let block = bench.get(60 * MIB, None);
            bench.launch(stream, block, 60 * MIB);
            bench.put(block, None);
        }
        bench.allocator.trim(Some(0), 0).unwrap();
        bench.finish();
    }
}

/// The block of all memory was freed, and its graph is gone. No request gets its memory before the kernel has ended.
fn ends_with_its_work(bench: &Bench, kernel: u64, what: &str) {
    bench.machine.advance(1_000_000);
    bench.machine.drain_user_objects();
    for _ in 0..3 {
        let early = bench.request(64 * MIB, 0, None);
        assert_eq!(bench.wrong(), Vec::<String>::new(), "{what}");
        assert!(early.is_err(), "{what}: the work on the block is not over");
    }
    assert!(bench.machine.release_persistent(kernel));
}

/// A block that was allocated in a capture waits for its graph, and for the context of its free, too.
#[test]
fn block_of_a_graph_waits_for_the_context_that_frees_it() {
    for (version, options) in [
        (12_090, ""),
        (12_090, ",guard=1"),
        (12_040, ""),
        (11_080, ""),
        (11_080, ",guard=1"),
    ] {
        for named in [false, true] {
            let what = format!("CUDA {version}{options}, {named}");
            let config = SimConfig {
                version,
                ..SimConfig::default()
            };
            let bench = Bench::on(config, &format!("limit=64MiB,wait_ms=1{options}"));
            let stream = bench.stream();
            let block = {
                bench
                    .app(|machine| machine.stream_begin_capture(stream, MODE_RELAXED))
                    .unwrap();
                bench.get(64 * MIB, Some(stream))
            };
            let graph = bench.app(|machine| machine.stream_end_capture(stream)).unwrap();
            // Another context, whose only call of the allocator is the free.
            bench.app(|machine| machine.context_create(0)).unwrap();
            let other = bench.stream();
            let kernel = bench
                .app(|machine| machine.launch_persistent(other, &[(block, 64 * MIB)]))
                .unwrap();
            bench.put(block, named.then_some(other));
            pop(&bench);
            bench.app(|machine| machine.graph_destroy(graph)).unwrap();
            ends_with_its_work(&bench, kernel, &what);
            bench.finish_of(&what);
        }
    }
}

/// The free names the stream that the block was allocated on, so the stream need not exist.
#[test]
fn stream_that_only_captured_may_be_gone_before_its_blocks_are_freed() {
    for options in ["", "guard=1"] {
        for graph_first in [true, false] {
            let bench = Bench::new(options);
            let stream = bench.stream();
            bench
                .app(|machine| machine.stream_begin_capture(stream, MODE_RELAXED))
                .unwrap();
            let block = bench.get(MIB, Some(stream));
            let graph = bench.app(|machine| machine.stream_end_capture(stream)).unwrap();
            let end_graph = || {
                bench.app(|machine| machine.graph_destroy(graph)).unwrap();
                bench.machine.advance(1_000_000);
                bench.machine.drain_user_objects();
            };
            if graph_first {
                end_graph();
            }
            bench.app(|machine| machine.stream_destroy(stream)).unwrap();
            bench.put(block, Some(stream));
            if !graph_first {
                end_graph();
            }
            bench.finish();
        }
    }
}

/// Without ids, the freeing stream exists, and its context counts whichever is current, also for a declared block and for one of
/// a graph.
#[test]
fn stream_of_an_unknown_context_is_waited_for_without_ids() {
    for options in ["", ",guard=1"] {
        for captured in [false, true] {
            let what = format!("{options}, {captured}");
            let config = SimConfig {
                version: 11_080,
                ..SimConfig::default()
            };
            let bench = Bench::on(config, &format!("limit=64MiB,wait_ms=1{options}"));
            let [stream, declared] = [bench.stream(), bench.stream()];
            let begin = |machine: &Machine| machine.stream_begin_capture(stream, MODE_RELAXED);
            captured.then(|| bench.app(begin).unwrap());
            let block = bench.get(64 * MIB, Some(stream));
            let graph = captured.then(|| bench.app(|machine| machine.stream_end_capture(stream)).unwrap());
            bench.allocator.record_stream(block, Stream(declared)).unwrap();
            bench.app(|machine| machine.context_create(0)).unwrap();
            let other = bench.stream();
            let kernel = bench
                .app(|machine| machine.launch_persistent(other, &[(block, 64 * MIB)]))
                .unwrap();
            pop(&bench);
            bench.put(block, Some(other));
            if let Some(graph) = graph {
                bench.app(|machine| machine.graph_destroy(graph)).unwrap();
            }
            ends_with_its_work(&bench, kernel, &what);
            bench.finish_of(&what);
        }
    }
}

/// A block of a graph is freed on a stream of a context that the pool does not know, while another context is current. The
/// graph goes, and a kernel of that stream still uses the block.
#[test]
fn free_of_a_graphs_block_waits_for_its_streams_context() {
    for (options, flags) in [("guard=1", 0), ("", 0), ("", RESIZABLE)] {
        let bench = Bench::new(options);
        let captured = bench.stream();
        bench
            .app(|machine| machine.stream_begin_capture(captured, MODE_RELAXED))
            .unwrap();
        let block = bench.request(MIB, flags, Some(captured)).unwrap();
        let graph = bench.app(|machine| machine.stream_end_capture(captured)).unwrap();
        let (stream, kernel) = bench.app(|machine| {
            let context = machine.context_create(0).unwrap();
            let stream = machine.stream_create(true).unwrap();
            let kernel = machine.launch_persistent(stream, &[(block, MIB)]).unwrap();
            assert_eq!(machine.context_pop().unwrap(), context);
            (stream, kernel)
        });
        bench.put(block, Some(stream));
        bench.app(|machine| machine.graph_destroy(graph)).unwrap();
        let others: Vec<u64> = (0..4).map(|_| bench.request(MIB, flags, None).unwrap()).collect();
        assert!(
            !others.contains(&block),
            "{options:?}, flags {flags}: the kernel uses it"
        );
        bench.allocator.trim(Some(0), 0).unwrap();
        assert_eq!(bench.wrong(), Vec::<String>::new(), "{options:?}, flags {flags}");
        assert!(bench.machine.release_persistent(kernel));
        others.into_iter().for_each(|block| bench.put(block, None));
        bench.finish();
    }
}
