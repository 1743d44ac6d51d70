//! Streams and contexts that are destroyed while memory is in use, cached or pending.

use super::{Bench, MIB, RESIZABLE};
use crate::driver::Stream;
use crate::driver::sim::SimConfig;

/// Destroys a stream with work pending, and creates one that gets its handle.
fn reborn(bench: &Bench, dying: usize) -> usize {
    bench.app(|machine| machine.stream_destroy(dying)).unwrap();
    let born = bench.stream();
    assert_eq!(born, dying, "the handle comes back");
    born
}

#[test]
fn stream_release_covers_only_the_present_stream() {
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
fn free_on_a_reused_handle_is_waited_for() {
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
fn free_on_a_destroyed_stream_is_waited_for() {
    let bench = Bench::new("");
    let dying = bench.stream();
    let blocks: Vec<u64> = (0..100).map(|_| bench.get(MIB, Some(dying))).collect();
    let kind = bench.request(3 * MIB, RESIZABLE, Some(dying)).unwrap();
    bench.launch(dying, kind, 3 * MIB);
    bench.app(|machine| machine.stream_destroy(dying)).unwrap();
    // However many there are, the pool never passes the dead handle to the driver.
    for block in blocks.iter().skip(10).chain([&kind]) {
        bench.put(*block, Some(dying));
    }
    blocks[..10].iter().for_each(|block| bench.put(*block, None));
    let stream = bench.stream();
    let block = bench.get(64 * MIB, Some(stream));
    bench.put(block, Some(stream));
    bench.finish();
}

#[test]
fn frees_of_a_destroyed_context_are_reclaimed() {
    let bench = Bench::new("limit=128MiB");
    let first = bench.stream();
    let near = bench.use_and_free(first, 4, 8 * MIB);
    assert_eq!(near.len(), 4);
    let context = bench.app(|machine| machine.context_create(0)).unwrap();
    let second = bench.stream();
    let cached = bench.get(8 * MIB, Some(second));
    let kind = bench.request(8 * MIB, RESIZABLE, Some(second)).unwrap();
    bench.use_and_free(second, 8, 4 * MIB);
    bench.launch(second, cached, 8 * MIB);
    let plain = bench.get(8 * MIB, None);
    bench.put(plain, None);
    bench.app(|machine| machine.context_destroy(context)).unwrap();
    // What was allocated there is memory like any other.
    bench.launch(first, cached, 8 * MIB);
    bench.put(cached, Some(first));
    bench.put(kind, None);
    let all = bench.get(120 * MIB, None);
    bench.put(all, None);
    bench.finish();
}

#[test]
fn stream_keeps_its_cache_after_its_context_is_destroyed() {
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
fn memory_of_malloc_outlives_the_requesting_context() {
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
fn stream_handle_may_change_its_device() {
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
fn reset_device_kills_the_pool_and_does_no_harm() {
    for options in ["", "backing=malloc", "guard=1"] {
        let bench = Bench::new(options);
        let stream = bench.stream();
        let blocks = [bench.get(MIB, Some(stream)), bench.get(MIB, None)];
        let kind = bench.request(MIB, RESIZABLE, Some(stream)).unwrap();
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
            assert!(bench.allocator.reallocate(kind, 0, 90 * MIB).is_err());
        }
        for block in blocks {
            bench.allocator.deallocate(block, None).unwrap();
            assert!(bench.allocator.deallocate(block, None).is_err());
        }
        bench.allocator.deallocate(kind, Some(Stream(stream))).unwrap();
        assert!(bench.allocator.trim(Some(0), 0).is_err());
        bench.allocator.stats(Some(0)).unwrap();
        bench.allocator.close();
        let made = bench.machine.submissions() - before;
        assert!(made < 60, "{options}: {made} calls on a dead pool");
        assert_eq!(bench.machine.faults(), Vec::<String>::new());
    }
}

#[test]
fn sticky_error_kills_only_its_pool() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let (block, alone) = (bench.get(MIB, Some(stream)), bench.get(2 * MIB, None));
    let context = bench.machine.context_current().unwrap();
    bench.machine.poison(context, 700).unwrap();
    assert!(bench.request(40 * MIB, 0, Some(stream)).is_err());
    assert!(bench.request(40 * MIB, 0, None).is_err());
    let error = bench.request(40 * MIB, 0, None).unwrap_err().to_string();
    assert!(!error.is_empty());
    bench.allocator.deallocate(block, Some(Stream(stream))).unwrap();
    // What a dead pool takes back is counted, and stays pending.
    bench.allocator.deallocate(alone, None).unwrap();
    let stats = bench.allocator.stats(Some(0)).unwrap();
    assert_eq!((stats.allocated, stats.requested, stats.pending), (0, 0, 2 * MIB));
    assert_eq!((stats.allocations, stats.frees), (2, 2));
    bench.allocator.close();
}

/// Without virtual memory, a resize waits for every context. A context that is destroyed during the wait took its work
/// with it.
#[test]
fn resize_survives_a_context_that_is_destroyed_meanwhile() {
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

/// The per-thread default stream of a thread that has ended is not that of a later thread, which may have its address.
#[test]
fn later_thread_has_another_default_stream() {
    let bench = Bench::new("limit=64MiB,wait_ms=5");
    let context = bench.app(|machine| machine.context_current()).unwrap();
    fn on_thread<T: Send>(bench: &Bench, context: usize, work: impl FnOnce() -> T + Send) -> (usize, T) {
        let run = || {
            bench.app(|machine| machine.context_push(context)).unwrap();
            let outcome = work();
            bench.app(|machine| machine.context_pop()).unwrap();
            // SAFETY: `pthread_self` takes no argument and always succeeds.
            (unsafe { libc::pthread_self() } as usize, outcome)
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }
    let (first, kernel) = on_thread(&bench, context, || {
        let block = bench.get(48 * MIB, Some(2));
        let kernel = bench.app(|machine| machine.launch_persistent(2, &[(block, 48 * MIB)]));
        bench.put(block, Some(2));
        kernel.unwrap()
    });
    let (second, refused) = on_thread(&bench, context, || bench.request(48 * MIB, 0, Some(2)).is_err());
    assert_eq!(bench.wrong(), Vec::<String>::new(), "{first:#x} {second:#x}");
    assert!(refused, "the first thread's work is not over");
    assert!(bench.machine.release_persistent(kernel));
    bench.finish();
}
