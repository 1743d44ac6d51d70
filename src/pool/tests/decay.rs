//! Decay: what was free throughout the last windows of time goes back to the driver, and nothing else.

use std::time::Duration;

use super::{Bench, MIB, RESIZABLE};
use crate::driver::sim::model::functions::Call;
use crate::pool::WINDOWS;

impl Bench {
    /// Ends so many windows, with `work` in each.
    fn windows(&self, count: u64, mut work: impl FnMut()) {
        for _ in 0..count {
            work();
            self.allocator.pool_of(0).decay();
            self.allocator.validate().unwrap();
        }
    }

    fn reserved(&self) -> u64 {
        self.allocator.stats(Some(0)).unwrap().reserved
    }

    pub(super) fn complete(&self) {
        self.app(|machine| machine.context_synchronize()).unwrap();
    }
}

const MEMORY: &[Call] = &[
    Call::MemCreate,
    Call::MemMap,
    Call::MemUnmap,
    Call::MemRelease,
    Call::MemAlloc,
    Call::MemFree,
];
const EVENTS: &[Call] = &[Call::EventRecord, Call::CtxRecordEvent];

fn count(bench: &Bench, call: Call) -> u64 {
    bench.machine.count(call.name())
}

/// An idle process: nothing is requested any more.
#[test]
fn idle_memory_goes_back_after_its_time() {
    for options in ["", "backing=malloc", "streams=trusted", "kind=pinned"] {
        let bench = Bench::new(options);
        let stream = bench.stream();
        bench.use_and_free(stream, 4, 16 * MIB);
        bench.use_and_free(stream, 2, 4 * MIB);
        let block = bench.get(8 * MIB, None);
        bench.put(block, None);
        let before = bench.reserved();
        bench.complete();
        bench.windows(WINDOWS, || {});
        assert_eq!(bench.reserved(), before, "{options}: too early");
        // One more window, as the first one began before the memory was freed, and one for the events.
        bench.windows(3, || {});
        assert!(bench.reserved() <= 20 * MIB, "{options}: {}", bench.reserved());
        // What was freed without a stream counts as free from the moment that an event has covered it.
        bench.windows(WINDOWS, || {});
        assert_eq!(bench.reserved(), 0, "{options}");
        // There is nothing left that could go back.
        assert!(!bench.allocator.pool_of(0).decay(), "{options}");
        bench.use_and_free(stream, 1, 16 * MIB);
        bench.finish();
    }
}

/// What is in use, and what each window needs, stays. What only one request needed long ago goes.
#[test]
fn memory_that_is_needed_within_the_time_stays() {
    for options in ["", "backing=malloc"] {
        let bench = Bench::new(options);
        let [stream, other] = [bench.stream(), bench.stream()];
        let held = bench.get(32 * MIB, Some(other));
        bench.use_and_free(stream, 4, 64 * MIB);
        let serve = || {
            bench.use_and_free(stream, 1, 64 * MIB);
            bench.complete();
        };
        bench.windows(3 * WINDOWS, serve);
        let reserved = bench.reserved() / MIB;
        assert!((96..=100).contains(&reserved), "{options}: {reserved}");
        let calls = || {
            [MEMORY, EVENTS]
                .concat()
                .into_iter()
                .map(|call| count(&bench, call))
                .sum::<u64>()
        };
        let before = calls();
        bench.windows(WINDOWS, serve);
        assert_eq!(calls(), before, "{options}");
        bench.put(held, Some(other));
        bench.finish();
    }
}

/// A shape that comes back within the time finds its memory mapped.
#[test]
fn rare_shape_finds_its_memory_mapped() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let mut window = 0;
    let mut serve = || {
        let count = if window % WINDOWS == 0 { 5 } else { 1 };
        window += 1;
        bench.use_and_free(stream, count, 32 * MIB);
        bench.complete();
    };
    // A pool that is filled for the first time grows ahead, and what no request needs goes back.
    bench.windows(3 * WINDOWS, &mut serve);
    let before = (count(&bench, Call::MemCreate), count(&bench, Call::MemUnmap));
    bench.windows(5 * WINDOWS, &mut serve);
    assert_eq!((count(&bench, Call::MemCreate), count(&bench, Call::MemUnmap)), before);
    bench.finish();
}

/// Memory whose work is pending does not go back, however long it is idle. The order checker sees what is unmapped.
#[test]
fn pending_memory_stays() {
    let bench = Bench::new("");
    let [stream, other] = [bench.stream(), bench.stream()];
    let block = bench.get(64 * MIB, Some(stream));
    let kernel = bench.app(|machine| machine.launch_persistent(stream, &[(block, 64 * MIB)]).unwrap());
    bench.put(block, Some(stream));
    bench.use_and_free(other, 1, 32 * MIB);
    bench.windows(3 * WINDOWS, || {});
    assert!(bench.reserved() >= 64 * MIB);
    assert!(bench.app(|machine| machine.release_persistent(kernel)));
    bench.complete();
    bench.windows(3, || {});
    assert_eq!(bench.reserved(), 0);
    bench.finish();
}

/// What a destroyed stream has freed goes back as well, and what was freed without one.
#[test]
fn memory_of_destroyed_streams_goes_back() {
    let bench = Bench::new("");
    let stream = bench.stream();
    bench.use_and_free(stream, 2, 24 * MIB);
    let resizable = bench.request(8 * MIB, RESIZABLE, Some(stream)).unwrap();
    bench.put(resizable, Some(stream));
    bench.app(|machine| machine.stream_destroy(stream)).unwrap();
    bench.complete();
    bench.windows(2 * WINDOWS + 3, || {});
    assert_eq!(bench.reserved(), 0);
    bench.finish();
}

/// A stream that is active in every window records an event for what it does not need, so no context event does.
#[test]
fn active_stream_records_an_event_for_what_is_idle() {
    let bench = Bench::new("");
    let stream = bench.stream();
    bench.use_and_free(stream, 4, 32 * MIB);
    bench.windows(3 * WINDOWS, || {
        bench.use_and_free(stream, 1, 32 * MIB);
        bench.complete();
    });
    assert!(bench.reserved() <= 40 * MIB, "{}", bench.reserved() / MIB);
    assert_eq!(count(&bench, Call::CtxRecordEvent), 0);
    bench.finish();
}

/// Where the process captures, decay ends no capture: it records no context event. What a stream freed last goes back after
/// the stream's next request.
#[test]
fn decay_ends_no_capture() {
    let bench = Bench::new("captures=1");
    let stream = bench.stream();
    bench.use_and_free(stream, 4, 16 * MIB);
    bench.complete();
    bench.windows(2 * WINDOWS + 3, || {});
    assert!(bench.reserved() >= 64 * MIB);
    assert_eq!(count(&bench, Call::CtxRecordEvent), 0);
    let small = bench.get(MIB, Some(stream));
    bench.complete();
    bench.windows(3, || {});
    assert!(bench.reserved() <= 8 * MIB, "{}", bench.reserved());
    assert_eq!(count(&bench, Call::CtxRecordEvent), 0);
    bench.put(small, Some(stream));
    bench.finish();
}

/// Freed resizable blocks, which stay mapped for others, go back too.
#[test]
fn cached_ranges_go_back() {
    let bench = Bench::new("");
    let stream = bench.stream();
    for _ in 0..3 {
        let block = bench.request(40 * MIB, RESIZABLE, Some(stream)).unwrap();
        bench.launch(stream, block, 40 * MIB);
        bench.put(block, Some(stream));
        bench.complete();
    }
    bench.windows(2 * WINDOWS + 4, || {});
    assert_eq!(bench.reserved(), 0);
    bench.finish();
}

/// The bytes of `release_threshold` stay.
#[test]
fn threshold_stays() {
    let bench = Bench::new("release_threshold=32MiB");
    let stream = bench.stream();
    bench.use_and_free(stream, 4, 16 * MIB);
    bench.complete();
    bench.windows(2 * WINDOWS + 3, || {});
    assert!(
        (24 * MIB..=32 * MIB).contains(&bench.reserved()),
        "{}",
        bench.reserved()
    );
    bench.finish();
}

/// A request that lacks memory while some is on its way back to the driver waits for it, and is not refused.
#[test]
fn request_waits_for_memory_on_its_way_back() {
    for flags in [0, RESIZABLE] {
        let bench = Bench::new("limit=64MiB,wait_ms=2000");
        let stream = bench.stream();
        bench.use_and_free(stream, 1, 64 * MIB);
        bench.complete();
        let (ask, receiver) = bench.request_of_another_thread(48 * MIB, flags);
        bench.machine.come_between("cuMemUnmap", 1, move |_| {
            std::thread::spawn(ask);
            // The request comes while the handle is on its way. If it is late, it finds the memory gone.
            std::thread::sleep(Duration::from_millis(20));
        });
        // Near a limit, memory becomes common free space first, and is idle from then on.
        bench.windows(3 * WINDOWS, || {});
        let address = receiver.recv_timeout(Duration::from_secs(20)).unwrap().unwrap();
        bench.allocator.deallocate(address, None).unwrap();
        bench.finish();
    }
}

/// A driver that takes nothing back loses nothing.
#[test]
fn refused_memory_stays_in_use() {
    for (options, call) in [
        ("", Call::MemUnmap),
        ("", Call::MemRelease),
        ("backing=malloc", Call::MemFree),
    ] {
        let bench = Bench::new(options);
        let stream = bench.stream();
        bench.use_and_free(stream, 4, 16 * MIB);
        bench.complete();
        let before = bench.reserved();
        bench.machine.fail_every(Some(call.name()), 1, 999);
        bench.windows(2 * WINDOWS + 3, || {});
        assert_eq!(bench.reserved(), before, "{call:?}");
        bench.machine.clear_failures();
        // The memory serves the next requests.
        let grown = count(&bench, Call::MemCreate) + count(&bench, Call::MemAlloc);
        bench.use_and_free(stream, 4, 16 * MIB);
        assert_eq!(
            count(&bench, Call::MemCreate) + count(&bench, Call::MemAlloc),
            grown,
            "{call:?}"
        );
        bench.complete();
        bench.windows(2 * WINDOWS + 3, || {});
        assert_eq!(bench.reserved(), 0, "{call:?}");
        bench.finish();
    }
}
