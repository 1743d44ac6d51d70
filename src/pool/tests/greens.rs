//! Green contexts: CUDA allows one in one thread at a time, and events of the primary context cover its work.

use std::sync::mpsc::channel;

use super::{Bench, MIB, RESIZABLE};
use crate::allocator::Allocator;
use crate::driver::sim::model::capture::MODE_RELAXED;
use crate::driver::sim::{SimConfig, SimDriver};
use crate::support::config::Config;
use crate::sync::breaking;

fn green(bench: &Bench) -> usize {
    bench.app(|machine| machine.green_context_create(0).unwrap())
}

fn push(bench: &Bench, context: usize) {
    bench.app(|machine| machine.context_push(context).unwrap());
}

fn pop(bench: &Bench) {
    bench.app(|machine| machine.context_pop().unwrap());
}

/// Runs `work` in a thread that has the context current, and `then` in this thread while it still has.
fn beside<T: Send>(bench: &Bench, context: usize, work: impl FnOnce(&Bench) -> T + Send, then: impl FnOnce(T)) {
    std::thread::scope(|scope| {
        let (sender, receiver) = channel();
        let (over, waits) = channel::<()>();
        scope.spawn(move || {
            push(bench, context);
            sender.send(work(bench)).unwrap();
            let _ = waits.recv();
            pop(bench);
        });
        then(receiver.recv().unwrap());
        drop(over);
    });
}

/// The green context stays current to the thread whose work the pool waits for.
#[test]
fn green_context_of_another_thread_is_left_alone() {
    for options in ["limit=64MiB", "limit=64MiB,backing=malloc", "limit=64MiB,passthrough=1"] {
        for (default_stream, green_ids_refused) in [(false, false), (true, false), (false, true), (true, true)] {
            let config = SimConfig {
                green_ids_refused,
                ..SimConfig::default()
            };
            let bench = Bench::on(config, options);
            let context = green(&bench);
            let work = |bench: &Bench| {
                let stream = if default_stream { 0 } else { bench.stream() };
                let block = bench.get(48 * MIB, None);
                bench.launch(stream, block, 48 * MIB);
                bench.put(block, None);
                let own = bench.get(MIB, Some(stream));
                bench.launch(stream, own, MIB);
                bench.put(own, Some(stream));
            };
            beside(&bench, context, work, |()| {
                // This needs what the other thread has freed.
                let block = bench.get(60 * MIB, None);
                assert_eq!(
                    bench.wrong(),
                    Vec::<String>::new(),
                    "{options} {default_stream} {green_ids_refused}"
                );
                bench.put(block, None);
                bench.allocator.trim(Some(0), 0).unwrap();
                assert_eq!(
                    bench.wrong(),
                    Vec::<String>::new(),
                    "{options} {default_stream} {green_ids_refused}"
                );
            });
            bench.finish();
        }
    }
}

/// What a stream of a green context has freed serves others behind its completion event, which is the primary context's.
#[test]
fn completion_events_cover_streams_of_green_contexts() {
    let bench = Bench::new("limit=64MiB,wait_ms=5");
    let context = green(&bench);
    push(&bench, context);
    let stream = bench.stream();
    let block = bench.get(48 * MIB, Some(stream));
    bench.put(block, Some(stream));
    pop(&bench);
    let other = bench.stream();
    // Memory is short, so the stream's next call covers what it has freed.
    let first = bench.get(60 * MIB, Some(other));
    bench.put(first, Some(other));
    let block = bench.get(48 * MIB, Some(stream));
    let kernel = bench.app(|machine| machine.launch_persistent(stream, &[(block, 48 * MIB)]).unwrap());
    bench.put(block, Some(stream));
    bench.allocator.stream_release(crate::driver::Stream(stream)).unwrap();
    assert!(bench.request(48 * MIB, 0, None).is_err(), "its work is not over");
    let moved = bench.get(48 * MIB, Some(other));
    bench.launch(other, moved, 48 * MIB);
    bench.put(moved, Some(other));
    assert!(bench.machine.release_persistent(kernel));
    bench.finish();
}

/// A driver may not let an event of the primary context be recorded there. Then a context event covers the frees.
#[test]
fn refused_completion_event_of_a_green_context_loses_nothing() {
    let bench = Bench::new("limit=64MiB");
    let context = green(&bench);
    push(&bench, context);
    let stream = bench.stream();
    bench.machine.fail_every(Some("cuEventRecord"), 1, 400);
    for _ in 0..4 {
        bench.use_and_free(stream, 4, 8 * MIB);
    }
    pop(&bench);
    let block = bench.get(60 * MIB, None);
    bench.put(block, None);
    let other = bench.stream();
    bench.use_and_free(other, 4, 8 * MIB);
    bench.machine.clear_failures();
    bench.finish();
}

/// PyTorch captures the default stream of a green context. A stream that captures cannot be asked for its context.
#[test]
fn capture_of_a_green_contexts_default_stream() {
    for known in [false, true] {
        let bench = Bench::new("limit=64MiB");
        let context = green(&bench);
        let work = |bench: &Bench| {
            if known {
                let block = bench.get(MIB, Some(0));
                bench.put(block, Some(0));
            }
            bench.app(|machine| machine.stream_begin_capture(0, MODE_RELAXED).unwrap());
            let block = bench.get(4 * MIB, Some(0));
            bench.launch(0, block, 4 * MIB);
            bench.put(block, Some(0));
            let graph = bench.app(|machine| machine.stream_end_capture(0).unwrap());
            bench.app(|machine| machine.graph_destroy(graph).unwrap());
            bench.machine.drain_user_objects();
        };
        beside(&bench, context, work, |()| {
            let block = bench.get(40 * MIB, None);
            bench.put(block, None);
            let block = bench.get(60 * MIB, None);
            bench.put(block, None);
            assert_eq!(bench.wrong(), Vec::<String>::new());
        });
        bench.finish();
    }
}

/// The handle of a green context that was destroyed comes back as an ordinary context's, whose work counts.
#[test]
fn context_at_the_handle_of_a_green_one_counts() {
    for stream in [None, Some(0)] {
        let bench = Bench::new("limit=64MiB,wait_ms=5");
        let gone = green(&bench);
        push(&bench, gone);
        for _ in 0..2 {
            let block = bench.get(MIB, stream);
            bench.put(block, stream);
        }
        pop(&bench);
        let block = bench.get(48 * MIB, None);
        bench.app(|machine| machine.context_destroy(gone).unwrap());
        let born = bench.app(|machine| machine.context_create(0).unwrap());
        assert_eq!(born, gone, "the handle comes back");
        let kernel = bench.app(|machine| machine.launch_persistent(0, &[(block, 48 * MIB)]).unwrap());
        bench.put(block, stream);
        pop(&bench);
        assert!(bench.request(48 * MIB, 0, None).is_err(), "its work is not over");
        assert_eq!(bench.wrong(), Vec::<String>::new());
        assert!(bench.machine.release_persistent(kernel));
        bench.app(|machine| machine.context_destroy(born).unwrap());
        bench.finish();
    }
}

/// As `block_waits_again_after_its_context_is_destroyed`: a green context is destroyed alone, and a wait may go with it.
#[test]
fn green_context_takes_nothing_behind_an_event() {
    for flags in [0, RESIZABLE] {
        let (bench, kernel, own) = moved_to_a_green_context(flags);
        assert_eq!(bench.wrong(), Vec::<String>::new(), "{flags}");
        assert!(bench.machine.release_persistent(kernel));
        bench.put(own, None);
        bench.finish();
    }
    let (bench, ..) = breaking("a green context takes nothing behind an event", || {
        moved_to_a_green_context(0)
    });
    assert!(!bench.wrong().is_empty(), "the order checker noticed nothing");
}

fn moved_to_a_green_context(flags: u32) -> (Bench, u64, u64) {
    let bench = Bench::new("limit=64MiB,wait_ms=5");
    let (first, heir) = (bench.stream(), bench.stream());
    let own = bench.get(MIB, Some(heir));
    let block = bench.get(48 * MIB, Some(first));
    let kernel = bench.app(|machine| machine.launch_persistent(first, &[(block, 48 * MIB)]).unwrap());
    bench.put(block, Some(first));
    assert!(bench.request(48 * MIB, 0, Some(heir)).is_err());
    let small = bench.get(512, Some(first));
    bench.put(small, Some(first));
    let context = green(&bench);
    push(&bench, context);
    let visitor = bench.stream();
    let moved = bench.request(48 * MIB, flags, Some(visitor));
    pop(&bench);
    bench.app(|machine| machine.context_destroy(context).unwrap());
    if let Ok(block) = moved {
        bench.put(block, Some(heir));
        let _ = bench.request(48 * MIB, flags, Some(heir));
    }
    (bench, kernel, own)
}

/// A resize that copies does so in the context that is current.
#[test]
fn resize_that_copies_in_a_green_context() {
    let bench = Bench::new("backing=malloc");
    let context = green(&bench);
    push(&bench, context);
    let mut block = bench.request(MIB, RESIZABLE, None).unwrap();
    let mut size = MIB;
    for _ in 0..4 {
        block = bench.resize(block, size, 2 * size).unwrap();
        size *= 2;
    }
    assert!(bench.machine.count("cuEventCreate") <= 2, "{:?}", bench.machine.calls());
    bench.put(block, None);
    pop(&bench);
    bench.finish();
}

/// While a blocking stream captures, a query of the default stream would end that. The pool knows the context from before.
#[test]
fn green_context_is_known_while_its_default_stream_cannot_be_queried() {
    let bench = Bench::new("limit=64MiB");
    let context = green(&bench);
    let work = |bench: &Bench| {
        let block = bench.get(MIB, None);
        bench.put(block, None);
        let stream = bench.app(|machine| machine.stream_create(false).unwrap());
        bench.app(|machine| machine.stream_begin_capture(stream, MODE_RELAXED).unwrap());
        let block = bench.get(MIB, None);
        bench.put(block, None);
        let graph = bench.app(|machine| machine.stream_end_capture(stream).unwrap());
        bench.app(|machine| machine.graph_destroy(graph).unwrap());
    };
    beside(&bench, context, work, |()| {
        let block = bench.get(60 * MIB, None);
        bench.put(block, None);
        let block = bench.get(64 * MIB, None);
        bench.put(block, None);
        assert_eq!(bench.wrong(), Vec::<String>::new());
    });
    bench.finish();
}

/// A context whose id is refused to a free counts nevertheless. Here it is a green one, and stays current to its thread.
#[test]
fn green_context_whose_id_was_refused_is_left_alone() {
    for stream in [None, Some(0)] {
        for failing in [&["cuCtxGetId"][..], &["cuCtxGetId", "cuStreamGetCtx"]] {
            let bench = Bench::new("limit=64MiB,wait_ms=5");
            let block = bench.get(48 * MIB, None);
            let context = green(&bench);
            let free = |bench: &Bench| {
                for call in failing {
                    assert!(bench.machine.fail_every(Some(call), 1, 999));
                }
                bench.put(block, stream);
                bench.machine.clear_failures();
            };
            beside(&bench, context, free, |()| {
                let served = bench.request(60 * MIB, 0, None);
                assert_eq!(bench.wrong(), Vec::<String>::new(), "{stream:?} {failing:?}");
                served.into_iter().for_each(|block| bench.put(block, None));
            });
            // It is not current to any thread by now, and the application is done with it.
            bench.app(|machine| machine.context_destroy(context).unwrap());
            bench.use_and_free(bench.stream(), 1, 60 * MIB);
            bench.finish();
        }
    }
}

/// The handle of a context that was destroyed comes back as a green context's. The pool has seen green contexts before.
#[test]
fn green_context_at_the_handle_of_another_is_left_alone() {
    let bench = Bench::new("limit=64MiB,wait_ms=5");
    let first = green(&bench);
    push(&bench, first);
    let block = bench.get(MIB, None);
    bench.put(block, None);
    pop(&bench);
    let gone = bench.app(|machine| machine.context_create(0).unwrap());
    let block = bench.get(48 * MIB, None);
    bench.app(|machine| machine.context_destroy(gone).unwrap());
    let born = green(&bench);
    assert_eq!(born, gone, "the handle comes back");
    beside(
        &bench,
        born,
        |_| (),
        |()| {
            bench.put(block, None);
            let served = bench.request(60 * MIB, 0, None);
            bench.allocator.trim(Some(0), 0).unwrap();
            assert_eq!(bench.wrong(), Vec::<String>::new());
            served.into_iter().for_each(|block| bench.put(block, None));
        },
    );
    push(&bench, born);
    let block = bench.get(MIB, None);
    bench.put(block, None);
    pop(&bench);
    bench.use_and_free(bench.stream(), 1, 60 * MIB);
    bench.finish();
}

/// The primary context ends with the last green context, and comes back at its handle while no thread has it current. It is no green
/// one, so its events cover what waits for all contexts.
#[test]
fn primary_context_that_came_back_is_covered() {
    let driver = SimDriver::new(SimConfig::default());
    let machine = driver.machine().clone();
    machine.context_create(0).unwrap();
    let config = Config::parse("limit=64MiB,wait_ms=5").unwrap();
    let bench = Bench {
        allocator: Allocator::with_driver(driver, config).unwrap(),
        machine,
    };
    // The pool's own context is the application's.
    let block = bench.get(MIB, None);
    bench.put(block, None);
    let context = green(&bench);
    push(&bench, context);
    let block = bench.get(48 * MIB, None);
    bench.put(block, None);
    bench.app(|machine| machine.context_destroy(context).unwrap());
    assert_eq!(bench.app(|machine| machine.primary_active(0)), Ok(false));
    bench.app(|machine| machine.primary_retain(0).unwrap());
    for size in [60 * MIB, 64 * MIB] {
        let block = bench.get(size, None);
        bench.put(block, None);
    }
    bench.allocator.trim(Some(0), 0).unwrap();
    let stats = bench.allocator.stats(Some(0)).unwrap();
    assert_eq!((stats.reserved, stats.pending), (0, 0));
    assert_eq!(bench.wrong(), Vec::<String>::new());
}
