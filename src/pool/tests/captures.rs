//! Frees without a stream: they only file their block, and what is filed comes back without a capture that ends.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::returns::while_waiting;
use super::{Bench, MIB, RESIZABLE};
use crate::allocator::{Allocator, Request};
use crate::driver::Stream;
use crate::driver::sim::SimConfig;
use crate::driver::sim::model::capture::{MODE_GLOBAL, MODE_RELAXED, MODE_THREAD_LOCAL};
use crate::support::config::Config;
use crate::support::error::Error;

const PLAIN: Request = Request {
    size: 0,
    alignment: 0,
    flags: 0,
    stream: None,
    device: None,
};

/// Begins a capture on a non-blocking stream, which no query of another stream shows.
fn begin(bench: &Bench) -> usize {
    let stream = bench.stream();
    bench
        .app(|machine| machine.stream_begin_capture(stream, MODE_RELAXED))
        .unwrap();
    stream
}

/// Whether the capture was not ended before.
fn end(bench: &Bench, stream: usize) -> bool {
    let graph = bench.app(|machine| machine.stream_end_capture(stream));
    let graph = graph.map(|graph| bench.app(|machine| machine.graph_destroy(graph)).unwrap());
    bench.app(|machine| machine.stream_destroy(stream)).unwrap();
    graph.is_ok()
}

fn pair(allocator: &Allocator, size: u64) {
    let block = allocator.allocate(Request { size, ..PLAIN }).unwrap();
    allocator.deallocate(block, None).unwrap();
}

#[test]
fn free_makes_no_call_that_submits() {
    let calls = |bench: &Bench| bench.allocator.stats(Some(0)).unwrap().driver_calls;
    for (options, size, submits) in [
        ("", 4 << 10, false),
        ("", 16 * MIB, false),
        // It goes back to the driver at once, unless that may end a capture.
        ("", 64 * MIB, true),
        ("captures=1", 64 * MIB, false),
        ("release_threshold=0", MIB, true),
        ("release_threshold=0,captures=1", MIB, false),
        // Memory is short: the next request covers it.
        ("limit=32MiB", 31 * MIB, false),
    ] {
        let bench = Bench::new(options);
        let block = bench.get(size, None);
        let before = calls(&bench);
        bench.put(block, None);
        assert_eq!(calls(&bench) > before, submits, "{options}, {size} bytes");
        bench.finish();
    }
}

#[test]
fn request_that_waits_covers_what_other_threads_file() {
    let bench = Bench::new("limit=64MiB,wait_ms=1000,captures=1");
    let stream = bench.stream();
    bench.use_and_free(stream, 1, 30 * MIB);
    let held = bench.get(30 * MIB, None);
    let checked = bench.machine.clone();
    let done = while_waiting(&bench, move |_, allocator| {
        checked.checker().give_back(held, None);
        allocator.deallocate(held, None).unwrap();
    });
    let block = bench.get(60 * MIB, None);
    assert!(done.load(Relaxed), "it waits");
    bench.machine.clear_failures();
    bench.put(block, None);
    bench.finish();
}

/// Requests on a stream cover it, too: they need it before the pool grows.
#[test]
fn blocks_of_a_stream_freed_without_it_hold_little_more_than_is_needed() {
    let bench = Bench::new("");
    let stream = bench.stream();
    for _ in 0..200 {
        let block = bench.get(MIB, Some(stream));
        bench.put(block, None);
    }
    let reserved = bench.allocator.stats(Some(0)).unwrap().reserved;
    assert!(reserved <= 40 * MIB, "{} MiB", reserved / MIB);
    bench.finish();
}

/// What a shrink left over is not covered for a growth while the limit is far.
#[test]
fn growth_ends_no_declared_capture() {
    let bench = Bench::new("captures=1");
    let other = bench.stream();
    let [large, small] = [400 * MIB, 2 * MIB].map(|size| bench.request(size, RESIZABLE, Some(other)).unwrap());
    bench.resize(large, 400 * MIB, 4 * MIB).unwrap();
    let stream = begin(&bench);
    let grown = bench.resize(small, 2 * MIB, 300 * MIB).unwrap();
    assert!(end(&bench, stream));
    for block in [large, grown] {
        bench.put(block, Some(other));
    }
    bench.finish();
}

/// One allocator sees a capture, and the other one spares captures from then on.
#[test]
fn capture_that_one_allocator_saw_is_known_to_all() {
    for sees in [true, false] {
        let bench = Bench::new("");
        let other = Allocator::with_driver(bench.allocator.driver().clone(), Config::default()).unwrap();
        let stream = begin(&bench);
        let inside = sees.then(|| bench.get(MIB, Some(stream)));
        (0..100).for_each(|_| pair(&other, MIB));
        assert_eq!(end(&bench, stream), sees);
        inside.into_iter().for_each(|inside| bench.put(inside, None));
        bench.machine.drain_user_objects();
        other.close();
        bench.finish();
    }
}

/// A context event that the driver refuses shows that the process captures.
#[test]
fn second_capture_is_spared_without_a_request_inside() {
    let bench = Bench::new("");
    for spared in [false, true] {
        let stream = begin(&bench);
        (0..100).for_each(|_| pair(&bench.allocator, MIB));
        assert_eq!(end(&bench, stream), spared);
    }
    // At the limit, what was filed meanwhile comes back.
    let reserved = bench.allocator.stats(Some(0)).unwrap().reserved;
    assert!(reserved > 100 * MIB, "{reserved} bytes");
    bench.allocator.set_limit(Some(0), reserved).unwrap();
    let block = bench.get(reserved - 32 * MIB, None);
    bench.put(block, None);
    bench.finish();
}

/// A request that needs what is filed waits for a capture with a request inside it. It is refused where its wait is over
/// before it is known that the capture is, and a later request is not.
#[test]
fn request_at_the_limit_waits_for_a_capture_that_is_seen() {
    for (ends, filed) in [(true, true), (true, false), (false, true), (false, false)] {
        let bench = Arc::new(Bench::new("limit=64MiB,wait_ms=400"));
        let (stream, of) = (bench.stream(), Some(bench.stream()).filter(|_| !filed));
        let block = bench.get(62 * MIB, of);
        bench
            .app(|machine| machine.stream_begin_capture(stream, MODE_RELAXED))
            .unwrap();
        let inside = bench.get(MIB, Some(stream));
        let begun = std::time::Instant::now();
        bench.put(block, of);
        let other = bench.clone();
        let capturing = std::thread::spawn(move || {
            let context = other.app(|machine| machine.primary_retain(0)).unwrap();
            other.app(|machine| machine.context_push(context)).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(50));
            let graph = other.app(|machine| machine.stream_end_capture(stream)).unwrap();
            if ends {
                other.put(inside, Some(stream));
                let after = other.get(512, Some(stream));
                other.put(after, Some(stream));
            }
            other.app(|machine| machine.context_pop()).unwrap();
            graph
        });
        let outcome = bench.request(60 * MIB, 0, None);
        let waited = begun.elapsed().as_millis();
        assert!(waited >= if ends { 50 } else { 350 }, "{waited} ms");
        assert_eq!(outcome.is_ok(), ends, "{outcome:?}");
        let block = outcome.unwrap_or_else(|_| get_in_time(&bench, 60 * MIB));
        let graph = capturing.join().unwrap();
        bench.put(block, None);
        if !ends {
            bench.put(inside, Some(stream));
        }
        bench.app(|machine| machine.graph_destroy(graph)).unwrap();
        bench.app(|machine| machine.primary_release(0)).unwrap();
        Arc::into_inner(bench).unwrap().finish();
    }
}

/// A driver may end the capture of a stream that is asked for its id or its context. Whether it does or not, requests
/// inside a capture get memory, and what the graph leaves is its stream's again.
#[test]
fn capturing_stream_is_not_asked_who_it_is() {
    for ids_unsafe_in_capture in [true, false] {
        for (mode, flags) in [
            (MODE_GLOBAL, 0),
            (MODE_THREAD_LOCAL, 0),
            (MODE_RELAXED, 0),
            (MODE_GLOBAL, RESIZABLE),
        ] {
            let config = SimConfig {
                ids_unsafe_in_capture,
                ..SimConfig::default()
            };
            let bench = Bench::on(config, "");
            let stream = bench.stream();
            for known in [false, true] {
                bench.app(|machine| machine.stream_begin_capture(stream, mode)).unwrap();
                let inside = bench.request(3 * MIB, flags, Some(stream)).unwrap();
                let used = bench.get(MIB, None);
                bench.allocator.record_stream(used, Stream(stream)).unwrap();
                bench.launch(stream, inside, 3 * MIB);
                bench.put(inside, Some(stream));
                bench.put(used, Some(stream));
                bench.allocator.stream_release(Stream(stream)).unwrap();
                let graph = bench.app(|machine| machine.stream_end_capture(stream));
                let graph = graph.unwrap_or_else(|code| panic!("mode {mode}, known: {known}: ended with {code}"));
                bench.app(|machine| machine.graph_destroy(graph)).unwrap();
                bench.machine.drain_user_objects();
                // From the second round on, the stream is known before it captures.
                let after = bench.get(3 * MIB, Some(stream));
                bench.put(after, Some(stream));
            }
            assert_eq!(bench.machine.captures_ended(), 0);
            bench.finish();
        }
    }
}

/// The first request of an allocator may come inside a capture: the pool is made without an end to it.
#[test]
fn first_request_inside_a_capture_does_not_end_it() {
    for (options, of_stream) in [("", true), ("captures=1", false), ("limit=50%,captures=1", false)] {
        let bench = Bench::new(options);
        let stream = bench.stream();
        bench
            .app(|machine| machine.stream_begin_capture(stream, MODE_GLOBAL))
            .unwrap();
        let on = Some(stream).filter(|_| of_stream);
        let block = bench.get(MIB, on);
        bench.put(block, on);
        assert!(end(&bench, stream), "{options}");
        bench.machine.drain_user_objects();
        bench.finish();
    }
}

/// A close beside a global capture gives the primary context back, too.
#[test]
fn close_beside_a_capture_keeps_nothing() {
    let bench = Bench::new("captures=1");
    let stream = bench.stream();
    let block = bench.get(MIB, None);
    bench.put(block, None);
    bench.allocator.trim(Some(0), 0).unwrap();
    bench
        .app(|machine| machine.stream_begin_capture(stream, MODE_GLOBAL))
        .unwrap();
    bench.allocator.close();
    assert!(end(&bench, stream));
    bench.app(|machine| {
        machine.context_pop().unwrap();
        // The application's own retain was the last one.
        machine.primary_release(0).unwrap();
        assert_eq!(machine.primary_active(0), Ok(false));
    });
}

/// Requests beside another thread's global capture end it no more once a capture is known, though the driver counts ids
/// among the calls that are unsafe then.
#[test]
fn hits_end_no_global_capture_of_another_thread() {
    let bench = Bench::new("captures=1");
    let (capturing, stream) = (bench.stream(), bench.stream());
    bench.use_and_free(stream, 2, MIB);
    bench
        .app(|machine| machine.stream_begin_capture(capturing, MODE_GLOBAL))
        .unwrap();
    std::thread::scope(|threads| {
        let work = threads.spawn(|| {
            let context = bench.app(|machine| machine.primary_retain(0)).unwrap();
            bench.app(|machine| machine.context_push(context)).unwrap();
            for round in 0..40 {
                let on = [Some(stream), None, Some(0)][round % 3];
                let block = bench.get(MIB + (round as u64 % 5) * MIB, on);
                bench.put(block, on);
            }
            bench.app(|machine| machine.context_pop()).unwrap();
            bench.app(|machine| machine.primary_release(0)).unwrap();
        });
        work.join().unwrap();
    });
    assert!(end(&bench, capturing));
    bench.finish();
}

/// A default stream beside a capture on a blocking stream is unusable, and is not asked either.
#[test]
fn request_on_the_legacy_stream_ends_no_blocking_capture() {
    let bench = Bench::new("");
    let blocking = bench.app(|machine| machine.stream_create(false).unwrap());
    let before = bench.get(MIB, Some(0));
    bench
        .app(|machine| machine.stream_begin_capture(blocking, MODE_RELAXED))
        .unwrap();
    let during = bench.get(MIB, Some(0));
    bench.put(during, Some(0));
    bench.put(before, Some(0));
    let again = bench.get(MIB, Some(0));
    bench.put(again, Some(0));
    assert!(end(&bench, blocking));
    bench.finish();
}

/// Requests again and again until nothing counts as a capture that runs.
fn get_in_time(bench: &Bench, size: u64) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match bench.request(size, 0, None) {
            Ok(block) => return block,
            Err(_) => assert!(Instant::now() < deadline),
        }
    }
}

/// Begins a capture on a non-blocking stream, with a request inside it.
fn begin_with_a_request(bench: &Bench) -> (usize, u64) {
    let stream = begin(bench);
    (stream, bench.get(MIB, Some(stream)))
}

/// A resize that copies waits for all work, which ends captures. So it is refused beside one that is seen.
#[test]
fn resize_that_copies_ends_no_capture_that_is_seen() {
    for (version, options) in [
        (12_090, "backing=malloc"),
        (12_090, "passthrough=1"),
        (12_040, "backing=malloc"),
    ] {
        let config = SimConfig {
            version,
            ..SimConfig::default()
        };
        let bench = Bench::on(config, options);
        let block = bench.request(MIB, RESIZABLE, None).unwrap();
        // An allocator with `passthrough=1` serves no capture.
        let capturing = Allocator::with_driver(bench.allocator.driver().clone(), Config::default()).unwrap();
        let stream = begin(&bench);
        let of_stream = Request {
            size: MIB,
            stream: Some(Stream(stream)),
            ..PLAIN
        };
        let inside = capturing.allocate(of_stream).unwrap();
        let refused = bench.resize(block, MIB, 2 * MIB);
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{options}: {refused:?}");
        assert!(end(&bench, stream), "{options}");
        capturing.deallocate(inside, None).unwrap();
        bench.machine.drain_user_objects();
        capturing.close();
        let grown = bench.resize(block, MIB, 2 * MIB).unwrap();
        bench.put(grown, None);
        bench.finish();
    }
}

/// An allocator spares the captures in which another one has memory: it is closed, trimmed and limited, and refuses a
/// request, and its last block is freed after the close.
#[test]
fn capture_with_memory_of_another_allocator_is_not_ended() {
    type Call = fn(&Allocator, u64);
    let calls: [(&str, Call); 5] = [
        ("close", |other, block| {
            other.deallocate(block, None).unwrap();
            other.close();
        }),
        ("last free", |other, block| {
            other.close();
            other.deallocate(block, None).unwrap();
        }),
        ("trim", |other, block| {
            other.deallocate(block, None).unwrap();
            other.trim(Some(0), 0).unwrap();
        }),
        ("limit", |other, block| {
            other.deallocate(block, None).unwrap();
            other.set_limit(Some(0), MIB).unwrap();
        }),
        ("refusal", |other, block| {
            other.deallocate(block, None).unwrap();
            other.set_limit(Some(0), 33 * MIB).unwrap();
            assert!(
                other
                    .allocate(Request {
                        size: 20 * MIB,
                        ..PLAIN
                    })
                    .is_err()
            );
        }),
    ];
    for version in [12_090, 12_040] {
        for (name, call) in calls {
            let config = SimConfig {
                version,
                ..SimConfig::default()
            };
            let bench = Bench::on(config, "wait_ms=50");
            let config = Config::parse("wait_ms=50,decay_ms=0").unwrap();
            let other = Allocator::with_driver(bench.allocator.driver().clone(), config).unwrap();
            let block = other
                .allocate(Request {
                    size: 30 * MIB,
                    ..PLAIN
                })
                .unwrap();
            let (stream, inside) = begin_with_a_request(&bench);
            call(&other, block);
            assert!(end(&bench, stream), "{name}, CUDA {version}");
            bench.put(inside, None);
            bench.machine.drain_user_objects();
            other.close();
            bench.finish();
        }
    }
}

/// Calls that wait give up before a capture counts as over. Only time shows that a capture has ended whose stream makes
/// no request again.
#[test]
fn calls_that_wait_for_a_capture_give_up_first() {
    for version in [12_090, 12_040] {
        let config = SimConfig {
            version,
            ..SimConfig::default()
        };
        let bench = Bench::on(config, "limit=64MiB,wait_ms=100");
        let block = bench.get(60 * MIB, None);
        let (stream, inside) = begin_with_a_request(&bench);
        bench.put(block, None);
        // The waits together take much longer than one.
        for _ in 0..3 {
            let refused = bench.request(50 * MIB, 0, None);
            assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
            bench.allocator.trim(Some(0), 0).unwrap();
            bench.allocator.set_limit(Some(0), 40 * MIB).unwrap();
            bench.allocator.set_limit(Some(0), 64 * MIB).unwrap();
        }
        let graph = bench.app(|machine| machine.stream_end_capture(stream));
        let graph = graph.unwrap_or_else(|code| panic!("CUDA {version}: ended with {code}"));
        let block = get_in_time(&bench, 50 * MIB);
        bench.put(block, None);
        bench.put(inside, None);
        bench.app(|machine| machine.graph_destroy(graph)).unwrap();
        bench.machine.drain_user_objects();
        bench.finish();
    }
}

/// A trim has no urgency: it returns what it can have, and does not wait for a capture.
#[test]
fn trim_waits_for_no_capture() {
    let bench = Bench::new("wait_ms=60000");
    let [free, filed] = [100 * MIB, 30 * MIB].map(|size| bench.get(size, None));
    bench.put(free, None);
    bench.allocator.trim(Some(0), 0).unwrap();
    let begun = Instant::now();
    let (stream, inside) = begin_with_a_request(&bench);
    bench.put(filed, None);
    bench.allocator.trim(Some(0), 0).unwrap();
    bench.allocator.set_limit(Some(0), MIB).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30));
    bench.allocator.set_limit(Some(0), 0).unwrap();
    assert!(end(&bench, stream));
    bench.put(inside, None);
    bench.machine.drain_user_objects();
    bench.finish();
}

/// The pool numbers captures, 0 means none, and the graph of an early one may outlive as many captures as there are
/// numbers.
#[test]
fn capture_numbers_start_again_without_those_in_use() {
    let bench = Bench::new("");
    let capture = |size: u64| {
        let stream = begin(&bench);
        let block = bench.get(size, Some(stream));
        let graph = bench.app(|machine| machine.stream_end_capture(stream)).unwrap();
        (stream, block, graph)
    };
    let first = capture(MIB);
    bench.allocator.pool_of(0).core.lock().reclaimer.graphs.numbers = u32::MAX;
    // A graph that stays keeps what was freed outside of it.
    let second = capture(2 * MIB);
    for (_, block, _) in [first, second] {
        bench.put(block, None);
    }
    let others = [MIB, 2 * MIB].map(|size| bench.get(size, None));
    assert!(!others.contains(&first.1) && !others.contains(&second.1));
    bench.app(|machine| machine.graph_destroy(second.2)).unwrap();
    bench.machine.drain_user_objects();
    // The first graph still has its block.
    let again = bench.get(MIB, None);
    assert_ne!(again, first.1);
    others
        .into_iter()
        .chain([again])
        .for_each(|block| bench.put(block, None));
    bench.app(|machine| machine.graph_destroy(first.2)).unwrap();
    for (stream, ..) in [first, second] {
        bench.app(|machine| machine.stream_destroy(stream)).unwrap();
    }
    bench.finish();
}
