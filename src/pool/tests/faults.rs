//! Every driver call of a run that uses every feature is made to fail in turn. Nothing is lost, and nothing is handed
//! out twice.

use super::application::{wait_until, wait_until_gone};
use super::{Bench, MIB, RESIZABLE};
use crate::allocator::WINDOWS;
use crate::driver::Stream;
use crate::driver::sim::SimConfig;
use crate::driver::sim::model::capture::{MODE_GLOBAL, MODE_RELAXED, MODE_THREAD_LOCAL};
use crate::driver::sim::model::code::CAPTURE_INVALIDATED;
use crate::driver::sim::model::functions::{Call, CallKind};

/// The live blocks of a run: address, size and stream.
struct Life<'a> {
    bench: &'a Bench,
    out: Vec<(u64, u64, usize)>,
}

impl Life<'_> {
    /// Makes a request, which may be refused because a driver call may have failed.
    fn get(&mut self, size: u64, flags: u32, stream: Option<usize>, home: usize) -> Option<u64> {
        let block = self.bench.request(size, flags, stream).ok()?;
        self.bench.launch(home, block, size);
        self.out.push((block, size, home));
        Some(block)
    }

    fn put(&mut self, at: usize, ordered: bool) {
        if self.out.is_empty() {
            return;
        }
        let (block, _, home) = self.out.swap_remove(at % self.out.len());
        self.bench.put(block, ordered.then_some(home));
    }

    fn resize(&mut self, block: Option<u64>, size: u64) -> Option<u64> {
        let block = block?;
        let known = self.out.iter_mut().find(|(address, ..)| *address == block)?;
        if let Ok(new) = self.bench.resize(block, known.1, size) {
            (known.0, known.1) = (new, size);
        }
        Some(known.0)
    }
}

/// Captures, launches the graph, and destroys it.
fn capture(bench: &Bench, first: usize) {
    bench
        .app(|machine| machine.stream_begin_capture(first, MODE_RELAXED))
        .unwrap();
    let inside = bench.request(2 * MIB, 0, Some(first)).ok();
    let outlives = bench.request(MIB, 0, Some(first)).ok();
    if let Some(block) = inside {
        let launched = bench.app(|machine| machine.launch(first, 1_000_000, &[(block, 2 * MIB)]));
        // The call that failed may be one that keeps the allocator's own calls out of the capture's way.
        let ended = launched == Err(CAPTURE_INVALIDATED) && bench.machine.failures_struck() != 0;
        assert!(launched.is_ok() || ended, "{launched:?}");
        bench.put(block, Some(first));
    }
    if let Ok(graph) = bench.app(|machine| machine.stream_end_capture(first)) {
        bench.app(|machine| {
            let executable = machine.graph_instantiate(graph).unwrap();
            machine.graph_launch(executable, first).unwrap();
            machine.graph_exec_destroy(executable).unwrap();
            machine.graph_destroy(graph).unwrap();
        });
    }
    if let Some(block) = outlives {
        bench.put(block, None);
    }
}

fn live(bench: &Bench) {
    let machine = &bench.machine;
    let mut streams = [bench.stream(), bench.stream()];
    let mut life = Life { bench, out: Vec::new() };
    for round in 0..3u64 {
        for at in 0..6 {
            let stream = streams[at as usize % 2];
            life.get((at + 1) * MIB + round * 700_000, 0, Some(stream), stream);
            life.get(3 * MIB, 0, None, stream);
        }
        let [first, second] = streams;
        let mut grown = life.get(MIB, RESIZABLE, Some(first), first);
        for size in [5 * MIB, 70 * MIB, 2 * MIB, 90 * MIB] {
            grown = life.resize(grown, size);
        }
        for at in 0..5 {
            life.put(at * 3, at % 2 == 0);
        }
        // More than is free as it lies: this needs other streams' memory, remaps and waits.
        life.get(120 * MIB, 0, Some(second), second);
        life.put(0, true);
        life.get(60 * MIB, 0, None, first);
        if let Some((block, ..)) = life.out.first().copied() {
            let event = bench.app(|machine| {
                let event = machine.event_create().unwrap();
                machine.event_record(event, life.out[0].2).unwrap();
                machine.stream_wait_event(second, event).unwrap();
                event
            });
            if bench.allocator.record_stream(block, Stream(second)).is_ok() {
                bench.launch(second, block, 512);
                machine.checker().used(block, second);
            }
            bench.app(|machine| machine.event_destroy(event)).unwrap();
            life.put(0, true);
        }
        // Where the driver does not report that a graph is gone, its memory stays, and the final checks could not hold.
        if bench.allocator.driver().features().user_objects {
            capture(bench, first);
        }
        bench.app(|machine| machine.advance(50_000_000));
        machine.drain_user_objects();
        for _ in 0..=WINDOWS {
            bench.allocator.end_window();
        }
        let _ = bench.allocator.trim(Some(0), 64 * MIB);
        let _ = bench.allocator.set_limit(Some(0), (160 + 16 * round) * MIB);
        // The stream is destroyed; its blocks are moved or freed before.
        let dying = streams[round as usize % 2];
        if round == 1 {
            let _ = bench.allocator.stream_release(Stream(dying));
        }
        while let Some(at) = life.out.iter().position(|(.., home)| *home == dying) {
            life.put(at, round == 0);
        }
        bench.app(|machine| machine.stream_destroy(dying)).unwrap();
        streams[round as usize % 2] = bench.stream();
        let stream = streams[round as usize % 2];
        life.get(8 * MIB, 0, Some(stream), stream);
        bench.allocator.validate().unwrap();
    }
    while !life.out.is_empty() {
        life.put(0, true);
    }
    bench.app(|machine| machine.advance(50_000_000));
    machine.drain_user_objects();
    let _ = bench.allocator.trim(Some(0), 0);
}

fn options() -> Vec<(&'static str, SimConfig)> {
    let config = SimConfig::default;
    let mut all = vec![
        ("limit=192MiB,wait_ms=100", config()),
        ("limit=192MiB,wait_ms=100,backing=malloc", config()),
        ("limit=192MiB,wait_ms=100,kind=pinned", config()),
        ("wait_ms=100,guard=1", config()),
        ("wait_ms=100,release_threshold=0", config()),
        ("limit=192MiB,wait_ms=100,passthrough=1", config()),
        (
            "limit=192MiB,wait_ms=100",
            SimConfig {
                version: 11_080,
                ..config()
            },
        ),
    ];
    all.extend(Bench::MORE.iter().map(|more| (*more, config())));
    all
}

/// The calls that an allocator may make, and how often a run under these options makes each.
fn calls(config: &SimConfig, options: &str) -> Vec<(&'static str, u64)> {
    let bench = Bench::on(config.clone(), options);
    let before = bench.machine.calls();
    live(&bench);
    let made = bench.machine.calls();
    bench.finish_of(options);
    let application = |call: &str| Call::by_name(call).is_none_or(|call| call.kind() == CallKind::Application);
    let count = |call: &str, count: u64| count - before.get(call).unwrap_or(&0);
    made.into_iter()
        .filter(|(call, _)| !application(call))
        .map(|(call, made)| (call, count(call, made)))
        .collect()
}

/// A run in which calls of that name fail as `arm` says. Then all blocks are freed, and nothing is left.
fn fail(options: &str, config: &SimConfig, call: &'static str, what: &str, arm: impl FnOnce(&Bench) -> bool) {
    let bench = Bench::on(config.clone(), options);
    let context = bench.machine.context_current().unwrap();
    bench.machine.exchange_capture_mode(MODE_THREAD_LOCAL).unwrap();
    assert!(arm(&bench));
    live(&bench);
    let struck = bench.machine.failures_struck();
    bench.machine.clear_failures();
    let what = format!("{options}: {call} {what}");
    assert!(struck != 0 || !Bench::REPEATS, "{what}");
    // A call that fails once is repeated. Where all fail, popping a context and restoring the mode fail, too.
    let often = |failing: &str| call == failing && what.contains("every");
    while bench.machine.context_current().unwrap() != context {
        assert!(often("cuCtxPopCurrent"), "{what} left a context behind");
        bench.app(|machine| machine.context_pop()).unwrap();
    }
    let mode = bench.machine.exchange_capture_mode(MODE_GLOBAL).unwrap();
    let kept = mode == MODE_THREAD_LOCAL || often("cuThreadExchangeStreamCaptureMode");
    assert!(kept, "{what} left the capture mode {mode}");
    let wrong = bench.wrong();
    assert!(wrong.is_empty(), "{what}: {wrong:?}");
    bench.allocator.validate().unwrap_or_else(|why| panic!("{what}: {why}"));
    let stats = bench.allocator.stats(Some(0)).unwrap();
    assert_eq!((stats.allocated, stats.requested), (0, 0), "{what}: {stats:?}");
    bench.app(|machine| machine.context_synchronize()).unwrap();
    // The pool has all of its memory.
    bench.allocator.set_limit(Some(0), 0).unwrap();
    let block = bench.get(200 * MIB, None);
    bench.put(block, None);
    bench.finish_of(&what);
}

/// Whether to try everything that .ci/run has time for: TRTALLOC_TEST_REQUIRE has `all` or `slow`, as in tests/support/common/harness.rs.
pub fn in_full() -> bool {
    let list = std::env::var("TRTALLOC_TEST_REQUIRE").unwrap_or_default();
    let has = |name: &str| list.split(',').any(|item| item.trim() == name);
    has("slow") || has("all") && !has("-slow")
}

#[test]
fn every_call_may_fail_once() {
    for (options, config) in options() {
        for (call, count) in calls(&config, options) {
            // The first calls fail each, later ones ever more rarely, because a run repeats itself.
            let mut n = 1;
            while n <= count {
                for code in [2, 999] {
                    if n <= 3 || (n + u64::from(code)).is_multiple_of(2) {
                        fail(options, &config, call, &format!("{n} failed with {code}"), |bench| {
                            bench.machine.fail_nth(Some(call), n, code)
                        });
                    }
                }
                n += match (in_full(), Bench::REPEATS) {
                    (true, true) => 1 + n / 3,
                    (true, false) => 1 + n,
                    (false, true) => 1 + 4 * n,
                    (false, false) => count,
                };
            }
        }
    }
}

#[test]
fn every_call_may_fail_often() {
    for (options, config) in options() {
        for (call, count) in calls(&config, options) {
            for every in [1, 4] {
                if every < 4 && call == "cuCtxPopCurrent" || every + 2 > count {
                    continue;
                }
                let what = format!("failing every {every}");
                fail(options, &config, call, &what, |bench| {
                    // The pool is made before the calls fail.
                    let first = bench.get(512, None);
                    bench.put(first, None);
                    bench.machine.fail_every(Some(call), every, 999)
                });
            }
        }
    }
}

#[test]
fn sticky_error_at_any_call_kills_the_pool() {
    let (options, config) = ("limit=192MiB,wait_ms=100", SimConfig::default());
    for (call, count) in calls(&config, options) {
        for n in [1, 2, count / 2, count] {
            let bench = Bench::on(config.clone(), options);
            assert!(bench.machine.fail_nth(Some(call), n.max(1), 700));
            // Every live block is taken back without an error, and every request is refused or correct.
            live(&bench);
            bench.machine.clear_failures();
            let wrong = bench.wrong();
            assert!(wrong.is_empty(), "{call} {n}: {wrong:?}");
            if let Ok(stats) = bench.allocator.stats(Some(0)) {
                assert_eq!((stats.allocated, stats.requested), (0, 0), "{call} {n}: {stats:?}");
            }
            bench.allocator.close();
        }
    }
}

/// When what a trial has left goes back.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Returns {
    /// When a pool is built, or at a trim.
    InUse,
    /// When the allocator is closed.
    AtClose,
    /// Later, on the helper thread: the driver still refuses it at the close.
    AfterClose,
}

/// A pool that cannot be built leaves nothing, nor does one that is built without virtual memory because that failed. What the driver
/// refuses to take back is tried again when a pool is built, at a trim, when the allocator is closed, and after that.
#[test]
fn a_pool_that_is_not_built_leaves_nothing() {
    let calls = [
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemUnmap",
        "cuMemRelease",
        "cuMemAddressFree",
    ];
    // AscendCL has no call that gives a device access, and its helper thread has no context.
    let options = ["backing=vmm", "backing=auto", "backing=auto,peers=0:1"];
    let options = options
        .into_iter()
        .filter(|options| Bench::REPEATS || !options.contains("peers"));
    let returns = [Returns::InUse, Returns::AtClose, Returns::AfterClose];
    let returns = returns
        .into_iter()
        .filter(|returns| Bench::REPEATS || *returns != Returns::AfterClose);
    for (options, returns) in options.flat_map(|options| returns.clone().map(move |returns| (options, returns))) {
        for call in calls {
            let config = SimConfig {
                devices: 2,
                ..SimConfig::default()
            };
            let bench = Bench::on(config, options);
            for failing in [call, "cuMemAddressFree"] {
                bench.machine.fail_every(Some(failing), 1, 999);
            }
            let what = format!("{options}, {call} fails, {returns:?}");
            let block = bench.request(512, 0, None);
            let built = options != "backing=vmm" || call == "cuMemAddressFree" || !Bench::REPEATS;
            assert!(block.is_err() || built, "{what}");
            if returns == Returns::AfterClose {
                block.into_iter().for_each(|block| bench.put(block, None));
                bench.allocator.close();
                // The helper thread is refused once more.
                let struck = bench.machine.failures_struck();
                wait_until(&what, || bench.machine.failures_struck() > struck);
                bench.machine.clear_failures();
                wait_until_gone(&bench.machine, &what);
                continue;
            }
            bench.machine.clear_failures();
            let built = block.is_ok();
            block.into_iter().for_each(|block| bench.put(block, None));
            if returns == Returns::InUse {
                let block = bench.get(512, None);
                // The pool's own address range is left.
                let most = |what: &str| assert!(bench.machine.memory_held()[0] <= 1, "{what}");
                if !built {
                    most(&what);
                }
                bench.put(block, None);
                bench.allocator.trim(Some(0), 0).unwrap();
                most(&what);
                assert_eq!(bench.machine.memory_held()[1..], [0, 0], "{what}");
            }
            bench.allocator.close();
            assert_eq!(bench.machine.memory_held(), [0, 0, 0], "{what}");
        }
    }
}
