//! A trim and a limit from outside the process, which come at any moment: they wait for nothing and end no capture.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::{Bench, MIB, RESIZABLE};
use crate::driver::sim::SimConfig;
use crate::driver::sim::model::capture::MODE_RELAXED;
use crate::driver::sim::model::functions::Call;

/// Calls that wait for work, and those that end a capture.
const NEVER: [Call; 5] = [
    Call::EventSynchronize,
    Call::StreamSynchronize,
    Call::CtxSynchronize,
    Call::CtxRecordEvent,
    Call::EventRecord,
];

impl Bench {
    fn never_called(&self) -> u64 {
        NEVER.iter().map(|call| self.machine.count(call.name())).sum()
    }

    fn trim_from_outside(&self) -> u64 {
        let released = self.allocator.pool_of(0).trim_completed(0, false).unwrap();
        self.allocator.validate().unwrap();
        released
    }
}

fn reserved(bench: &Bench) -> u64 {
    bench.allocator.stats(Some(0)).unwrap().reserved
}

/// What has completed goes back, and what is pending stays, without a wait.
#[test]
fn only_what_has_completed_goes_back() {
    for options in ["", "backing=malloc", "streams=trusted"] {
        let bench = Bench::new(options);
        let [stream, other] = [bench.stream(), bench.stream()];
        let held = bench.get(8 * MIB, Some(other));
        let block = bench.get(64 * MIB, Some(stream));
        let kernel = bench.app(|machine| machine.launch_persistent(stream, &[(block, 64 * MIB)]).unwrap());
        bench.put(block, Some(stream));
        let before = bench.app(|_| bench.never_called());
        let memory = reserved(&bench);
        let released = bench.trim_from_outside();
        assert!(released < memory - 72 * MIB, "{options}: {released}");
        assert_eq!(bench.never_called(), before, "{options}");
        assert!(bench.app(|machine| machine.release_persistent(kernel)));
        bench.app(|machine| machine.context_synchronize()).unwrap();
        // An active stream records an event at its next request, and the next trim finds it.
        let next = bench.get(MIB, Some(stream));
        bench.app(|machine| machine.context_synchronize()).unwrap();
        let before = bench.never_called();
        assert!(bench.trim_from_outside() >= 56 * MIB, "{options}: {}", reserved(&bench));
        assert_eq!(bench.never_called(), before, "{options}");
        bench.put(next, Some(stream));
        bench.put(held, Some(other));
        bench.finish();
    }
}

/// A capture on a non-blocking stream that never calls the allocator cannot be seen, and goes on. A trim that confirms ends
/// it, unless the process is known to capture.
#[test]
fn no_capture_ends() {
    for (options, confirms, ends) in [("", false, false), ("", true, true), ("captures=1", true, false)] {
        let bench = Bench::new(options);
        let stream = bench.stream();
        bench.use_and_free(stream, 4, 16 * MIB);
        let small = bench.get(16 * MIB, None);
        bench.put(small, None);
        bench.app(|machine| machine.context_synchronize()).unwrap();
        let captured = bench.stream();
        bench
            .app(|machine| machine.stream_begin_capture(captured, MODE_RELAXED))
            .unwrap();
        let pool = bench.allocator.pool_of(0);
        pool.trim_completed(0, confirms).unwrap();
        if !confirms {
            pool.set_limit_without_wait(MIB).unwrap();
            pool.set_limit_without_wait(0).unwrap();
        }
        let graph = bench.app(|machine| machine.stream_end_capture(captured));
        assert_eq!(graph.is_err(), ends, "{options}, {confirms}");
        if let Ok(graph) = graph {
            bench.app(|machine| machine.graph_destroy(graph)).unwrap();
        }
        bench.finish();
    }
}

#[test]
fn confirmed_memory_goes_back_at_once() {
    let bench = Bench::new("release_threshold=all");
    let stream = bench.stream();
    bench.use_and_free(stream, 4, 16 * MIB);
    let small = bench.get(16 * MIB, None);
    bench.put(small, None);
    let resizable = bench.request(8 * MIB, RESIZABLE, Some(stream)).unwrap();
    bench.put(resizable, Some(stream));
    bench.app(|machine| machine.context_synchronize()).unwrap();
    let pool = bench.allocator.pool_of(0);
    pool.trim_completed(0, true).unwrap();
    assert_eq!(reserved(&bench), 0);
    bench.finish();
}

/// `keep` and the reserve stay.
#[test]
fn what_is_kept_stays() {
    let bench = Bench::new("reserve=64MiB");
    let stream = bench.stream();
    bench.use_and_free(stream, 8, 32 * MIB);
    bench.app(|machine| machine.context_synchronize()).unwrap();
    let pool = bench.allocator.pool_of(0);
    pool.trim_completed(100 * MIB, true).unwrap();
    assert!(
        (90 * MIB..=100 * MIB).contains(&reserved(&bench)),
        "{}",
        reserved(&bench)
    );
    pool.trim_completed(0, true).unwrap();
    assert!(
        (64 * MIB..=70 * MIB).contains(&reserved(&bench)),
        "{}",
        reserved(&bench)
    );
    bench.allocator.close();
    assert_eq!((reserved(&bench), bench.wrong()), (0, Vec::new()));
}

/// The driver may wait before it unmaps: other threads have the pool's lock meanwhile.
#[test]
fn other_threads_go_on_while_memory_goes_back() {
    let bench = Bench::new("");
    let stream = bench.stream();
    bench.use_and_free(stream, 4, 32 * MIB);
    bench.app(|machine| machine.context_synchronize()).unwrap();
    let (ask, receiver) = bench.request_of_another_thread(3 * MIB, 0);
    let (went_on, waiting) = std::sync::mpsc::channel();
    bench.machine.come_between("cuMemUnmap", 1, move |_| {
        std::thread::spawn(ask);
        let outcome = receiver.recv_timeout(std::time::Duration::from_secs(20));
        went_on.send(outcome).unwrap();
    });
    bench.allocator.pool_of(0).trim_completed(0, true).unwrap();
    let address = waiting
        .recv()
        .unwrap()
        .expect("the other thread waits for the trim")
        .unwrap();
    bench.allocator.deallocate(address, None).unwrap();
    bench.finish();
}

/// A driver that takes nothing back ends the trim, and loses nothing.
#[test]
fn refused_memory_stays() {
    for (options, call) in [
        ("", "cuMemUnmap"),
        ("", "cuMemRelease"),
        ("backing=malloc", "cuMemFree"),
    ] {
        let bench = Bench::new(options);
        let stream = bench.stream();
        bench.use_and_free(stream, 4, 16 * MIB);
        bench.app(|machine| machine.context_synchronize()).unwrap();
        assert!(bench.machine.fail_every(Some(call), 1, 999), "{call}");
        let _ = bench.allocator.pool_of(0).trim_completed(0, true);
        bench.allocator.validate().unwrap();
        bench.machine.clear_failures();
        bench.allocator.pool_of(0).trim_completed(0, true).unwrap();
        assert_eq!(reserved(&bench), 0, "{options}, {call}");
        bench.finish();
    }
}

/// Blocks with memory of their own come and go while another thread looks at all memory. Each of them lies within its extent.
#[test]
fn memory_is_inspected_beside_blocks_that_come_and_go() {
    let bench = Bench::over(
        SimConfig {
            memory: 8 << 30,
            ..SimConfig::default()
        },
        "",
    );
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                for segment in bench
                    .allocator
                    .snapshot()
                    .unwrap()
                    .devices
                    .iter()
                    .flat_map(|of| &of.segments)
                {
                    let bytes: u64 = segment.pieces.iter().map(|piece| piece.size).sum();
                    assert_eq!(bytes, segment.size);
                }
            }
        });
        for round in 0..3_000u64 {
            let sizes = [1, 7, 30, 3].map(|size| (size + round % 5) * MIB);
            let blocks = sizes.map(|size| bench.request(size, RESIZABLE, None).unwrap());
            blocks.iter().for_each(|block| bench.put(*block, None));
        }
        over.store(true, Relaxed);
    });
    bench.finish();
}
