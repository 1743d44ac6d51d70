//! Streams and contexts that are destroyed while memory is in use, cached or pending.

use super::{Bench, MIB, RESIZABLE};
use crate::driver::sim::SimConfig;
use crate::driver::{Context, DriverError, Failure, Stream};
use crate::error::Error;

/// Destroys a stream with work pending, and creates one that gets its handle.
fn reborn(bench: &Bench, dying: usize) -> usize {
    bench.app(|machine| machine.stream_destroy(dying)).unwrap();
    let born = bench.stream();
    assert_eq!(born, dying, "the handle comes back");
    born
}

#[test]
fn releasing_a_handle_says_nothing_of_the_stream_that_had_it_before() {
    let bench = Bench::new("limit=64MiB,wait_ms=1");
    let dying = bench.stream();
    let kernel = bench.app(|machine| machine.launch_persistent(dying, &[])).unwrap();
    bench.use_and_free(dying, 1, 64 * MIB);
    let born = reborn(&bench, dying);
    bench.allocator.stream_release(Stream(born)).unwrap();
    let other = bench.stream();
    for stream in [None, Some(other), Some(born)] {
        assert!(
            bench.request(64 * MIB, 0, stream).is_err(),
            "the dead stream's work is not over"
        );
    }
    assert!(bench.machine.release_persistent(kernel));
    bench.finish();
}

#[test]
fn freed_on_a_handle_that_came_back() {
    for flags in [0, RESIZABLE] {
        let bench = Bench::new("");
        let dying = bench.stream();
        let kernel = bench.app(|machine| machine.launch_persistent(dying, &[])).unwrap();
        let block = bench.request(4 * MIB, flags, Some(dying)).unwrap();
        bench.launch(dying, block, 4 * MIB);
        // The owner has ordered the new stream behind the old one, so this free is correct.
        let event = bench.app(|machine| {
            let event = machine.event_create().unwrap();
            machine.event_record(event, dying).unwrap();
            event
        });
        let born = reborn(&bench, dying);
        bench.app(|machine| machine.stream_wait_event(born, event)).unwrap();
        bench.put(block, Some(born));
        for round in 0..40 {
            let block = bench.request((round % 4 + 1) * MIB, flags, Some(born)).unwrap();
            bench.launch(born, block, MIB);
            bench.put(block, Some(born));
        }
        let other = bench.stream();
        let elsewhere = bench.request(4 * MIB, flags, Some(other)).unwrap();
        bench.put(elsewhere, Some(other));
        assert!(bench.machine.release_persistent(kernel));
        bench.finish();
    }
}

#[test]
fn freed_on_a_stream_that_is_gone() {
    let bench = Bench::new("");
    let dying = bench.stream();
    let blocks: Vec<u64> = (0..100).map(|_| bench.get(MIB, Some(dying))).collect();
    let special = bench.request(3 * MIB, RESIZABLE, Some(dying)).unwrap();
    bench.launch(dying, special, 3 * MIB);
    bench.app(|machine| machine.stream_destroy(dying)).unwrap();
    // However many there are, the pool never passes the dead handle to the driver.
    for block in blocks.iter().skip(10).chain([&special]) {
        bench.put(*block, Some(dying));
    }
    blocks[..10].iter().for_each(|block| bench.put(*block, None));
    let stream = bench.stream();
    let block = bench.get(64 * MIB, Some(stream));
    bench.put(block, Some(stream));
    bench.finish();
}

#[test]
fn a_context_that_goes_with_its_streams() {
    let bench = Bench::new("limit=128MiB");
    let first = bench.stream();
    let near = bench.use_and_free(first, 4, 8 * MIB);
    assert_eq!(near.len(), 4);
    let context = bench.app(|machine| machine.context_create(0)).unwrap();
    let second = bench.stream();
    let kept = bench.get(8 * MIB, Some(second));
    let special = bench.request(8 * MIB, RESIZABLE, Some(second)).unwrap();
    bench.use_and_free(second, 8, 4 * MIB);
    bench.launch(second, kept, 8 * MIB);
    let plain = bench.get(8 * MIB, None);
    bench.put(plain, None);
    bench.app(|machine| machine.context_destroy(context)).unwrap();
    // What was allocated there is memory like any other.
    bench.launch(first, kept, 8 * MIB);
    bench.put(kept, Some(first));
    bench.put(special, None);
    let all = bench.get(120 * MIB, None);
    bench.put(all, None);
    bench.finish();
}

/// A pool that was used by a context that is destroyed, with that context and the error that a wait for it returns.
fn destroyed(version: u32) -> (Bench, Context, DriverError) {
    let config = SimConfig {
        version,
        ..SimConfig::default()
    };
    let bench = Bench::on(config, "");
    let gone = bench.app(|machine| machine.context_create(0)).unwrap();
    let block = bench.get(MIB, None);
    bench.put(block, None);
    bench.app(|machine| machine.context_destroy(gone)).unwrap();
    let error = DriverError {
        call: "cuCtxPushCurrent",
        code: 700,
        failure: Failure::ContextDead,
    };
    (bench, Context(gone), error)
}

#[test]
fn a_context_that_two_wait_for_is_gone_once() {
    let (bench, gone, error) = destroyed(11_020);
    let pool = bench.allocator.pool_of(0);
    for who in ["the first", "the second"] {
        let outcome = pool.context_failed(&mut pool.core.lock(), gone, error);
        assert!(outcome.is_ok(), "{who}: {outcome:?}");
    }
    let block = bench.get(MIB, None);
    bench.put(block, None);
    bench.finish();
}

#[test]
fn a_context_that_may_be_gone_is_nothing_to_die_of() {
    for (version, question) in [(11_020, "cuCtxPushCurrent"), (12_090, "cuCtxGetId")] {
        let (bench, gone, error) = destroyed(version);
        let pool = bench.allocator.pool_of(0);
        bench.machine.fail_every(Some(question), 1, 999);
        let outcome = pool.context_failed(&mut pool.core.lock(), gone, error);
        assert!(matches!(outcome, Err(Error::Driver(_))), "{outcome:?}");
        pool.stream_failed(gone, error);
        bench.machine.clear_failures();
        let block = bench.get(MIB, None);
        bench.put(block, None);
        bench.finish();
    }
}

#[test]
fn a_question_that_fails_once_does_not_kill_the_pool() {
    // The pool queries its home, then each context that has used it, then this context again.
    for failing in 1..=4 {
        let (bench, gone, error) = destroyed(12_090);
        let pool = bench.allocator.pool_of(0);
        bench.machine.fail_nth(Some("cuCtxGetId"), failing, 999);
        let outcome = pool.context_failed(&mut pool.core.lock(), gone, error);
        assert!(!matches!(outcome, Err(Error::Dead(_))), "{failing}: {outcome:?}");
        bench.machine.clear_failures();
        let (other, gone, error) = destroyed(12_090);
        let pool = other.allocator.pool_of(0);
        other.machine.fail_nth(Some("cuCtxGetId"), failing, 999);
        pool.stream_failed(gone, error);
        other.machine.clear_failures();
        assert!(pool.alive().is_ok(), "{failing}: {:?}", pool.alive());
        other.finish();
        let block = bench.get(MIB, None);
        bench.put(block, None);
        bench.finish();
    }
}

#[test]
fn a_context_without_a_known_id_may_have_changed() {
    let bench = Bench::new("");
    let block = bench.get(MIB, None);
    bench.put(block, None);
    let pool = bench.allocator.pool_of(0);
    let gone = bench.app(|machine| machine.context_create(0)).unwrap();
    // A free notes the context, but not its id.
    bench.machine.fail_every(Some("cuCtxGetId"), 1, 999);
    pool.core.lock().note_context_of_free(&pool.calls, Context(gone));
    bench.machine.clear_failures();
    bench.app(|machine| machine.context_destroy(gone)).unwrap();
    let born = bench.app(|machine| machine.context_create(0)).unwrap();
    assert_eq!(born, gone, "the handle comes back");
    assert!(pool.core.lock().contexts.contains(&(Context(gone), 0)));
    let error = DriverError {
        call: "cuCtxRecordEvent",
        code: 700,
        failure: Failure::ContextDead,
    };
    let outcome = pool.context_failed(&mut pool.core.lock(), Context(gone), error);
    assert!(!matches!(outcome, Err(Error::Dead(_))), "{outcome:?}");
    let block = bench.get(MIB, None);
    bench.put(block, None);
    bench.finish();
}

/// Allocates a block that leaves no room for a second one, and uses it in a context of its own by a kernel. Frees the
/// block there without a stream, while the driver does not return the context's id. Returns the context and the kernel.
fn freed_in_an_unidentified_context(bench: &Bench) -> (usize, u64) {
    let block = bench.get(48 * MIB, None);
    let context = bench.app(|machine| machine.context_create(0)).unwrap();
    let stream = bench.stream();
    let kernel = bench.app(|machine| machine.launch_persistent(stream, &[(block, 48 * MIB)]).unwrap());
    bench.machine.fail_every(Some("cuCtxGetId"), 1, 999);
    bench.put(block, None);
    bench.machine.clear_failures();
    bench.app(|machine| machine.context_pop()).unwrap();
    (context, kernel)
}

#[test]
fn work_in_a_context_that_does_not_tell_its_id_is_waited_for() {
    let bench = Bench::new("limit=64MiB,wait_ms=5");
    let (_, kernel) = freed_in_an_unidentified_context(&bench);
    for failing in [true, false] {
        if failing {
            bench.machine.fail_every(Some("cuCtxGetId"), 1, 999);
        }
        assert!(bench.request(48 * MIB, 0, None).is_err(), "the kernel runs");
        assert_eq!(bench.wrong(), Vec::<String>::new());
        bench.machine.clear_failures();
    }
    assert!(bench.machine.release_persistent(kernel));
    let block = bench.get(48 * MIB, None);
    bench.put(block, None);
    bench.finish();
}

#[test]
fn memory_of_an_unidentified_context_that_is_gone_comes_back() {
    let bench = Bench::new("limit=64MiB,wait_ms=5");
    let (context, _) = freed_in_an_unidentified_context(&bench);
    bench.app(|machine| machine.context_destroy(context)).unwrap();
    let block = bench.get(48 * MIB, None);
    bench.put(block, None);
    bench.finish();
}

/// From now on, makes the `failing`-th query for a context's id fail.
fn do_not_tell(bench: &Bench, failing: u64) {
    bench.machine.fail_nth(Some("cuCtxGetId"), failing, 999);
}

/// The handles of a context that is gone, and of its events, come back as the application's, and the driver does not
/// return the ids.
#[test]
fn an_event_of_a_context_that_may_be_gone_is_left_alone() {
    for failing in 1..=8 {
        let bench = Bench::new("wait_ms=5");
        let blocks = [0; 6].map(|_| bench.get(MIB, None));
        let gone = bench.app(|machine| machine.context_create(0)).unwrap();
        // The pool has events of the context.
        blocks[..3].iter().for_each(|block| bench.put(*block, None));
        bench.app(|machine| machine.context_destroy(gone)).unwrap();
        let born = bench.app(|machine| machine.context_create(0)).unwrap();
        assert_eq!(born, gone, "the handle comes back");
        let (stream, other) = (bench.stream(), bench.stream());
        let events: [usize; 8] = std::array::from_fn(|_| bench.app(|machine| machine.event_create()).unwrap());
        for event in events {
            bench.app(|machine| machine.event_record(event, stream)).unwrap();
        }
        let kernel = bench.app(|machine| machine.launch_persistent(other, &[]).unwrap());
        // The free cannot identify its context, either.
        do_not_tell(&bench, 1);
        do_not_tell(&bench, failing);
        blocks[3..].iter().for_each(|block| bench.put(*block, None));
        bench.machine.clear_failures();
        for event in events {
            let complete = bench.app(|machine| machine.event_query(event));
            assert_eq!(
                complete,
                Ok(true),
                "{failing}: the pool recorded the application's event"
            );
        }
        assert!(bench.machine.release_persistent(kernel));
        bench.app(|machine| machine.context_pop()).unwrap();
        bench.finish();
    }
}

/// As above: a completed event of the application is no evidence that the work behind the pool's event is complete.
#[test]
fn an_answer_from_a_context_that_may_be_gone_is_none() {
    for failing in 1..=12 {
        let bench = Bench::new("limit=64MiB,wait_ms=5");
        let first = bench.stream();
        let block = bench.get(48 * MIB, Some(first));
        let kernel = bench.app(|machine| machine.launch_persistent(first, &[(block, 48 * MIB)]).unwrap());
        // The application uses the block on a stream of another context, and that stream waits for the first stream's
        // work.
        let event = bench.app(|machine| machine.event_create()).unwrap();
        bench.app(|machine| machine.event_record(event, first)).unwrap();
        let gone = bench.app(|machine| machine.context_create(0)).unwrap();
        let visitor = bench.stream();
        bench.app(|machine| machine.stream_wait_event(visitor, event)).unwrap();
        let small = bench.get(512, Some(visitor));
        bench.put(block, Some(visitor));
        // Memory is short, so the visitor's next call covers what it freed.
        assert!(bench.request(48 * MIB, 0, Some(first)).is_err());
        let next = bench.get(4 * MIB, Some(visitor));
        bench.app(|machine| machine.context_destroy(gone)).unwrap();
        let born = bench.app(|machine| machine.context_create(0)).unwrap();
        assert_eq!(born, gone, "the handle comes back");
        for _ in 0..8 {
            bench.app(|machine| machine.event_create()).unwrap();
        }
        bench.app(|machine| machine.context_pop()).unwrap();
        do_not_tell(&bench, failing);
        let early = bench.request(48 * MIB, 0, None);
        bench.machine.clear_failures();
        assert_eq!(bench.wrong(), Vec::<String>::new(), "{failing}");
        assert!(early.is_err(), "{failing}: the first stream still writes there");
        assert!(bench.machine.release_persistent(kernel));
        bench.put(small, None);
        bench.put(next, None);
        bench.finish();
    }
}

/// A context's work ends with it, and so do its streams' waits for other contexts. Another stream that the block is
/// used on next has waited for nothing.
#[test]
fn a_block_that_outlives_its_context_waits_for_its_memory_again() {
    for version in [12_090, 12_040, 11_080] {
        for (options, flags) in [("limit=64MiB,wait_ms=5", 0), ("limit=64MiB,wait_ms=5", RESIZABLE)] {
            let config = SimConfig {
                version,
                ..SimConfig::default()
            };
            let bench = Bench::on(config, options);
            let (first, heir) = (bench.stream(), bench.stream());
            let own = bench.get(MIB, Some(heir));
            let block = bench.get(48 * MIB, Some(first));
            let kernel = bench.app(|machine| machine.launch_persistent(first, &[(block, 48 * MIB)]).unwrap());
            bench.put(block, Some(first));
            // Memory is short, so the first stream's next call covers what it freed.
            if version >= 12_000 {
                assert!(bench.request(48 * MIB, 0, Some(heir)).is_err());
                let small = bench.get(512, Some(first));
                bench.put(small, Some(first));
            }
            let context = bench.app(|machine| machine.context_create(0)).unwrap();
            let visitor = bench.stream();
            // The visitor's stream is made to wait for the first stream's work.
            let moved = bench.request(48 * MIB, flags, Some(visitor));
            bench.app(|machine| machine.context_destroy(context)).unwrap();
            if let Ok(block) = moved {
                bench.put(block, Some(heir));
                let again = bench.request(48 * MIB, flags, Some(heir));
                assert_eq!(bench.wrong(), Vec::<String>::new(), "{version} {flags}");
                assert!(again.is_err(), "{version} {flags}: the first stream still writes there");
            }
            assert!(bench.machine.release_persistent(kernel));
            bench.put(own, Some(heir));
            bench.finish();
        }
    }
}

/// cuCtxDestroy removes a context only from the stack of the calling thread. On other threads a destroyed context stays
/// current.
#[test]
fn a_destroyed_context_that_is_current_kills_no_pool() {
    for version in [12_090, 12_040, 11_020] {
        for options in ["", "backing=malloc", "guard=1"] {
            let config = SimConfig {
                version,
                ..SimConfig::default()
            };
            let bench = Bench::on(config, options);
            let stream = bench.stream();
            let blocks = [0; 4].map(|_| bench.get(MIB, Some(stream)));
            let special = bench.request(MIB, RESIZABLE, None).unwrap();
            let gone = bench.app(|machine| machine.context_create(0)).unwrap();
            std::thread::scope(|scope| {
                let destroy = || bench.app(|machine| machine.context_destroy(gone)).unwrap();
                scope.spawn(destroy).join().unwrap();
            });
            // Each request may be refused.
            for turn in [None, Some(0), Some(stream)] {
                for flags in [0, RESIZABLE] {
                    if let Ok(block) = bench.request(MIB, flags, turn) {
                        bench.put(block, turn);
                    }
                }
            }
            let special = bench.resize(special, MIB, 200 * MIB).unwrap_or(special);
            for (block, turn) in blocks.into_iter().zip([None, Some(0), Some(stream), None]) {
                bench.put(block, turn);
            }
            bench.put(special, None);
            let _ = bench.allocator.trim(Some(0), 0);
            bench.app(|machine| machine.context_pop()).unwrap();
            let block = bench.get(MIB, Some(stream));
            bench.put(block, Some(stream));
            bench.finish();
        }
    }
}

#[test]
fn a_streams_place_is_its_own_though_its_context_is_gone() {
    let bench = Bench::new("");
    let context = bench.app(|machine| machine.context_create(0)).unwrap();
    let dying = bench.stream();
    let block = bench.get(MIB, Some(dying));
    bench.put(block, Some(dying));
    bench.app(|machine| machine.context_destroy(context)).unwrap();
    // Its free memory is common now, and another stream gets its owner number.
    let plain = bench.get(MIB, None);
    bench.put(plain, None);
    bench.allocator.trim(Some(0), 0).unwrap();
    let (born, other) = (bench.stream(), bench.stream());
    assert_eq!(born, dying, "the handle comes back");
    bench.use_and_free(other, 8, MIB);
    bench.use_and_free(born, 8, MIB);
    bench.allocator.validate().unwrap();
    bench.allocator.trim(Some(0), 0).unwrap();
    bench.allocator.validate().unwrap();
    bench.finish();
}

#[test]
fn what_the_drivers_malloc_gave_outlives_the_context_it_was_asked_in() {
    for options in ["backing=malloc", "passthrough=1"] {
        let bench = Bench::new(options);
        let context = bench.app(|machine| machine.context_create(0)).unwrap();
        let passing = bench.stream();
        let block = bench.get(MIB, Some(passing));
        let plain = bench.get(MIB, None);
        bench.app(|machine| machine.context_destroy(context)).unwrap();
        let stream = bench.stream();
        bench.launch(stream, block, MIB);
        bench.launch(stream, plain, MIB);
        bench.put(block, Some(stream));
        bench.put(plain, Some(stream));
        bench.finish();
    }
}

/// A handle names a stream of one device, and then one of the other.
#[test]
fn a_handle_that_changes_its_device() {
    let config = SimConfig {
        devices: 2,
        ..SimConfig::default()
    };
    let bench = Bench::on(config, "");
    let far = bench.app(|machine| machine.primary_retain(1)).unwrap();
    let dying = bench.app(|machine| {
        machine.context_push(far).unwrap();
        machine.stream_create(true).unwrap()
    });
    let there = bench.use_and_free(dying, 4, MIB);
    bench.app(|machine| {
        machine.stream_destroy(dying).unwrap();
        machine.context_pop().unwrap();
    });
    // Blocks of this device are freed there so often that the pool records a completion event before the stream has
    // ever allocated.
    let blocks: Vec<u64> = (0..200).map(|_| bench.get(MIB, None)).collect();
    let born = bench.stream();
    assert_eq!(born, dying, "the handle comes back");
    for block in blocks {
        bench.put(block, Some(born));
    }
    bench.allocator.validate().unwrap();
    let block = bench.get(MIB, Some(born));
    assert!(!there.contains(&block));
    bench.put(block, Some(born));
    bench.app(|machine| machine.context_push(far)).unwrap();
    bench.app(|machine| machine.context_synchronize()).unwrap();
    bench.app(|machine| machine.context_pop()).unwrap();
    bench.allocator.trim(Some(1), 0).unwrap();
    for device in [0, 1] {
        let stats = bench.allocator.stats(Some(device)).unwrap();
        assert_eq!(stats.allocations, stats.frees, "{device}");
    }
    bench.finish();
}

#[test]
fn a_reset_device_is_dead_and_harmless() {
    for options in ["", "backing=malloc", "guard=1"] {
        let bench = Bench::new(options);
        let stream = bench.stream();
        let blocks = [bench.get(MIB, Some(stream)), bench.get(MIB, None)];
        let special = bench.request(MIB, RESIZABLE, Some(stream)).unwrap();
        bench.use_and_free(stream, 20, MIB);
        bench.app(|machine| {
            machine.primary_reset(0).unwrap();
            // The application continues to use the device.
            let context = machine.primary_retain(0).unwrap();
            machine.context_push(context).unwrap();
        });
        let stream = bench.stream();
        let before = bench.machine.submissions();
        for _ in 0..3 {
            for stream in [None, Some(stream)] {
                for flags in [0, RESIZABLE] {
                    let refused = bench.request(40 * MIB, flags, stream);
                    assert!(refused.is_err(), "{options}");
                }
            }
            assert!(bench.allocator.reallocate(special, 0, 90 * MIB).is_err());
        }
        for block in blocks {
            bench.allocator.deallocate(block, None).unwrap();
            assert!(bench.allocator.deallocate(block, None).is_err());
        }
        bench.allocator.deallocate(special, Some(Stream(stream))).unwrap();
        assert!(bench.allocator.trim(Some(0), 0).is_err());
        bench.allocator.stats(Some(0)).unwrap();
        bench.allocator.close();
        let made = bench.machine.submissions() - before;
        assert!(made < 60, "{options}: {made} calls on a dead pool");
        assert_eq!(bench.machine.faults(), Vec::<String>::new());
    }
}

#[test]
fn a_sticky_error_kills_the_pool_and_nothing_else() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let block = bench.get(MIB, Some(stream));
    let context = bench.machine.context_current().unwrap();
    bench.machine.poison(context, 700).unwrap();
    assert!(bench.request(40 * MIB, 0, Some(stream)).is_err());
    assert!(bench.request(40 * MIB, 0, None).is_err());
    let error = bench.request(40 * MIB, 0, None).unwrap_err().to_string();
    assert!(!error.is_empty());
    bench.allocator.deallocate(block, Some(Stream(stream))).unwrap();
    bench.allocator.close();
}

/// Without virtual memory, a resize waits for every context. A context that is destroyed during the wait took its work
/// with it.
#[test]
fn a_context_that_goes_while_a_resize_looks_at_it() {
    for call in ["cuCtxRecordEvent", "cuEventCreate", "cuEventSynchronize"] {
        let bench = Bench::new("backing=malloc");
        let first = bench.stream();
        let block = bench.request(MIB, RESIZABLE, Some(first)).unwrap();
        let context = bench.app(|machine| machine.context_create(0)).unwrap();
        let second = bench.stream();
        bench.use_and_free(second, 2, MIB);
        bench.app(|machine| {
            let left = machine.context_pop().unwrap();
            assert_eq!(left, context);
        });
        // The second event, or call, is that context's: the pool's own comes first.
        for n in 1..4 {
            bench.machine.come_between(call, n, move |machine| {
                let _ = machine.context_destroy(context);
            });
        }
        let block = bench.resize(block, MIB, 2 * MIB).unwrap();
        bench.machine.clear_failures();
        bench.put(block, Some(first));
        bench.allocator.validate().unwrap();
        bench.finish();
    }
}

/// A stream waited for work of another context, and its own context is destroyed, but the work goes on.
#[test]
fn a_dead_contexts_stream_had_waited_for_work_that_goes_on() {
    for version in [11_080, 12_040, 12_090] {
        let config = SimConfig {
            version,
            ..SimConfig::default()
        };
        let bench = Bench::on(config, "limit=64MiB,wait_ms=1");
        let first = bench.stream();
        let block = bench.get(64 * MIB, Some(first));
        let kernel = bench
            .app(|machine| machine.launch_persistent(first, &[(block, 64 * MIB)]))
            .unwrap();
        let order = bench.app(|machine| {
            let event = machine.event_create().unwrap();
            machine.event_record(event, first).unwrap();
            event
        });
        let context = bench.app(|machine| machine.context_create(0)).unwrap();
        let second = bench.stream();
        bench.app(|machine| machine.stream_wait_event(second, order)).unwrap();
        bench.put(block, Some(second));
        // A request that is refused records a completion event.
        assert!(bench.request(128 * MIB, 0, Some(second)).is_err());
        bench.app(|machine| machine.context_destroy(context)).unwrap();
        let early = bench.request(64 * MIB, 0, None);
        assert_eq!(bench.wrong(), Vec::<String>::new(), "{version}");
        assert!(early.is_err(), "{version}: the first context's work is not over");
        assert!(bench.machine.release_persistent(kernel));
        bench.finish();
    }
}
