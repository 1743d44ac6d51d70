//! The driver may wait before it unmaps or frees, so no such call is made under the pool's lock.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Bench, MIB, RESIZABLE};
use crate::allocator::{Allocator, Request};
use crate::driver::Stream;

/// Calls that may wait.
const MAY_WAIT: [&str; 4] = ["cuMemUnmap", "cuMemRelease", "cuMemFree", "cuMemAddressFree"];

/// Those calls of `work` that came while the pool's lock was held, and how many came at all.
fn calls_under_lock(bench: &Bench, work: impl FnOnce()) -> (BTreeSet<&'static str>, u64) {
    let found = Arc::new(Mutex::new((BTreeSet::new(), 0)));
    for call in MAY_WAIT {
        for at in 1..=300 {
            let (allocator, found) = (bench.allocator.clone(), found.clone());
            bench.machine.come_between(call, at, move |_| {
                let held = allocator.pool_of(0).inspect(Duration::ZERO).is_none();
                let mut found = found.lock();
                found.0.extend(held.then_some(call));
                found.1 += 1;
            });
        }
    }
    work();
    bench.machine.clear_failures();
    let found = found.lock();
    (found.0.clone(), found.1)
}

fn reserved(bench: &Bench) -> u64 {
    bench.allocator.stats(Some(0)).unwrap().reserved
}

/// `work` returns all memory to the driver, and makes no call that may wait with the lock held.
fn all_goes_without_lock(bench: Bench, what: &str, work: impl FnOnce(&Bench)) {
    let (held, calls) = calls_under_lock(&bench, || work(&bench));
    bench.allocator.validate().unwrap();
    assert_eq!((reserved(&bench), held), (0, BTreeSet::new()), "{what}");
    assert!(calls > 0, "{what}");
    bench.finish();
}

/// A trim, of free space, of cached ranges and of what is pending.
#[test]
fn trim_gives_memory_back_without_the_lock() {
    for options in ["", "backing=malloc"] {
        let bench = Bench::new(options);
        let stream = bench.stream();
        bench.use_and_free(stream, 6, 24 * MIB);
        let resizable = [(); 4].map(|()| bench.request(8 * MIB, RESIZABLE, Some(stream)).unwrap());
        resizable.into_iter().for_each(|block| bench.put(block, Some(stream)));
        bench.complete();
        all_goes_without_lock(bench, options, |bench| {
            bench.allocator.pool_of(0).trim(0).unwrap();
        });
    }
}

/// A free of a large block without a stream: its memory is gone when the free returns.
#[test]
fn large_block_goes_back_without_the_lock() {
    for options in ["", "backing=malloc"] {
        let bench = Bench::new(options);
        let block = bench.get(64 * MIB, None);
        bench.complete();
        all_goes_without_lock(bench, options, |bench| bench.put(block, None));
    }
}

/// Allocations of their own, in a free and in a trim.
#[test]
fn dedicated_allocations_go_back_without_the_lock() {
    for (options, flags) in [("passthrough=1", 0), ("guard=1", 0), ("", RESIZABLE)] {
        let bench = Bench::new(options);
        let stream = bench.stream();
        // There is a pool from now on.
        let first = bench.request(MIB, flags, None).unwrap();
        bench.put(first, None);
        let (mut held, mut calls) = (BTreeSet::new(), 0);
        for round in 0..4 {
            let on = Some(stream).filter(|_| round % 2 == 0);
            let blocks = [(); 3].map(|()| bench.request((40 + round) * MIB, flags, on).unwrap());
            let (held_now, calls_now) = calls_under_lock(&bench, || {
                blocks.into_iter().for_each(|block| bench.put(block, on));
                bench.complete();
                bench.allocator.pool_of(0).trim(0).unwrap();
            });
            held.extend(held_now);
            calls += calls_now;
        }
        bench.allocator.validate().unwrap();
        assert_eq!(reserved(&bench), 0, "{options}");
        assert!(calls > 0, "{options}");
        assert_eq!(held, BTreeSet::new(), "{options}");
        bench.finish();
    }
}

/// More is reserved than `release_threshold` keeps.
#[test]
fn memory_beyond_the_threshold_goes_back_without_the_lock() {
    let bench = Bench::new("release_threshold=16MiB");
    let stream = bench.stream();
    let blocks = [(); 6].map(|()| bench.get(16 * MIB, None));
    bench.complete();
    let (held, calls) = calls_under_lock(&bench, || {
        blocks.into_iter().for_each(|block| bench.put(block, None));
        bench.complete();
        let block = bench.get(MIB, Some(stream));
        bench.put(block, Some(stream));
    });
    bench.allocator.validate().unwrap();
    assert!(calls > 0);
    assert!(reserved(&bench) <= 32 * MIB, "{}", reserved(&bench));
    assert_eq!(held, BTreeSet::new());
    bench.finish();
}

/// A request that cannot be met ends, also where each of its attempts leaves memory that must go back at once.
#[test]
fn refused_request_ends_where_nothing_may_stay() {
    for flags in [0, RESIZABLE] {
        for options in ["", "backing=malloc", "limit=300MiB"] {
            let bench = Bench::new(&format!("release_threshold=0,wait_ms=1,{options}"));
            let total = bench.app(|machine| machine.memory_info(0)).unwrap().0;
            bench.app(|machine| machine.others_hold(0, total - 320 * MIB)).unwrap();
            let stream = bench.stream();
            let live: Vec<u64> = (0..3).map(|_| bench.get(30 * MIB, Some(stream))).collect();
            for on in [Some(stream), None] {
                assert!(bench.request(290 * MIB, flags, on).is_err(), "{options}");
            }
            bench.app(|machine| machine.others_hold(0, 0)).unwrap();
            live.into_iter().for_each(|block| bench.put(block, Some(stream)));
            bench.finish();
        }
    }
}

impl Bench {
    /// As [`Bench::finish_of`], of an allocator that may be closed, which the helper thread brings to its end.
    fn ends(self, what: &str) {
        let reserved = || self.allocator.stats(Some(0)).unwrap().reserved;
        let until = Instant::now() + Duration::from_secs(20);
        while self.allocator.trim(Some(0), 0).is_ok() && reserved() > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((reserved(), self.wrong()), (0, Vec::new()), "{what}");
        self.allocator.close();
    }
}

/// What other threads may do while memory is on its way back.
const OTHERS: [fn(&Allocator); 6] = [
    |allocator| drop(allocator.trim(Some(0), 0)),
    |allocator| request(allocator, MIB),
    |allocator| request(allocator, 200 * MIB),
    |allocator| drop(allocator.set_limit(Some(0), 8 * MIB)),
    |allocator| _ = allocator.end_window(),
    |allocator| allocator.close(),
];

fn request(allocator: &Allocator, size: u64) {
    let request = Request {
        size,
        alignment: 0,
        flags: 0,
        stream: None,
        device: Some(0),
    };
    if let Ok(address) = allocator.allocate(request) {
        allocator.deallocate(address, None).unwrap();
    }
}

/// Other calls come between the driver calls of a trim, which may fail, too. Nothing is lost or given back twice.
#[test]
fn others_come_while_memory_leaves() {
    for options in ["limit=256MiB", "backing=malloc,limit=256MiB"] {
        for (which, other) in OTHERS.into_iter().enumerate() {
            for call in MAY_WAIT {
                for (at, fails) in [(1, false), (2, false), (2, true), (5, true)] {
                    let what = format!("{options}: {which} at {call} {at}, {fails}");
                    let bench = Bench::new(&format!("wait_ms=1,{options}"));
                    let stream = bench.stream();
                    bench.use_and_free(stream, 6, 20 * MIB);
                    let resizable = [(); 3].map(|()| bench.request(8 * MIB, RESIZABLE, Some(stream)).unwrap());
                    resizable.into_iter().for_each(|block| bench.put(block, Some(stream)));
                    bench.complete();
                    let allocator = bench.allocator.clone();
                    bench.machine.come_between(call, at, move |_| other(&allocator));
                    if fails {
                        bench.machine.fail_nth(Some(call), at + 1, 1);
                    }
                    let _ = bench.allocator.trim(Some(0), 0);
                    bench.machine.clear_failures();
                    bench.allocator.validate().unwrap_or_else(|why| panic!("{what}: {why}"));
                    bench.ends(&what);
                }
            }
        }
    }
}

/// Two trims at once keep what each of them is to keep, but for a handle: what already leaves is not held any more.
#[test]
fn memory_that_leaves_counts_as_gone() {
    let keep = 80 * MIB;
    let bench = Bench::new("wait_ms=1");
    let stream = bench.stream();
    bench.use_and_free(stream, 80, 2 * MIB);
    bench.complete();
    let allocator = bench.allocator.clone();
    let begun = reserved(&bench);
    bench.machine.come_between("cuMemUnmap", 1, move |_| {
        allocator.trim(Some(0), keep).unwrap();
    });
    bench.allocator.trim(Some(0), keep).unwrap();
    let kept = reserved(&bench);
    assert!(
        begun > keep && kept <= keep && keep - kept < 8 * MIB,
        "{kept} of {begun}"
    );
    bench.finish();
}

/// Requests that move handles, exchange them, grow blocks, cut their ends and are refused.
fn move_and_exchange(bench: &Bench) -> Vec<u64> {
    let streams = [bench.stream(), bench.stream()];
    let mut live = Vec::new();
    for round in 0..3u64 {
        let stream = Some(streams[round as usize % 2]);
        // Every second block stays, so that what is free is in pieces.
        let blocks: Vec<u64> = (0..16)
            .filter_map(|_| bench.request((4 + round) * MIB, 0, stream).ok())
            .collect();
        for (at, block) in blocks.into_iter().enumerate() {
            match at % 2 {
                0 => bench.put(block, stream),
                _ => live.push(block),
            }
        }
        bench.complete();
        live.extend(bench.request((20 + round) * MIB, 0, stream));
        live.extend(bench.request((24 + round) * MIB, 0, None));
        if let Ok(block) = bench.request(12 * MIB, RESIZABLE, stream) {
            let (block, size) = match bench.resize(block, 12 * MIB, (30 + round) * MIB) {
                Ok(grown) => (grown, (30 + round) * MIB),
                Err(_) => (block, 12 * MIB),
            };
            let block = bench.resize(block, size, 6 * MIB).unwrap_or(block);
            bench.complete();
            live.extend(bench.request(28 * MIB, RESIZABLE, None));
            live.push(block);
        }
        let _ = bench
            .request(400 * MIB, 0, stream)
            .map(|block| bench.put(block, stream));
    }
    live
}

/// Other calls come between the driver calls of requests that move and exchange memory, and those calls may fail.
#[test]
fn others_come_while_memory_moves() {
    for options in ["limit=160MiB", "backing=malloc,limit=160MiB"] {
        for (which, other) in OTHERS.into_iter().enumerate() {
            for call in MAY_WAIT {
                for (at, fails) in [(1, false), (3, true), (9, false)] {
                    let what = format!("{options}: {which} at {call} {at}, {fails}");
                    let bench = Bench::new(&format!("wait_ms=1,{options}"));
                    // There is a pool from now on.
                    let first = bench.get(512, None);
                    bench.put(first, None);
                    let allocator = bench.allocator.clone();
                    bench.machine.come_between(call, at, move |_| other(&allocator));
                    if fails {
                        bench.machine.fail_nth(Some(call), at, 2);
                    }
                    let live = move_and_exchange(&bench);
                    bench.machine.clear_failures();
                    bench.allocator.validate().unwrap_or_else(|why| panic!("{what}: {why}"));
                    live.into_iter().for_each(|block| bench.put(block, None));
                    bench.complete();
                    bench.ends(&what);
                }
            }
        }
    }
}

/// A move is under way while the stream that it is for is destroyed, and another one requests memory: what was moved is
/// cached, and nothing is mapped for an owner that is gone.
#[test]
fn stream_ends_while_its_memory_moves() {
    let mut ended = 0;
    for at in 1..=4 {
        let bench = Bench::new("limit=64MiB,wait_ms=1");
        let stream = bench.stream();
        let blocks: Vec<u64> = (0..16).map(|_| bench.get(4 * MIB, Some(stream))).collect();
        let (freed, live): (Vec<_>, Vec<_>) = blocks.iter().enumerate().partition(|(at, _)| at % 2 == 0);
        freed.into_iter().for_each(|(_, block)| bench.put(*block, Some(stream)));
        bench.complete();
        let allocator = bench.allocator.clone();
        bench.machine.come_between("cuMemUnmap", at, move |_| {
            allocator.stream_release(Stream(stream)).unwrap();
        });
        let moved = bench.request(24 * MIB, 0, Some(stream));
        ended += u64::from(moved.is_err());
        bench.machine.clear_failures();
        bench.allocator.validate().unwrap();
        moved.into_iter().for_each(|block| bench.put(block, None));
        live.into_iter().for_each(|(_, block)| bench.put(*block, None));
        bench.complete();
        bench.finish();
    }
    assert!(ended > 0);
}

/// A trim looks again once another call has let a range go, whose handles are cached only then.
#[test]
fn trim_takes_what_another_call_has_cached_meanwhile() {
    let bench = Bench::new("guard=1,wait_ms=2000");
    let [stream, other] = [bench.stream(), bench.stream()];
    let [mine, late] = [(stream, 8 * MIB), (other, 12 * MIB)].map(|(on, size)| (bench.get(size, Some(on)), on));
    bench.put(mine.0, Some(mine.1));
    // An event covers the first block, whose handle is cached then.
    let held = bench.get(MIB, Some(stream));
    for _ in 0..2 {
        bench.complete();
        bench.allocator.pool_of(0).trim_completed(u64::MAX, true).unwrap();
    }
    let kernel = bench.app(|machine| machine.launch_persistent(other, &[(late.0, 12 * MIB)]).unwrap());
    bench.put(late.0, Some(late.1));
    let context = bench.app(|machine| machine.context_current()).unwrap();
    let (begins, begun) = std::sync::mpsc::channel();
    let (allocator, machine) = (bench.allocator.clone(), bench.machine.clone());
    // While the trim releases that handle, the other block's work ends, and another call begins to unmap that one's.
    bench.machine.come_between("cuMemRelease", 1, move |_| {
        std::thread::spawn(move || {
            machine.context_push(context).unwrap();
            assert!(machine.release_persistent(kernel));
            machine.context_synchronize().unwrap();
            for _ in 0..2 {
                allocator.pool_of(0).trim_completed(u64::MAX, true).unwrap();
            }
        });
        let _ = begun.recv_timeout(Duration::from_secs(20));
    });
    bench.machine.come_between("cuMemUnmap", 1, move |_| {
        begins.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    });
    bench.allocator.pool_of(0).trim(0).unwrap();
    bench.machine.clear_failures();
    assert_eq!(reserved(&bench), 2 * MIB);
    bench.put(held, Some(stream));
    bench.finish();
}
