//! `share_budget`: two allocators with open files of their own, which are two processes for the kernel.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Bench, MIB, RESIZABLE};
use crate::driver::sim::model::functions::Call;

/// A directory and a name that no other test has.
struct Budget(PathBuf);

impl Budget {
    fn new() -> Budget {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("trtalloc-sharing-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Budget(path)
    }

    fn bench(&self, mib: u64, options: &str) -> Bench {
        Bench::new(&format!("share_budget={}/jobs:{mib}MiB,{options}", self.0.display()))
    }

    /// Bytes that no process holds.
    fn free(&self, mib: u64) -> u64 {
        let bench = self.bench(mib, "wait_ms=0");
        let block = bench.get(512, None);
        let free = bench.allocator.pool_of(0).shared_budget().unwrap().free().unwrap();
        let free = free + bench.reserved_now();
        bench.put(block, None);
        bench.finish();
        free
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Bench {
    fn reserved_now(&self) -> u64 {
        self.allocator.stats(Some(0)).unwrap().reserved
    }

    fn ended(&self) {
        self.app(|machine| machine.context_synchronize()).unwrap();
    }

    /// As `finish`, for a pool that may have a reserve, which stays until the allocator is closed.
    fn close(self) {
        self.ended();
        assert_eq!(self.wrong(), Vec::<String>::new());
        self.allocator.close();
        let budget = self.allocator.pool_of(0).shared_budget().unwrap();
        assert_eq!((self.reserved_now(), budget.held()), (0, 0));
    }

    /// Looks once as the helper thread does.
    fn looks(&self) {
        self.allocator.pool_of(0).look_for_waiters();
        self.allocator.validate().unwrap();
    }
}

#[test]
fn two_hold_at_most_the_budget_whatever_is_requested() {
    for options in [
        "",
        "backing=malloc",
        "passthrough=1",
        "guard=1",
        "reserve=32MiB",
        "streams=trusted",
        "limit=200MiB",
    ] {
        for flags in [0, RESIZABLE] {
            let budget = Budget::new();
            let options = format!("{options},wait_ms=0");
            let benches = [budget.bench(256, &options), budget.bench(256, &options)];
            let streams = benches.each_ref().map(Bench::stream);
            let (mut blocks, mut errors) = ([Vec::new(), Vec::new()], Vec::new());
            for request in 0..60u64 {
                let at = (request % 2) as usize;
                let bench = &benches[at];
                let stream = Some(streams[at]).filter(|_| request % 3 == 0);
                match bench.request((3 + request % 5) * 2 * MIB, flags, stream) {
                    Ok(block) => blocks[at].push(block),
                    Err(error) => errors.push(error.to_string()),
                }
                let held: u64 = benches.iter().map(Bench::reserved_now).sum();
                assert!(held <= 256 * MIB, "{options}, {flags}: {held}");
                bench.allocator.validate().unwrap();
            }
            let all: usize = blocks.iter().map(Vec::len).sum();
            assert!(all >= 15, "{options}, {flags}: {all} blocks");
            let of_budget = errors.iter().filter(|error| error.contains("share_budget /"));
            let said = of_budget
                .clone()
                .filter(|error| error.contains("bytes of it are free, and this process holds"));
            assert!(
                of_budget.count() > 0 && said.count() > 0,
                "{options}, {flags}: {errors:?}"
            );
            for (bench, blocks) in benches.into_iter().zip(blocks) {
                blocks.into_iter().for_each(|block| bench.put(block, None));
                bench.close();
            }
            assert_eq!(budget.free(256), 256 * MIB, "{options}, {flags}");
        }
    }
}

#[test]
fn available_counts_what_the_budget_has() {
    let budget = Budget::new();
    let (one, other) = (budget.bench(64, "wait_ms=0"), budget.bench(64, "wait_ms=0"));
    let block = one.get(40 * MIB, None);
    let small = other.get(512, None);
    let stats = other.allocator.stats_with_device(Some(0)).unwrap();
    assert!(
        stats.available <= 24 * MIB && stats.available >= 16 * MIB,
        "{}",
        stats.available
    );
    one.put(block, None);
    other.put(small, None);
    one.finish();
    other.finish();
}

/// The process that has free memory gives it back for another one's request, and keeps its reserve.
#[test]
fn free_memory_goes_to_who_is_short() {
    for (options, floor) in [
        ("", 0),
        ("backing=malloc", 0),
        ("streams=trusted", 0),
        ("release_threshold=all", 0),
        ("reserve=16MiB", 16 * MIB),
    ] {
        let budget = Budget::new();
        let (one, other) = (budget.bench(128, options), budget.bench(128, "wait_ms=20000"));
        let stream = one.stream();
        one.use_and_free(stream, 6, 16 * MIB);
        let kept = one.get(4 * MIB, Some(stream));
        one.ended();
        let before = one.reserved_now();
        assert!(before >= 96 * MIB, "{options}: {before}");
        let begun = Instant::now();
        // The helper thread looks meanwhile.
        let block = other.get(96 * MIB, None);
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "{options}: {:?}",
            begun.elapsed()
        );
        // A handle leaves the budget before the helper thread has the pool's lock again to count it.
        while one.reserved_now() > 32 * MIB && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let reserved = one.reserved_now();
        assert!(reserved >= floor && reserved <= 32 * MIB, "{options}: {reserved}");
        assert_eq!(
            other.allocator.stats(Some(0)).unwrap().out_of_memory,
            1,
            "{options}: one attempt counts"
        );
        one.put(kept, Some(stream));
        other.put(block, None);
        one.close();
        other.close();
        assert_eq!(budget.free(128), 128 * MIB, "{options}");
    }
}

#[test]
fn nothing_is_given_back_while_none_is_short() {
    let budget = Budget::new();
    let one = budget.bench(128, "");
    let stream = one.stream();
    one.use_and_free(stream, 6, 16 * MIB);
    one.ended();
    let before = one.reserved_now();
    (0..4).for_each(|_| one.looks());
    assert_eq!(one.reserved_now(), before);
    one.finish();
}

/// Work that has not completed is not waited for, and its memory stays.
#[test]
fn pending_memory_stays_and_nothing_synchronizes() {
    let budget = Budget::new();
    let (one, other) = (budget.bench(128, ""), budget.bench(128, "wait_ms=300"));
    let stream = one.stream();
    one.use_and_free(stream, 6, 16 * MIB);
    let calls = |call: Call| one.machine.count(call.name());
    let waits = || calls(Call::CtxSynchronize) + calls(Call::StreamWaitEvent);
    let before = (one.reserved_now(), waits());
    let begun = Instant::now();
    let error = other.request(96 * MIB, 0, None).unwrap_err().to_string();
    let took = begun.elapsed();
    assert!(error.contains("share_budget"), "{error}");
    assert!(
        took >= Duration::from_millis(250) && took < Duration::from_secs(5),
        "{took:?}"
    );
    assert_eq!((one.reserved_now(), waits()), before);
    one.ended();
    let block = other.get(96 * MIB, None);
    other.put(block, None);
    one.finish();
    other.finish();
}

#[test]
fn no_capture_ends_while_memory_is_given_back() {
    for options in ["", "captures=1"] {
        let budget = Budget::new();
        let (one, other) = (budget.bench(128, options), budget.bench(128, "wait_ms=20000"));
        let (stream, capturing) = (one.stream(), one.stream());
        one.use_and_free(stream, 6, 16 * MIB);
        one.ended();
        one.app(|machine| machine.stream_begin_capture(capturing, 0).unwrap());
        let captured = one.get(MIB, Some(capturing));
        let block = std::thread::scope(|scope| {
            let short = scope.spawn(|| other.get(96 * MIB, None));
            // No context event may cover what the stream freed. Its own requests record events.
            for more in 1.. {
                if short.is_finished() {
                    break;
                }
                let block = one.get(more * 4096, Some(stream));
                one.put(block, Some(stream));
                std::thread::sleep(Duration::from_millis(5));
            }
            short.join().unwrap()
        });
        let graph = one.app(|machine| machine.stream_end_capture(capturing));
        let graph = graph.unwrap_or_else(|code| panic!("{options}: the capture ended with {code}"));
        one.put(captured, Some(capturing));
        one.app(|machine| machine.graph_destroy(graph)).unwrap();
        other.put(block, None);
        one.finish();
        other.finish();
    }
}

/// A request gives back what its own process does not need before it waits for others.
#[test]
fn own_free_memory_goes_first() {
    let budget = Budget::new();
    let (one, other) = (budget.bench(128, "wait_ms=0"), budget.bench(128, "wait_ms=0"));
    let streams = [one.stream(), one.stream(), one.stream()];
    for stream in streams {
        one.use_and_free(stream, 1, 32 * MIB);
    }
    one.ended();
    let theirs = other.request(24 * MIB, 0, None).unwrap();
    let block = one.get(96 * MIB, None);
    one.put(block, None);
    other.put(theirs, None);
    one.finish();
    other.finish();
}

#[test]
fn request_beyond_the_budget_does_not_wait() {
    let budget = Budget::new();
    let (one, other) = (budget.bench(64, ""), budget.bench(64, "wait_ms=60000"));
    let block = one.get(32 * MIB, None);
    let small = other.get(512, None);
    let begun = Instant::now();
    let error = other.request(66 * MIB, 0, None).unwrap_err().to_string();
    assert!(error.contains("share_budget"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(30));
    one.put(block, None);
    other.put(small, None);
    one.finish();
    other.finish();
}

/// While another process waits, a pool creates what a request needs and no more.
#[test]
fn pool_does_not_grow_ahead_while_another_process_waits() {
    for options in ["", "backing=malloc"] {
        let grown = |waits: bool| {
            let budget = Budget::new();
            let (one, other) = (budget.bench(900, options), budget.bench(900, ""));
            let small = other.get(512, None);
            let waiting = waits.then(|| other.allocator.pool_of(0).shared_budget().unwrap().wait());
            let blocks: Vec<u64> = (0..20).map(|_| one.get(16 * MIB - 4096, None)).collect();
            let more = one.reserved_now() - 20 * 16 * MIB;
            drop(waiting);
            blocks.into_iter().for_each(|block| one.put(block, None));
            other.put(small, None);
            one.finish();
            other.finish();
            more
        };
        let (freely, pressed) = (grown(false), grown(true));
        assert!(freely > 0, "{options}: {freely}");
        assert_eq!(pressed, 0, "{options}");
    }
}

#[test]
fn budget_that_cannot_be_locked_refuses_every_request() {
    let budget = Budget::new();
    let bench = budget.bench(64, "");
    let block = bench.get(2 * MIB, None);
    std::fs::remove_dir_all(&budget.0).unwrap();
    let error = bench.request(16 * MIB, 0, None).unwrap_err().to_string();
    assert!(
        error.contains("share_budget") && error.contains("No such file"),
        "{error}"
    );
    // What is there already serves requests.
    bench.put(block, None);
    let block = bench.get(2 * MIB, None);
    bench.put(block, None);
    bench.finish();
    // Without a directory from the start, there is no pool.
    let bench = budget.bench(64, "");
    for _ in 0..2 {
        let error = bench.request(512, 0, None).unwrap_err().to_string();
        assert!(
            error.starts_with("io: share_budget ") && error.contains("No such file"),
            "{error}"
        );
    }
}

/// Each failing driver call leaves the sum as what is held.
#[test]
fn failing_calls_leave_the_sum_correct() {
    for call in [
        Call::MemCreate,
        Call::MemMap,
        Call::MemSetAccess,
        Call::MemUnmap,
        Call::MemRelease,
        Call::MemAlloc,
        Call::MemFree,
    ] {
        for options in ["", "backing=malloc"] {
            for nth in 2..6 {
                let budget = Budget::new();
                let bench = budget.bench(512, &format!("wait_ms=10,{options}"));
                let stream = bench.stream();
                let first = bench.get(2 * MIB, Some(stream));
                assert!(bench.machine.fail_nth(Some(call.name()), nth, 999));
                let blocks: Vec<_> = (0..6).map(|n| bench.request((n + 1) * 4 * MIB, 0, None)).collect();
                blocks.into_iter().flatten().for_each(|block| bench.put(block, None));
                let _ = bench.allocator.trim(Some(0), 0);
                bench.machine.clear_failures();
                bench.put(first, Some(stream));
                let held = || bench.allocator.pool_of(0).shared_budget().unwrap().held();
                assert!(held() >= bench.reserved_now(), "{call:?}, {options}, {nth}");
                bench.ended();
                let _ = bench.allocator.trim(Some(0), 0);
                assert_eq!((held(), bench.reserved_now()), (0, 0), "{call:?}, {options}, {nth}");
                bench.finish();
            }
        }
    }
}
