//! What a block grows by may be used at once on any stream: no work on the blocks that had the memory before is pending.
//! The order checker judges it as if it were handed out without a stream.

use super::{Bench, MIB, RESIZABLE};

/// A block that a stream has freed, with work pending on all of it.
fn free_with_work_pending(bench: &Bench, stream: usize, size: u64) {
    let block = bench.request(size, RESIZABLE, Some(stream)).unwrap();
    bench.launch(stream, block, size);
    bench.put(block, Some(stream));
}

fn waits(bench: &Bench) -> u64 {
    bench.allocator.stats(Some(0)).unwrap().waits
}

/// With pages of its own, and in ordinary free space.
#[test]
fn bytes_within_the_rounding_are_complete() {
    for options in ["backing=malloc", ""] {
        let bench = Bench::new(options);
        let stream = bench.stream();
        free_with_work_pending(&bench, stream, 4 * MIB);
        let block = bench.request(4 * MIB - 500, RESIZABLE, Some(stream)).unwrap();
        let block = bench.resize(block, 4 * MIB - 500, 4 * MIB - 300).unwrap();
        let block = bench.resize(block, 4 * MIB - 300, 4 * MIB).unwrap();
        bench.put(block, Some(stream));
        bench.finish_of(options);
    }
}

/// A block that began with work pending on all of it, and that shrinks within its pages or by whole handles.
#[test]
fn bytes_that_come_back_after_a_shrink_are_complete() {
    for (large, small) in [(64, 8), (4, 3), (8, 7)] {
        let bench = Bench::new("");
        let stream = bench.stream();
        let (large, small) = (large * MIB, small * MIB);
        free_with_work_pending(&bench, stream, large);
        let block = bench.request(large, RESIZABLE, Some(stream)).unwrap();
        let block = bench.resize(block, large, small).unwrap();
        let block = bench.resize(block, small, large - 512).unwrap();
        let block = bench.resize(block, large - 512, large).unwrap();
        assert_eq!(bench.wrong(), Vec::<String>::new());
        assert_eq!(waits(&bench), 1, "the second growth has nothing to wait for");
        // It gives up what has no other work than its own.
        let block = bench.resize(block, large, small).unwrap();
        let block = bench.resize(block, small, large).unwrap();
        assert_eq!(waits(&bench), 1);
        bench.put(block, Some(stream));
        bench.finish_of(&format!("{large} to {small}"));
    }
}

/// What the work on the block before it never used needs no wait, also for a size that is no multiple of anything.
#[test]
fn growth_beyond_what_was_used_waits_for_nothing() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let size = 8 * MIB + 100;
    free_with_work_pending(&bench, stream, size);
    let reserved = bench.allocator.stats(Some(0)).unwrap().reserved;
    let mut block = bench.request(size, RESIZABLE, Some(stream)).unwrap();
    let mut had = size;
    for more in [1, 400, 512, 64 << 10] {
        block = bench.resize(block, had, size + more).unwrap();
        had = size + more;
    }
    assert_eq!(waits(&bench), 0);
    assert_eq!(
        bench.allocator.stats(Some(0)).unwrap().reserved,
        reserved,
        "another range"
    );
    bench.put(block, Some(stream));
    bench.finish();
}

/// Blocks that a stream requests and frees again and again leave no more records than there are ranges.
#[test]
fn repeated_requests_leave_few_records() {
    let bench = Bench::new("");
    let stream = bench.stream();
    for _ in 0..100 {
        free_with_work_pending(&bench, stream, 4 * MIB);
    }
    let pending = bench
        .allocator
        .pool_of(0)
        .core
        .lock()
        .reclaimer
        .pending
        .sets
        .iter()
        .count();
    assert!(pending <= 8, "{pending}");
    bench.finish();
}
