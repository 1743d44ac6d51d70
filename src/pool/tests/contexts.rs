//! Default streams on threads without a context: they are those of the primary context of the block's device.

use super::{Bench, MIB};
use crate::allocator::{Allocator, Request};
use crate::driver::Stream;
use crate::driver::sim::model::Machine;
use crate::driver::sim::model::capture::{MODE_GLOBAL, MODE_THREAD_LOCAL};
use crate::driver::sim::{SimConfig, SimDriver};
use crate::support::config::Config;

const NULL: Stream = Stream::DEFAULT;

/// An allocator whose thread has left its context.
fn outside(devices: u32, version: u32, options: &str) -> Bench {
    let config = SimConfig {
        devices,
        version,
        ..SimConfig::default()
    };
    let bench = Bench::on(config, options);
    bench.app(|machine| {
        machine.context_pop().unwrap();
        for device in 0..devices {
            machine.primary_retain(device as i32).unwrap();
        }
    });
    bench
}

/// Runs the application's work in the primary context of a device, as the CUDA runtime would for a thread without a
/// context.
fn inside<T>(bench: &Bench, device: i32, work: impl FnOnce(&Bench) -> T) -> T {
    bench.app(|machine| machine.context_push(machine.primary_retain(device).unwrap()).unwrap());
    let outcome = work(bench);
    bench.app(|machine| {
        machine.context_pop().unwrap();
        machine.primary_release(device).unwrap();
    });
    outcome
}

fn get(bench: &Bench, device: i32, stream: Option<Stream>) -> u64 {
    let request = Request {
        size: MIB,
        alignment: 0,
        flags: 0,
        stream,
        device: Some(device),
    };
    let block = bench.allocator.allocate(request).unwrap();
    let hear = |bench: &Bench| bench.machine.checker().hand_out(block, MIB, stream.map(|of| of.0));
    inside(bench, device, hear);
    block
}

fn put(bench: &Bench, device: i32, block: u64, stream: Option<Stream>) {
    inside(bench, device, |bench| {
        bench.machine.checker().give_back(block, stream.map(|of| of.0))
    });
    bench.allocator.deallocate(block, stream).unwrap();
}

/// Uses a block on the default stream of the device, and declares the use.
fn record(bench: &Bench, device: i32, block: u64) {
    inside(bench, device, |bench| {
        bench.launch(0, block, MIB);
        bench.machine.checker().used(block, 0);
    });
    bench.allocator.record_stream(block, NULL).unwrap();
}

fn finish(bench: Bench, device: i32) {
    let reserved = bench.allocator.stats(Some(device)).unwrap().reserved_peak;
    // What was freed is covered once it is 32 MiB.
    assert!(reserved <= 40 * MIB, "{} MiB reserved for 1 MiB in use", reserved / MIB);
    inside(&bench, device, |bench| {
        bench.app(|machine| machine.context_synchronize()).unwrap()
    });
    assert_eq!(bench.wrong(), Vec::<String>::new());
    bench.allocator.validate().unwrap();
    bench.allocator.close();
    assert_eq!(bench.wrong(), Vec::<String>::new());
}

/// PyTorch's loader threads do this: they declare blocks of one stream for the default stream.
#[test]
fn record_stream_without_context_keeps_reserved_near_the_peak() {
    for device in [0, 1] {
        let bench = outside(2, 12_090, "");
        let stream = Stream(inside(&bench, device, |bench| bench.stream()));
        for _ in 0..4_000 {
            let block = get(&bench, device, Some(stream));
            bench.launch(stream.0, block, MIB);
            record(&bench, device, block);
            put(&bench, device, block, Some(stream));
            // The host waits for its results.
            bench.app(|machine| machine.advance(3_000_000));
        }
        finish(bench, device);
    }
}

/// On a driver without stream ids, each free waits for an event of its own.
#[test]
fn blocks_of_the_default_stream_without_context_come_back() {
    for version in [12_090, 12_040, 11_080] {
        for device in [0, 1] {
            let bench = outside(2, version, "");
            for _ in 0..2_000 {
                let block = get(&bench, device, Some(NULL));
                inside(&bench, device, |bench| bench.launch(0, block, MIB));
                put(&bench, device, block, Some(NULL));
            }
            finish(bench, device);
        }
    }
}

/// Blocks that were allocated without a stream, or on another stream, are freed on the default stream.
#[test]
fn frees_on_the_default_stream_without_context_come_back() {
    for version in [12_090, 11_080] {
        for own in [false, true] {
            let bench = outside(1, version, "");
            let stream = Some(Stream(inside(&bench, 0, |bench| bench.stream()))).filter(|_| own);
            for _ in 0..2_000 {
                let block = get(&bench, 0, stream);
                inside(&bench, 0, |bench| bench.launch(0, block, MIB));
                put(&bench, 0, block, Some(NULL));
                bench.app(|machine| machine.advance(3_000_000));
            }
            finish(bench, 0);
        }
    }
}

/// While another device is current, a default stream is that device's, and the default stream of the block's device may
/// have work too.
#[test]
fn block_of_another_device_than_the_current_one_waits_for_both() {
    let bench = outside(2, 12_090, "limit=4MiB,wait_ms=1,peers=auto");
    let stream = inside(&bench, 1, |bench| bench.stream());
    for device in [0, 1] {
        let block = get(&bench, 1, Some(Stream(stream)));
        inside(&bench, 0, |bench| bench.allocator.record_stream(block, NULL).unwrap());
        let kernel = inside(&bench, device, |bench| {
            bench
                .app(|machine| machine.launch_persistent(0, &[(block, MIB)]))
                .unwrap()
        });
        put(&bench, 1, block, Some(Stream(stream)));
        let mut taken = Vec::new();
        while let Ok(other) = bench.allocator.allocate(Request {
            size: MIB,
            alignment: 0,
            flags: 0,
            stream: Some(Stream(stream)),
            device: Some(1),
        }) {
            assert_ne!(other, block, "work of device {device} is not over");
            taken.push(other);
        }
        assert!(bench.machine.release_persistent(kernel));
        taken
            .iter()
            .for_each(|block| bench.allocator.deallocate(*block, Some(Stream(stream))).unwrap());
    }
    bench.allocator.close();
    assert_eq!(bench.machine.faults(), Vec::<String>::new());
}

/// The application has a context of its own, and the pool's own is that one. The default stream of a thread
/// without a context is the primary context's nevertheless.
#[test]
fn default_stream_without_context_is_not_that_of_a_context_of_the_applications() {
    let driver = SimDriver::new(SimConfig::default());
    let machine = driver.machine().clone();
    let own = machine.context_create(0).unwrap();
    let allocator = Allocator::with_driver(driver, Config::parse("limit=8MiB,wait_ms=1").unwrap()).unwrap();
    let bench = Bench { machine, allocator };
    let first = bench.get(MIB, None);
    bench.put(first, None);
    assert_eq!(
        bench.app(|machine| machine.primary_active(0)),
        Ok(false),
        "the pool makes none"
    );
    let block = bench.get(MIB, Some(0));
    bench.app(|machine| machine.context_pop()).unwrap();
    // Another part of the application uses the runtime.
    bench.app(|machine| machine.primary_retain(0)).unwrap();
    let kernel = inside(&bench, 0, |bench| {
        bench
            .app(|machine| machine.launch_persistent(0, &[(block, MIB)]))
            .unwrap()
    });
    bench.machine.checker().give_back(block, None);
    bench.allocator.deallocate(block, Some(NULL)).unwrap();
    bench.app(|machine| machine.context_push(own)).unwrap();
    // The checker checks each request: memory that the primary context may still use is handed out behind its work, or
    // not at all.
    let taken: Vec<u64> = std::iter::from_fn(|| bench.request(MIB, 0, Some(0)).ok()).collect();
    assert!(bench.machine.release_persistent(kernel));
    taken.into_iter().for_each(|block| bench.put(block, Some(0)));
    bench.app(|machine| machine.context_synchronize()).unwrap();
    bench.allocator.close();
    assert_eq!(bench.wrong(), Vec::<String>::new());
}

#[test]
fn declared_use_without_context_delays_the_reuse() {
    let bench = outside(1, 12_090, "limit=4MiB,wait_ms=1");
    let stream = Stream(inside(&bench, 0, |bench| bench.stream()));
    let blocks = [(); 2].map(|()| get(&bench, 0, Some(stream)));
    let kernel = inside(&bench, 0, |bench| {
        bench
            .app(|machine| machine.launch_persistent(0, &[(blocks[0], MIB)]))
            .unwrap()
    });
    record(&bench, 0, blocks[0]);
    blocks.iter().for_each(|block| put(&bench, 0, *block, Some(stream)));
    let taken: Vec<u64> = std::iter::from_fn(|| {
        let request = Request {
            size: MIB,
            alignment: 0,
            flags: 0,
            stream: Some(stream),
            device: None,
        };
        bench.allocator.allocate(request).ok()
    })
    .collect();
    assert!(taken.contains(&blocks[1]) && !taken.contains(&blocks[0]), "{taken:x?}");
    assert!(bench.machine.release_persistent(kernel));
    taken
        .iter()
        .for_each(|block| bench.allocator.deallocate(*block, Some(stream)).unwrap());
    inside(&bench, 0, |bench| {
        bench.app(|machine| machine.context_synchronize()).unwrap()
    });
    bench.allocator.close();
    assert_eq!(bench.machine.faults(), Vec::<String>::new());
}

/// A thread without a context works on the default stream while a driver call fails as `arm` says. The pool's own context is the
/// application's own context at first, or the primary one. False where the calls did not come so far.
fn keeps_context_and_mode(version: u32, own: bool, what: &str, arm: impl FnOnce(&Machine)) -> bool {
    let config = SimConfig {
        version,
        ..SimConfig::default()
    };
    let driver = SimDriver::new(config);
    let machine = driver.machine().clone();
    let context = machine.context_create(0).unwrap();
    let allocator = Allocator::with_driver(driver, Config::parse("decay_ms=0,wait_ms=1").unwrap()).unwrap();
    let bench = Bench { machine, allocator };
    if own {
        let first = bench.get(MIB, None);
        bench.put(first, None);
    }
    let other = Stream(bench.stream());
    let block = own.then(|| bench.get(MIB, Some(other.0)));
    bench.app(|machine| machine.context_pop()).unwrap();
    bench.app(|machine| machine.primary_retain(0)).unwrap();
    bench.machine.exchange_capture_mode(MODE_THREAD_LOCAL).unwrap();
    arm(&bench.machine);
    let request = |stream| Request {
        size: MIB,
        alignment: 0,
        flags: 0,
        stream,
        device: None,
    };
    for stream in [Some(NULL), None] {
        if let Ok(block) = bench.allocator.allocate(request(stream)) {
            let _ = bench.allocator.record_stream(block, NULL);
            bench.allocator.deallocate(block, stream).unwrap();
        }
    }
    if let Some(block) = block {
        let _ = bench.allocator.record_stream(block, NULL);
        bench.allocator.deallocate(block, Some(NULL)).unwrap();
    }
    let _ = bench.allocator.stats(None);
    let struck = bench.machine.failures_struck() != 0;
    bench.machine.clear_failures();
    assert_eq!(bench.machine.context_current(), Ok(0), "{what}");
    assert_eq!(
        bench.machine.exchange_capture_mode(MODE_GLOBAL),
        Ok(MODE_THREAD_LOCAL),
        "{what}"
    );
    bench.app(|machine| machine.context_push(context)).unwrap();
    bench.allocator.close();
    struck
}

#[test]
fn failing_call_leaves_the_thread_its_context_and_capture_mode() {
    for version in [12_090, 11_080] {
        for own in [false, true] {
            let once = |n: &u64| {
                let what = format!("{version} {own}: call {n}");
                keeps_context_and_mode(version, own, &what, |machine| assert!(machine.fail_nth(None, *n, 999)))
            };
            let calls = (1..).take_while(once).count();
            assert!(calls > 20, "{version} {own}: {calls}");
        }
    }
}

/// CUDA's calls may return the error of earlier work although they did what they are for.
#[test]
fn push_or_pop_with_an_earlier_error_leaves_the_thread_its_context() {
    // Without ids, a context that is current is pushed again to see whether it exists. Such an error leaves it twice.
    for version in [12_090, 12_040] {
        for own in [false, true] {
            for call in ["cuCtxPushCurrent", "cuCtxPopCurrent"] {
                let once = |n: &u64| {
                    let what = format!("{version} {own}: {call} {n}");
                    keeps_context_and_mode(version, own, &what, |machine| {
                        assert!(machine.fail_late(call, *n, 700));
                    })
                };
                assert!((1..).take_while(once).count() > 1, "{version} {own}: {call}");
            }
        }
    }
}

/// A thread of another device frees a block of a device whose context carries an error. It keeps its own context.
#[test]
fn earlier_error_of_a_device_leaves_the_thread_that_of_another() {
    let bench = Bench::on(
        SimConfig {
            devices: 2,
            ..SimConfig::default()
        },
        "",
    );
    let block = bench.get(64 * MIB, None);
    let far = bench.app(|machine| machine.primary_retain(1)).unwrap();
    bench.app(|machine| machine.context_push(far)).unwrap();
    assert!(bench.machine.fail_late("cuCtxPopCurrent", 1, 700));
    bench.put(block, None);
    assert_ne!(bench.machine.failures_struck(), 0);
    bench.machine.clear_failures();
    assert_eq!(bench.app(|machine| machine.context_current()), Ok(far));
    bench.app(|machine| machine.context_pop()).unwrap();
    bench.finish();
}

/// A pair of the default stream on a thread without a context makes few driver calls: it enters the primary context,
/// queries the stream, and leaves. Where the request names no device, it asks for the current one.
#[test]
fn pair_of_the_default_stream_without_a_context_makes_few_calls() {
    for (device, more) in [(Some(0), 0), (None, 1)] {
        let bench = outside(1, 12_090, "");
        let request = Request {
            size: MIB,
            alignment: 0,
            flags: 0,
            stream: Some(NULL),
            device,
        };
        let pair = || {
            let before = bench.machine.calls_made();
            let block = bench.allocator.allocate(request).unwrap();
            let allocated = bench.machine.calls_made();
            bench.allocator.deallocate(block, Some(NULL)).unwrap();
            (allocated - before, bench.machine.calls_made() - allocated)
        };
        pair();
        assert_eq!(pair(), (6 + more, 6));
        finish(bench, 0);
    }
}
