//! Handles of destroyed contexts and events that come back as others: what the pool remembers of the old ones does not
//! apply to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{Bench, MIB, RESIZABLE};
use crate::allocator::{Allocator, Request};
use crate::driver::Stream;
use crate::driver::sim::SimConfig;
use crate::driver::sim::model::Machine;
use crate::driver::sim::model::capture::MODE_RELAXED;
use crate::support::error::Result;

/// Makes a new context current, and creates a stream in it.
fn visit(bench: &Bench, device: i32) -> (usize, usize) {
    let context = bench.app(|machine| machine.context_create(device)).unwrap();
    (context, bench.stream())
}

/// Destroys the current context, and creates another one that gets its handle.
fn reborn(bench: &Bench, dying: usize, device: i32) -> usize {
    bench.app(|machine| machine.context_destroy(dying)).unwrap();
    let (born, stream) = visit(bench, device);
    assert_eq!(born, dying, "the handle comes back");
    stream
}

/// The application's events in the current context, recorded behind what is queued on `stream`.
fn events(machine: &Machine, stream: usize) -> Vec<usize> {
    let events = (0..64).map(|_| {
        let event = machine.event_create().unwrap();
        machine.event_record(event, stream).unwrap();
        event
    });
    events.collect()
}

/// Checks that each event still has its state: the work that `stream` had queued is complete.
fn untouched(bench: &Bench, events: &[usize]) {
    bench.app(|machine| {
        for event in events {
            assert_eq!(machine.event_query(*event), Ok(true), "an event of the application's");
        }
    });
}

/// Covers everything freed without a stream so far in every context, and reclaims it.
fn cover(bench: &Bench) {
    for _ in 0..2 {
        let block = bench.get(MIB, None);
        bench.put(block, None);
        bench.app(|machine| machine.advance(1_000_000));
    }
}

#[test]
fn event_of_a_destroyed_context_is_not_used() {
    let bench = Bench::new("");
    let (context, stream) = visit(&bench, 0);
    bench.use_and_free(stream, 4, MIB);
    cover(&bench);
    let born = reborn(&bench, context, 0);
    let own = bench.app(|machine| events(machine, born));
    bench.app(|machine| machine.context_pop()).unwrap();
    let block = bench.get(MIB, None);
    let kernel = bench.app(|machine| machine.launch_persistent(born, &[])).unwrap();
    // The new context has never used the pool.
    bench.put(block, None);
    untouched(&bench, &own);
    assert!(bench.machine.release_persistent(kernel));
    bench.app(|machine| machine.stream_synchronize(born)).unwrap();
    bench.finish();
}

#[test]
fn close_destroys_no_event_of_the_application() {
    let bench = Bench::new("");
    let (context, stream) = visit(&bench, 0);
    bench.use_and_free(stream, 4, MIB);
    cover(&bench);
    let born = reborn(&bench, context, 0);
    let own = bench.app(|machine| events(machine, born));
    bench.app(|machine| machine.context_pop()).unwrap();
    bench.allocator.close();
    untouched(&bench, &own);
}

/// A stream that waited for another context's work is gone with its context. The application's events get the handles
/// of the pool's. That they are complete is no evidence for that work.
#[test]
fn event_of_the_application_covers_no_frees() {
    let bench = Bench::new("limit=64MiB,wait_ms=1");
    let first = bench.stream();
    let block = bench.get(64 * MIB, Some(first));
    let kernel = bench
        .app(|machine| machine.launch_persistent(first, &[(block, 64 * MIB)]))
        .unwrap();
    let order = bench.app(|machine| events(machine, first))[0];
    let (context, second) = visit(&bench, 0);
    bench.app(|machine| machine.stream_wait_event(second, order)).unwrap();
    bench.put(block, Some(second));
    // A request that is refused records a completion event.
    assert!(bench.request(128 * MIB, 0, Some(second)).is_err());
    let born = reborn(&bench, context, 0);
    let own = bench.app(|machine| events(machine, born));
    bench.app(|machine| machine.context_pop()).unwrap();
    for stream in [Some(bench.stream()), None] {
        let early = bench.request(64 * MIB, 0, stream);
        assert!(early.is_err(), "the first context's work is not over");
    }
    untouched(&bench, &own);
    assert!(bench.machine.release_persistent(kernel));
    bench.finish();
}

/// The application's events, which have the handles of a destroyed context's, are recorded in a capture. A query of one
/// would end it.
#[test]
fn event_of_the_application_in_a_capture_is_not_queried() {
    let bench = Bench::new("limit=64MiB,wait_ms=1");
    let (context, stream) = visit(&bench, 0);
    bench.use_and_free(stream, 1, 64 * MIB);
    // A request that is refused records a completion event.
    assert!(bench.request(128 * MIB, 0, Some(stream)).is_err());
    let born = reborn(&bench, context, 0);
    bench
        .app(|machine| machine.stream_begin_capture(born, MODE_RELAXED))
        .unwrap();
    let own = bench.app(|machine| events(machine, born));
    bench.app(|machine| machine.context_pop()).unwrap();
    let home = bench.stream();
    for stream in [Some(home), None] {
        let block = bench.get(16 * MIB, stream);
        bench.put(block, stream);
    }
    assert_eq!(bench.machine.captures_ended(), 0, "of {} events", own.len());
    bench.app(|machine| machine.stream_end_capture(born)).unwrap();
    bench.finish();
}

/// A context of another device uses this one's memory, and then another context gets its handle.
#[test]
fn device_of_a_reused_context_handle_is_queried_again() {
    let config = SimConfig {
        devices: 2,
        ..SimConfig::default()
    };
    let bench = Bench::on(config, "limit=64MiB,wait_ms=1,peers=0:1");
    let on = |stream: Option<usize>| {
        bench.allocator.allocate(Request {
            size: 64 * MIB,
            alignment: 0,
            flags: 0,
            stream: stream.map(Stream),
            device: Some(0),
        })
    };
    let (context, stream) = visit(&bench, 1);
    let block = on(Some(stream)).unwrap();
    bench.launch(stream, block, 64 * MIB);
    bench.allocator.deallocate(block, None).unwrap();
    bench.app(|machine| machine.advance(10_000_000));
    let block = on(None).unwrap();
    bench.allocator.deallocate(block, None).unwrap();
    let born = reborn(&bench, context, 1);
    let block = on(Some(born)).unwrap();
    let kernel = bench
        .app(|machine| machine.launch_persistent(born, &[(block, 64 * MIB)]))
        .unwrap();
    bench.app(|machine| machine.context_pop()).unwrap();
    bench.allocator.deallocate(block, None).unwrap();
    assert!(on(None).is_err(), "the other device's work is not over");
    assert!(bench.machine.release_persistent(kernel));
    bench.finish();
}

/// A caller that requests another device's memory without a stream uses it in the context that is current.
#[test]
fn request_without_a_stream_waits_for_the_context_of_another_device() {
    let config = SimConfig {
        devices: 2,
        ..SimConfig::default()
    };
    let bench = Bench::on(config, "limit=64MiB,wait_ms=1,peers=0:1");
    let get = || {
        bench.allocator.allocate(Request {
            size: 64 * MIB,
            alignment: 0,
            flags: 0,
            stream: None,
            device: Some(0),
        })
    };
    let (_, stream) = visit(&bench, 1);
    let block = get().unwrap();
    let kernel = bench
        .app(|machine| machine.launch_persistent(stream, &[(block, 64 * MIB)]))
        .unwrap();
    bench.allocator.deallocate(block, None).unwrap();
    assert!(get().is_err(), "the other device's work is not over");
    assert!(bench.machine.release_persistent(kernel));
    bench.app(|machine| machine.context_pop()).unwrap();
    bench.finish();
}

/// A resize by a copy waits for every context without a lock. Meanwhile one of them is destroyed, and another context
/// gets its handle and uses the pool.
#[test]
fn awaited_event_is_not_reused_in_another_context() {
    let bench = Bench::new("backing=malloc");
    let block = bench.request(MIB, RESIZABLE, None).unwrap();
    // The memory that the resize takes is free already, so that its first query is the wait.
    let room = bench.get(8 * MIB, None);
    bench.put(room, None);
    let (context, stream) = visit(&bench, 0);
    bench.use_and_free(stream, 1, MIB);
    bench.app(|machine| machine.context_pop()).unwrap();
    let allocator = bench.allocator.clone();
    let found = Arc::new(parking_lot::Mutex::new(None));
    let born = found.clone();
    bench.machine.come_between("cuEventQuery", 1, move |machine| {
        machine.context_destroy(context).unwrap();
        assert_eq!(machine.context_create(0), Ok(context));
        let stream = machine.stream_create(true).unwrap();
        let request = Request {
            size: MIB,
            alignment: 0,
            flags: 0,
            stream: Some(Stream(stream)),
            device: None,
        };
        let block = allocator.allocate(request).unwrap();
        allocator.deallocate(block, Some(Stream(stream))).unwrap();
        machine.context_pop().unwrap();
        *born.lock() = Some(stream);
    });
    let _ = bench.resize(block, MIB, 2 * MIB);
    let born = found.lock().expect("it was waited for");
    bench.app(|machine| machine.context_push(context)).unwrap();
    let own = bench.app(|machine| events(machine, born));
    let kernel = bench.app(|machine| machine.launch_persistent(born, &[])).unwrap();
    // A completion event is recorded in the new context, for a stream or for the context.
    for _ in 0..4 {
        bench.allocator.stream_release(Stream(born)).unwrap();
        let block = bench.get(MIB, Some(born));
        bench.put(block, Some(born));
    }
    cover(&bench);
    untouched(&bench, &own);
    assert!(bench.machine.release_persistent(kernel));
    bench.app(|machine| machine.context_pop()).unwrap();
    bench.allocator.close();
}

/// Without stream ids, the driver does not show that a context's handle came back, but an event's handle that comes
/// back proves it.
#[test]
fn event_without_stream_ids_covers_one_free() {
    let config = SimConfig {
        version: 11_080,
        ..SimConfig::default()
    };
    let bench = Bench::on(config, "limit=72MiB,wait_ms=300");
    let (context, _) = visit(&bench, 0);
    let held = || {
        let stream = bench.stream();
        let block = bench.get(8 * MIB, Some(stream));
        let kernel = bench.app(|machine| machine.launch_persistent(stream, &[(block, 8 * MIB)]));
        bench.put(block, Some(stream));
        kernel.unwrap()
    };
    (0..4).for_each(|_| _ = held());
    // This memory is common, so the pool does not query the dead context's events before other events get their
    // handles.
    let first = bench.stream();
    bench.use_and_free(first, 1, 40 * MIB);
    bench.app(|machine| machine.stream_synchronize(first)).unwrap();
    assert!(bench.request(72 * MIB, 0, Some(first)).is_err());
    reborn(&bench, context, 0);
    let quick = bench.stream();
    let quick_blocks: Vec<u64> = (0..4).map(|_| bench.get(MIB, Some(quick))).collect();
    let kernels: Vec<u64> = (0..4).map(|_| held()).collect();
    // A stream that is made to wait for the dead context's events takes what is left of its memory.
    let taker = bench.stream();
    let taken: Vec<u64> = (0..4).map(|_| bench.get(8 * MIB, Some(taker))).collect();
    // Events are reused, behind work that is complete.
    quick_blocks.into_iter().for_each(|block| bench.put(block, Some(quick)));
    let more: Vec<u64> = std::iter::from_fn(|| bench.request(8 * MIB, 0, None).ok()).collect();
    assert_eq!(bench.wrong(), Vec::<String>::new());
    taken.into_iter().chain(more).for_each(|block| bench.put(block, None));
    for kernel in kernels {
        assert!(bench.machine.release_persistent(kernel));
    }
    bench.finish();
}

/// Two threads notice at once that a handle has changed its device; the second one gets there when the first has
/// joined.
#[test]
fn release_leaves_a_handle_of_another_device_alone() {
    let config = SimConfig {
        devices: 2,
        ..SimConfig::default()
    };
    let bench = Bench::on(config, "");
    let near = bench.get(MIB, None);
    bench.put(near, None);
    let far = bench.app(|machine| machine.primary_retain(1)).unwrap();
    bench.app(|machine| machine.context_push(far)).unwrap();
    let stream = bench.stream();
    bench.use_and_free(stream, 3, MIB);
    let key = crate::pool::stream_cache::Key {
        stream: Stream(stream),
        context: 0,
        thread: 0,
    };
    let pool = bench.allocator.pool_of(0);
    pool.release_stream(key, None);
    bench.allocator.validate().unwrap();
    bench.use_and_free(stream, 3, MIB);
    bench.allocator.validate().unwrap();
    bench.app(|machine| machine.context_synchronize()).unwrap();
    bench.allocator.trim(Some(1), 0).unwrap();
    bench.app(|machine| machine.context_pop()).unwrap();
    bench.finish();
}

/// Runs another thread's work while a call waits without the pool's lock.
pub(super) fn while_waiting(
    bench: &Bench,
    work: impl FnOnce(&Machine, &Allocator) + Send + 'static,
) -> Arc<AtomicBool> {
    let done = Arc::new(AtomicBool::new(false));
    let work = Arc::new(parking_lot::Mutex::new(Some(work)));
    for n in 1..20 {
        let (allocator, work, done) = (bench.allocator.clone(), work.clone(), done.clone());
        bench.machine.come_between("cuEventQuery", n, move |machine| {
            if allocator.pool_of(0).core.try_lock().is_some()
                && let Some(work) = work.lock().take()
            {
                done.store(true, Relaxed);
                work(machine, &allocator);
            }
        });
    }
    done
}

fn request(size: u64, stream: Option<usize>) -> Request {
    Request {
        size,
        alignment: 0,
        flags: 0,
        stream: stream.map(Stream),
        device: None,
    }
}

/// A request for a dedicated allocation waits without the lock. Meanwhile its stream is released, and another stream
/// gets its owner number.
#[test]
fn request_that_waited_notices_that_its_stream_was_replaced() {
    [false, true].into_iter().for_each(stream_replaced_during_a_wait);
}

/// With `another`, the handle is another stream's by the time the request goes on, and that stream has allocated.
fn stream_replaced_during_a_wait(another: bool) {
    let bench = Bench::new("limit=64MiB,wait_ms=1000");
    let (first, second, busy) = (bench.stream(), bench.stream(), bench.stream());
    let own = bench.get(2 * MIB, Some(first));
    let far = bench.request(24 * MIB, RESIZABLE, None).unwrap();
    let held = bench.request(28 * MIB, RESIZABLE, Some(busy)).unwrap();
    bench.launch(busy, held, 28 * MIB);
    bench.put(held, Some(busy));
    let done = while_waiting(&bench, move |machine, allocator| {
        allocator.stream_release(Stream(first)).unwrap();
        if another {
            machine.stream_destroy(first).unwrap();
            assert_eq!(machine.stream_create(true).unwrap(), first);
            let block = allocator.allocate(request(512, Some(first))).unwrap();
            allocator.deallocate(block, Some(Stream(first))).unwrap();
        }
        let block = allocator.allocate(request(512, None)).unwrap();
        allocator.deallocate(block, None).unwrap();
        let block = allocator.allocate(request(512, Some(second))).unwrap();
        machine.launch_persistent(second, &[(far, 24 * MIB)]).unwrap();
        machine.checker().give_back(far, Some(second));
        allocator.deallocate(far, Some(Stream(second))).unwrap();
        allocator.deallocate(block, Some(Stream(second))).unwrap();
    });
    let block = bench.request(24 * MIB, RESIZABLE, Some(first));
    assert!(done.load(Relaxed), "it waits");
    assert_eq!(bench.wrong(), Vec::<String>::new());
    bench.machine.clear_failures();
    assert!(!another || block.is_err(), "{block:?}");
    if let Ok(block) = block {
        bench.put(block, Some(first));
    }
    bench.put(own, Some(first));
}

/// The pool returns all memory to the driver while a call waits for one of the events.
#[test]
fn close_keeps_events_with_waiters() {
    type Call = fn(&Bench) -> Result<u64>;
    let calls: [Call; 3] = [
        |bench| bench.allocator.trim(Some(0), 0),
        |bench| bench.allocator.allocate(request(60 * MIB, None)),
        |bench| {
            let request = Request {
                flags: RESIZABLE,
                ..request(50 * MIB, None)
            };
            bench.allocator.allocate(request)
        },
    ];
    for call in calls {
        let bench = Bench::new("limit=64MiB,wait_ms=1000");
        let stream = bench.stream();
        bench.use_and_free(stream, 2, 30 * MIB);
        let done = while_waiting(&bench, |machine, allocator| {
            allocator.close();
            // A driver may reuse the memory of an event like this.
            let stream = machine.stream_create(true).unwrap();
            machine.launch(stream, 50_000_000_000, &[]).unwrap();
            events(machine, stream);
        });
        let outcome = call(&bench);
        assert!(done.load(Relaxed), "it waits");
        assert!(outcome.is_err(), "the allocator was destroyed");
        let waited = bench.machine.now() / 1_000_000;
        assert!(waited < 500, "{waited} ms for an event of the application's");
        assert_eq!(bench.machine.memory_held(), [0, 0, 0]);
        assert_eq!(bench.wrong(), Vec::<String>::new());
    }
}
