//! Resizable blocks for which no page is free: they live in ordinary free space, and a copy resizes them.

use super::{Bench, MIB, RESIZABLE};
use crate::driver::sim::SimConfig;
use crate::driver::sim::model::capture::MODE_RELAXED;
use crate::support::stats::Stats;

const KIB: u64 = 1 << 10;
const LIMIT: u64 = 32 * MIB;
/// The size of the blocks that fill the memory, and of the holes between them. A page has four.
const HALF: u64 = 512 * KIB;

/// Memory that is used up to its limit, with a hole at the end of each half of a page.
struct Full {
    bench: Bench,
    stream: usize,
    /// The blocks that are left, by address.
    blocks: Vec<u64>,
}

fn full(options: &str) -> Full {
    let two = SimConfig {
        devices: 2,
        ..SimConfig::default()
    };
    let bench = Bench::on(two, &format!("limit={LIMIT},{options}"));
    let stream = bench.stream();
    let mut blocks: Vec<u64> = (0..LIMIT / HALF).map(|_| bench.get(HALF, Some(stream))).collect();
    blocks.sort_unstable();
    let (blocks, freed): (Vec<u64>, Vec<u64>) = blocks.iter().partition(|block| (**block / HALF).is_multiple_of(2));
    freed.iter().for_each(|block| bench.put(*block, Some(stream)));
    Full { bench, stream, blocks }
}

impl Full {
    fn stats(&self) -> Stats {
        self.bench.allocator.stats(Some(0)).unwrap()
    }

    /// A resizable block that has no pages of its own, with bytes that depend on their offset.
    fn small(&self, size: u64) -> u64 {
        let block = self.bench.request(size, RESIZABLE, Some(self.stream)).unwrap();
        assert!(self.is_small(block), "it has pages of its own");
        self.bench.machine.write(block, &pattern(size)).unwrap();
        block
    }

    fn is_small(&self, block: u64) -> bool {
        self.bench.allocator.pool_of(0).find(block).is_some()
    }

    fn holds(&self, block: u64, size: u64) -> bool {
        let mut found = vec![0; size as usize];
        self.bench.machine.read(block, &mut found).unwrap();
        found == pattern(size)
    }

    /// Frees both blocks of so many pages.
    fn free_pages(&mut self, pages: u64) {
        for block in self.blocks.drain(..2 * pages as usize) {
            self.bench.put(block, Some(self.stream));
        }
    }

    fn finish(self) {
        self.blocks
            .iter()
            .for_each(|block| self.bench.put(*block, Some(self.stream)));
        self.bench.finish();
    }
}

fn pattern(size: u64) -> Vec<u8> {
    (0..size).map(|at| (at ^ (at >> 8)) as u8).collect()
}

#[test]
fn small_block_lives_in_free_space_and_moves_to_pages_of_its_own() {
    let mut full = full("wait_ms=100");
    let before = full.stats();
    let block = full.small(300 * KIB);
    assert_eq!(full.stats().reserved, before.reserved);
    assert_eq!(full.stats().out_of_memory, 0);
    // Inside its memory it keeps its address, and a growth beyond it copies.
    let bench = &full.bench;
    assert_eq!(bench.resize(block, 300 * KIB, 200 * KIB).unwrap(), block);
    assert_eq!(bench.resize(block, 200 * KIB, 300 * KIB).unwrap(), block);
    assert_eq!(full.stats().bytes_copied, 0);
    let grown = bench.resize(block, 300 * KIB, 500 * KIB).unwrap();
    assert!(grown != block && full.is_small(grown) && full.holds(grown, 200 * KIB));
    let stats = full.stats();
    assert_eq!((stats.reallocations, stats.reallocations_in_place), (3, 2));
    assert_eq!(
        (stats.bytes_copied, stats.requested - before.requested),
        (300 * KIB, 500 * KIB)
    );
    assert_eq!((stats.allocations - before.allocations, stats.frees), (1, before.frees));
    // There is no hole for more: the block stays as it was, and one refusal is counted.
    assert!(bench.resize(grown, 500 * KIB, 600 * KIB).is_err());
    assert!(full.holds(grown, 200 * KIB));
    assert_eq!(full.stats().out_of_memory, 1);
    // A page becomes free: the block moves there, and from then on nothing is copied.
    full.free_pages(4);
    let bench = &full.bench;
    let moved = bench.resize(grown, 500 * KIB, 700 * KIB).unwrap();
    assert!(!full.is_small(moved) && full.holds(moved, 200 * KIB));
    let copied = full.stats().bytes_copied;
    assert_eq!(bench.resize(moved, 700 * KIB, 1900 * KIB).unwrap(), moved);
    assert_eq!(full.stats().bytes_copied, copied);
    bench.put(moved, Some(full.stream));
    assert_eq!(full.stats().requested, full.blocks.len() as u64 * HALF);
    full.finish();
}

/// Work that does not end uses pages that were freed. A block that fits into a hole does not wait for them.
#[test]
fn small_block_does_not_wait_for_pages() {
    let mut full = full("wait_ms=60000");
    let pages: Vec<u64> = full.blocks.drain(..8).collect();
    let ranges: Vec<(u64, u64)> = pages.iter().map(|block| (*block, HALF)).collect();
    let other = full.bench.stream();
    let kernel = full
        .bench
        .app(|machine| machine.launch_persistent(other, &ranges).unwrap());
    pages.iter().for_each(|block| full.bench.put(*block, None));
    let begun = full.bench.machine.now();
    let block = full.small(300 * KIB);
    assert!(full.bench.machine.now() - begun < 1_000_000_000, "it waited");
    assert!(full.bench.machine.release_persistent(kernel));
    full.bench.put(block, Some(full.stream));
    full.finish();
}

#[test]
fn request_is_refused_once_where_no_hole_is_large_enough() {
    let full = full("wait_ms=0");
    for (at, size) in [600 * KIB, 3 * MIB].into_iter().enumerate() {
        assert!(full.bench.request(size, RESIZABLE, Some(full.stream)).is_err());
        assert!(full.bench.request(size, RESIZABLE, None).is_err());
        assert_eq!(full.stats().out_of_memory, 2 * (at as u64 + 1));
    }
    // The same without a stream, and with an alignment, which a resize keeps.
    let block = full.bench.request(100 * KIB, RESIZABLE, None).unwrap();
    full.bench.put(block, Some(full.stream));
    let request = |alignment| crate::allocator::Request {
        size: 100 * KIB,
        alignment,
        flags: RESIZABLE,
        stream: None,
        device: None,
    };
    let aligned = full.bench.allocator.allocate(request(64 * KIB)).unwrap();
    let other = full
        .bench
        .allocator
        .reallocate(aligned, 128 * KIB, 200 * KIB)
        .unwrap_err();
    assert!(other.to_string().contains("alignment"), "{other}");
    let grown = full.bench.allocator.reallocate(aligned, 0, 300 * KIB).unwrap();
    assert!(grown != aligned && full.is_small(grown) && grown.is_multiple_of(64 * KIB));
    full.bench.allocator.deallocate(grown, None).unwrap();
    full.finish();
}

/// A shrink to less than half gives memory back where a smaller hole can be had; otherwise the block stays where it is.
#[test]
fn shrink_is_never_refused_for_lack_of_memory() {
    let full = full("wait_ms=100");
    let block = full.small(500 * KIB);
    let shrunk = full.bench.resize(block, 500 * KIB, 100 * KIB).unwrap();
    assert!(shrunk != block && full.holds(shrunk, 100 * KIB));
    full.bench.put(shrunk, Some(full.stream));
    let mut blocks = vec![full.small(500 * KIB)];
    let before = full.stats();
    while let Ok(block) = full.bench.request(HALF, 0, Some(full.stream)) {
        blocks.push(block);
    }
    while let Ok(block) = full.bench.request(512, 0, Some(full.stream)) {
        blocks.push(block);
    }
    let refused = full.stats().out_of_memory;
    assert_eq!(full.bench.resize(blocks[0], 500 * KIB, 1000).unwrap(), blocks[0]);
    assert!(full.holds(blocks[0], 1000));
    let stats = full.stats();
    assert_eq!(
        (stats.out_of_memory, stats.bytes_copied),
        (refused, before.bytes_copied)
    );
    assert_eq!(full.bench.resize(blocks[0], 1000, 500 * KIB).unwrap(), blocks[0]);
    blocks.into_iter().for_each(|block| full.bench.put(block, None));
    full.finish();
}

/// Pending work may still use the block: a copy waits for it, and if it does not end, the block is as it was.
#[test]
fn copy_waits_for_the_work_on_the_block() {
    let full = full("wait_ms=50");
    let block = full.small(100 * KIB);
    let kernel = full
        .bench
        .app(|machine| machine.launch_persistent(full.stream, &[(block, 100 * KIB)]).unwrap());
    assert!(
        full.bench.resize(block, 100 * KIB, 400 * KIB).is_err(),
        "the work does not end"
    );
    assert_eq!(
        full.bench.resize(block, 100 * KIB, 60 * KIB).unwrap(),
        block,
        "nothing is copied"
    );
    // A shrink does not wait for longer than it may, and stays in place.
    assert_eq!(full.bench.resize(block, 60 * KIB, KIB).unwrap(), block);
    assert!(full.bench.machine.release_persistent(kernel));
    let grown = full.bench.resize(block, KIB, 400 * KIB).unwrap();
    assert!(full.holds(grown, KIB));
    // Freed on another stream, behind the work there.
    let other = full.bench.stream();
    full.bench.launch(other, grown, 400 * KIB);
    full.bench.put(grown, Some(other));
    let next = full.bench.request(400 * KIB, RESIZABLE, Some(full.stream)).unwrap();
    full.bench.put(next, None);
    full.finish();
}

/// A kernel of a peer, whose context never calls the pool, may use the block, too.
#[test]
fn copy_waits_for_the_work_of_a_peer() {
    let full = full("wait_ms=50,peers=0:1");
    let block = full.small(100 * KIB);
    let kernel = full.bench.app(|machine| {
        let context = machine.primary_retain(1).unwrap();
        machine.context_push(context).unwrap();
        let stream = machine.stream_create(true).unwrap();
        let kernel = machine.launch_persistent(stream, &[(block, 100 * KIB)]).unwrap();
        machine.context_pop().unwrap();
        kernel
    });
    let early = full.bench.resize(block, 100 * KIB, 400 * KIB);
    assert!(early.is_err(), "the work has not ended");
    assert!(full.bench.machine.release_persistent(kernel));
    let grown = full.bench.resize(block, 100 * KIB, 400 * KIB).unwrap();
    assert!(full.holds(grown, 100 * KIB));
    full.bench.put(grown, None);
    full.finish();
}

/// On a capturing stream the block is the graph's, like any other, and is not resized.
#[test]
fn block_of_a_capture_is_not_resized() {
    let full = full("wait_ms=20");
    let (bench, stream) = (&full.bench, full.stream);
    bench.app(|machine| machine.context_synchronize()).unwrap();
    let outside = full.small(100 * KIB);
    bench
        .app(|machine| machine.stream_begin_capture(stream, MODE_RELAXED))
        .unwrap();
    let inside = bench.request(300 * KIB, RESIZABLE, Some(stream));
    if let Ok(block) = inside {
        assert!(full.is_small(block));
        assert!(bench.resize(block, 300 * KIB, 400 * KIB).is_err());
        bench.put(block, Some(stream));
    }
    let graph = bench
        .app(|machine| machine.stream_end_capture(stream))
        .expect("nothing ended the capture");
    bench.app(|machine| machine.graph_destroy(graph)).unwrap();
    bench.machine.drain_user_objects();
    let grown = bench.resize(outside, 100 * KIB, 400 * KIB).unwrap();
    bench.put(grown, Some(stream));
    full.finish();
}

/// Snapshots show the blocks at each step, and the history agrees with them: it is replayed before it is written.
#[test]
fn snapshots_follow_a_block_into_pages_of_its_own() {
    let mut full = full("wait_ms=100,history=all");
    let path = std::env::temp_dir().join(format!("trtalloc-small-{}.json", std::process::id()));
    let write = |full: &Full| full.bench.allocator.write_snapshot(&path).unwrap();
    let block = full.small(300 * KIB);
    write(&full);
    let grown = full.bench.resize(block, 300 * KIB, 500 * KIB).unwrap();
    write(&full);
    full.free_pages(4);
    let moved = full.bench.resize(grown, 500 * KIB, 700 * KIB).unwrap();
    assert!(!full.is_small(moved));
    write(&full);
    full.bench.put(moved, Some(full.stream));
    write(&full);
    std::fs::remove_file(&path).unwrap();
    full.finish();
}

/// A tag holds what its block has, also after a shrink that gave nothing back.
#[test]
fn tag_holds_what_its_block_has() {
    let full = full("wait_ms=0");
    crate::support::tags::set(Some("resizable_small")).unwrap();
    let block = full.small(400 * KIB);
    let held = || {
        let tags = full.bench.allocator.tag_stats(Some(0)).unwrap();
        tags.iter().find(|tag| tag.tag == "resizable_small").unwrap().allocated
    };
    assert_eq!(held(), 400 * KIB);
    assert_eq!(full.bench.resize(block, 400 * KIB, 300 * KIB).unwrap(), block);
    assert_eq!(held(), 400 * KIB);
    let grown = full.bench.resize(block, 300 * KIB, 500 * KIB).unwrap();
    assert_eq!(held(), 500 * KIB);
    full.bench.put(grown, Some(full.stream));
    assert_eq!(held(), 0);
    crate::support::tags::set(None).unwrap();
    full.finish();
}

/// The allocator is destroyed while the block is live: its memory goes with the last block.
#[test]
fn block_outlives_its_allocator() {
    let full = full("wait_ms=100");
    let block = full.small(300 * KIB);
    full.bench.allocator.close();
    let block = full.bench.resize(block, 300 * KIB, 500 * KIB).unwrap_or(block);
    assert!(full.holds(block, 300 * KIB));
    full.bench.put(block, Some(full.stream));
    full.blocks
        .iter()
        .for_each(|block| full.bench.put(*block, Some(full.stream)));
    full.bench.app(|machine| machine.context_synchronize()).unwrap();
    let (free, total) = full.bench.app(|machine| machine.memory_info(0)).unwrap();
    assert_eq!(free, total, "memory is left");
    assert_eq!(full.bench.wrong(), Vec::<String>::new());
}

/// Every driver call of a request, of a growth by a copy and of a growth into pages fails in turn.
#[test]
fn every_call_failed_in_turn() {
    let step = if super::faults::in_full() { 1 } else { 3 };
    for pages in [0, 4] {
        let begin = || {
            let mut full = full("wait_ms=20");
            let block = full.small(300 * KIB);
            full.free_pages(pages);
            (full, block)
        };
        let grow = |full: &Full, block| full.bench.resize(block, 300 * KIB, 500 * KIB);
        let (full_1, block) = begin();
        let before = full_1.bench.machine.calls_made();
        let grown = grow(&full_1, block).unwrap();
        assert_eq!(full_1.is_small(grown), pages == 0);
        let calls = full_1.bench.machine.calls_made() - before;
        full_1.bench.put(grown, None);
        full_1.finish();
        for n in (1..=calls).step_by(step) {
            for code in [2, 999] {
                let (full, mut block) = begin();
                let context = full.bench.machine.context_current().unwrap();
                assert!(full.bench.machine.fail_nth(None, n, code));
                let outcome = grow(&full, block);
                full.bench.machine.clear_failures();
                while full.bench.machine.context_current().unwrap() != context {
                    full.bench.app(|machine| machine.context_pop()).unwrap();
                }
                full.bench
                    .allocator
                    .validate()
                    .unwrap_or_else(|why| panic!("call {n}: {why}"));
                assert!(full.holds(*outcome.as_ref().unwrap_or(&block), 300 * KIB), "call {n}");
                block = outcome
                    .or_else(|_| grow(&full, block))
                    .unwrap_or_else(|why| panic!("call {n}: {why}"));
                assert!(full.holds(block, 300 * KIB), "call {n}");
                full.bench.put(block, None);
                full.finish();
            }
        }
    }
    // A request.
    let calls = {
        let full = full("wait_ms=20");
        let before = full.bench.machine.calls_made();
        let block = full.small(300 * KIB);
        let calls = full.bench.machine.calls_made() - before;
        full.bench.put(block, None);
        full.finish();
        calls
    };
    for n in 1..=calls {
        for code in [2, 999] {
            let full = full("wait_ms=20");
            assert!(full.bench.machine.fail_nth(None, n, code));
            let outcome = full.bench.request(300 * KIB, RESIZABLE, Some(full.stream));
            full.bench.machine.clear_failures();
            full.bench
                .allocator
                .validate()
                .unwrap_or_else(|why| panic!("call {n}: {why}"));
            let block = outcome.unwrap_or_else(|_| full.small(300 * KIB));
            full.bench.put(block, None);
            full.finish();
        }
    }
}
