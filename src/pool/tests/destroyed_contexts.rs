//! Contexts that are destroyed: calls in them that fail, their handles and events that come back, and blocks that
//! outlive them.

use super::{Bench, MIB, RESIZABLE};
use crate::driver::sim::SimConfig;
use crate::driver::{Context, DriverError, Failure};
use crate::pool::driver_calls::Identity;
use crate::support::error::Error;

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
fn context_that_two_requests_wait_for_is_dropped_once() {
    let (bench, gone, error) = destroyed(11_020);
    let pool = bench.allocator.pool_of(0);
    for requester in ["the first", "the second"] {
        let outcome = pool.core.lock().reclaimer.context_failed(pool, gone, error);
        assert!(outcome.is_ok(), "{requester}: {outcome:?}");
    }
    let block = bench.get(MIB, None);
    bench.put(block, None);
    bench.finish();
}

#[test]
fn context_that_may_be_destroyed_does_not_kill_the_pool() {
    for (version, question) in [(11_020, "cuCtxPushCurrent"), (12_090, "cuCtxGetId")] {
        let (bench, gone, error) = destroyed(version);
        let pool = bench.allocator.pool_of(0);
        bench.machine.fail_every(Some(question), 1, 999);
        let outcome = pool.core.lock().reclaimer.context_failed(pool, gone, error);
        assert!(matches!(outcome, Err(Error::Driver(_))), "{outcome:?}");
        pool.stream_failed(gone, error);
        bench.machine.clear_failures();
        let block = bench.get(MIB, None);
        bench.put(block, None);
        bench.finish();
    }
}

#[test]
fn query_that_fails_once_does_not_kill_the_pool() {
    // The pool queries its home, then each context that has used it, then this context again.
    for failing in 1..=4 {
        let (bench, gone, error) = destroyed(12_090);
        let pool = bench.allocator.pool_of(0);
        bench.machine.fail_nth(Some("cuCtxGetId"), failing, 999);
        let outcome = pool.core.lock().reclaimer.context_failed(pool, gone, error);
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
fn unidentified_context_covers_nothing() {
    let bench = Bench::new("");
    let block = bench.get(MIB, None);
    bench.put(block, None);
    let pool = bench.allocator.pool_of(0);
    let gone = bench.app(|machine| machine.context_create(0)).unwrap();
    // A free notes the context, but not its id.
    bench.machine.fail_every(Some("cuCtxGetId"), 1, 999);
    pool.core
        .lock()
        .reclaimer
        .note_context_of_free(&pool.calls, Context(gone));
    bench.machine.clear_failures();
    bench.app(|machine| machine.context_destroy(gone)).unwrap();
    let born = bench.app(|machine| machine.context_create(0)).unwrap();
    assert_eq!(born, gone, "the handle comes back");
    assert!(
        pool.core
            .lock()
            .reclaimer
            .contexts
            .all()
            .contains(&(Context(gone), Identity::Unidentified))
    );
    let error = DriverError {
        call: "cuCtxRecordEvent",
        code: 700,
        failure: Failure::ContextDead,
    };
    let outcome = pool.core.lock().reclaimer.context_failed(pool, Context(gone), error);
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
fn work_in_an_unidentified_context_is_waited_for() {
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

/// Another context gets the handle of a known one, and the driver does not tell its id when the pool first asks.
#[test]
fn work_in_the_next_context_at_a_reused_handle_is_waited_for() {
    for failing in 2..=8 {
        let bench = Bench::new("limit=64MiB,wait_ms=5");
        let gone = bench.app(|machine| machine.context_create(0)).unwrap();
        let block = bench.get(48 * MIB, None);
        bench.app(|machine| machine.context_destroy(gone)).unwrap();
        let born = bench.app(|machine| machine.context_create(0)).unwrap();
        assert_eq!(born, gone, "the handle comes back");
        let stream = bench.stream();
        let kernel = bench.app(|machine| machine.launch_persistent(stream, &[(block, 48 * MIB)]).unwrap());
        refuse_context_ids(&bench, 1);
        refuse_context_ids(&bench, failing);
        bench.put(block, None);
        bench.machine.clear_failures();
        let pool = bench.allocator.pool_of(0);
        let unidentified = pool
            .core
            .lock()
            .reclaimer
            .contexts
            .all()
            .contains(&(Context(born), Identity::Unidentified));
        bench.app(|machine| machine.context_pop()).unwrap();
        // No event of the pool's is in a context without an id, so the next one at the handle finds none.
        if unidentified {
            assert_eq!(
                pool.core.lock().reclaimer.pending.events_of(Context(born)),
                0,
                "{failing}"
            );
        }
        let early = bench.request(48 * MIB, 0, None);
        assert_eq!(bench.wrong(), Vec::<String>::new(), "{failing}");
        assert!(early.is_err(), "{failing}: the kernel runs");
        assert!(bench.machine.release_persistent(kernel));
        bench.finish();
    }
}

#[test]
fn memory_of_a_destroyed_unidentified_context_is_reclaimed() {
    let bench = Bench::new("limit=64MiB,wait_ms=5");
    let (context, _) = freed_in_an_unidentified_context(&bench);
    bench.app(|machine| machine.context_destroy(context)).unwrap();
    let block = bench.get(48 * MIB, None);
    bench.put(block, None);
    bench.finish();
}

/// From now on, makes the `failing`-th query for a context's id fail.
fn refuse_context_ids(bench: &Bench, failing: u64) {
    bench.machine.fail_nth(Some("cuCtxGetId"), failing, 999);
}

/// The handles of a context that is gone, and of its events, come back as the application's, and the driver does not
/// return the ids.
#[test]
fn event_of_an_unidentified_context_is_left_alone() {
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
        refuse_context_ids(&bench, 1);
        refuse_context_ids(&bench, failing);
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
fn answer_of_an_unidentified_context_is_none() {
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
        refuse_context_ids(&bench, failing);
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
fn block_waits_again_after_its_context_is_destroyed() {
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

/// As above, of two pieces of memory that are large enough only together, on a driver without stream ids.
#[test]
fn joined_block_waits_again_after_its_context_is_destroyed() {
    let config = SimConfig {
        version: 11_080,
        ..SimConfig::default()
    };
    let bench = Bench::on(config, "limit=64MiB,wait_ms=5");
    let (first, heir) = (bench.stream(), bench.stream());
    let pieces = [0; 2].map(|_| bench.get(24 * MIB, Some(first)));
    let ranges = pieces.map(|piece| (piece, 24 * MIB));
    let kernel = bench.app(|machine| machine.launch_persistent(first, &ranges).unwrap());
    pieces.iter().for_each(|piece| bench.put(*piece, Some(first)));
    let context = bench.app(|machine| machine.context_create(0)).unwrap();
    let visitor = bench.stream();
    let moved = bench.request(48 * MIB, 0, Some(visitor));
    bench.app(|machine| machine.context_destroy(context)).unwrap();
    if let Ok(block) = moved {
        bench.put(block, Some(heir));
        let _ = bench.request(48 * MIB, 0, Some(heir));
    }
    assert_eq!(
        bench.wrong(),
        Vec::<String>::new(),
        "the first stream still writes there"
    );
    assert!(bench.machine.release_persistent(kernel));
    bench.finish();
}

/// cuCtxDestroy removes a context only from the stack of the calling thread. On other threads a destroyed context stays
/// current.
#[test]
fn current_destroyed_context_does_not_kill_the_pool() {
    for version in [12_090, 12_040, 11_020] {
        for options in ["", "backing=malloc", "guard=1"] {
            let config = SimConfig {
                version,
                ..SimConfig::default()
            };
            let bench = Bench::on(config, options);
            let stream = bench.stream();
            let blocks = [0; 4].map(|_| bench.get(MIB, Some(stream)));
            let kind = bench.request(MIB, RESIZABLE, None).unwrap();
            let gone = bench.app(|machine| machine.context_create(0)).unwrap();
            std::thread::scope(|scope| {
                let destroy = || bench.app(|machine| machine.context_destroy(gone)).unwrap();
                scope.spawn(destroy).join().unwrap();
            });
            // Each request may be refused.
            for view in [None, Some(0), Some(stream)] {
                for flags in [0, RESIZABLE] {
                    if let Ok(block) = bench.request(MIB, flags, view) {
                        bench.put(block, view);
                    }
                }
            }
            let kind = bench.resize(kind, MIB, 200 * MIB).unwrap_or(kind);
            for (block, view) in blocks.into_iter().zip([None, Some(0), Some(stream), None]) {
                bench.put(block, view);
            }
            bench.put(kind, None);
            let _ = bench.allocator.trim(Some(0), 0);
            bench.app(|machine| machine.context_pop()).unwrap();
            let block = bench.get(MIB, Some(stream));
            bench.put(block, Some(stream));
            bench.finish();
        }
    }
}
