//! A block that grows begins in the range of the larger one that its stream freed, and gets the rest of it once the
//! work on that one has completed.

use super::{Bench, MIB, RESIZABLE};
use crate::driver::sim::SimConfig;
use crate::pool::{Pool, WINDOWS};
use crate::sync::breaking;
use crate::trace::random::Random;

impl Pool {
    /// How many remainders are pending.
    fn remainders(&self) -> usize {
        let core = self.core.lock();
        let sets = core.reclaimer.pending.sets.iter();
        let remainders = sets.filter(|set| !set.streams().is_empty() && set.pieces().is_empty());
        remainders.count()
    }
}

const CALLS: [&str; 6] = [
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemAddressReserve",
];

impl Bench {
    fn memory_calls(&self) -> u64 {
        CALLS.iter().map(|call| self.machine.count(call)).sum()
    }

    fn waits(&self) -> u64 {
        self.allocator.stats(Some(0)).unwrap().waits
    }

    /// A block of `first` MiB that grows to each of `sizes`, and work on it each time.
    fn grow(&self, stream: usize, first: u64, sizes: impl Iterator<Item = u64>) -> u64 {
        let mut block = self.request(first * MIB, RESIZABLE, Some(stream)).unwrap();
        self.launch(stream, block, first * MIB);
        let mut had = first;
        for size in sizes {
            block = self.resize(block, had * MIB, size * MIB).unwrap();
            self.launch(stream, block, size * MIB);
            had = size;
        }
        block
    }

    /// Frees a block of 64 MiB that had grown, with work pending on all of it.
    fn free_grown(&self, stream: usize) {
        let block = self.grow(stream, 8, (16..=64).step_by(8));
        self.put(block, Some(stream));
    }
}

#[test]
fn blocks_that_grow_one_after_another_make_no_memory_calls() {
    let bench = Bench::new("");
    let [first, second] = [bench.stream(), bench.stream()];
    let mut calls = 0;
    for round in 0..12 {
        for (stream, to) in [(first, 64 - round), (second, 90 - 2 * round)] {
            let block = bench.grow(stream, 4 + round % 3, (12..=to).step_by(4));
            bench.put(block, Some(stream));
        }
        if round == 0 {
            calls = bench.memory_calls();
        }
    }
    assert_eq!(bench.memory_calls(), calls);
    assert!(bench.waits() > 0, "no growth met pending work");
    let reserved = bench.allocator.stats(Some(0)).unwrap().reserved / MIB;
    assert!(reserved <= 170, "{reserved} MiB for 154");
    bench.finish();
}

/// Streams whose largest blocks come one after another. Each keeps what its own needed, though the largest sum of what is in
/// use is less than a half of that.
#[test]
fn streams_keep_what_their_blocks_needed() {
    let bench = Bench::new("");
    let streams = [(); 4].map(|()| bench.stream());
    let (mut live, mut calls) = ([None; 4], 0);
    for round in 0..24 {
        for (at, stream) in streams.into_iter().enumerate() {
            let to = if round % 4 == at { 64 } else { 12 };
            if let Some(before) = live[at].take() {
                bench.put(before, Some(stream));
            }
            live[at] = Some(bench.grow(stream, 4, (8..=to).step_by(4)));
        }
        if round == 8 {
            calls = bench.memory_calls();
        }
    }
    assert_eq!(bench.memory_calls(), calls);
    for (block, stream) in live.into_iter().zip(streams) {
        block.into_iter().for_each(|block| bench.put(block, Some(stream)));
    }
    bench.finish();
}

/// A growth leaves what the block has beyond its new size where it is, for the next one. A shrink does not.
#[test]
fn growth_gives_nothing_back() {
    let bench = Bench::new("");
    let stream = bench.stream();
    bench.free_grown(stream);
    let block = bench.grow(stream, 8, (16..=24).step_by(8));
    let trimmed = || {
        bench.complete();
        bench.allocator.trim(Some(0), 0).unwrap();
        bench.allocator.stats(Some(0)).unwrap().reserved / MIB
    };
    assert!(trimmed() >= 64);
    let block = bench.resize(block, 24 * MIB, 8 * MIB).unwrap();
    assert!(trimmed() < 32);
    bench.put(block, Some(stream));
    bench.finish();
}

/// Without context events, only a synchronization shows what has completed. A growth causes none.
#[test]
fn growth_synchronizes_nothing() {
    let config = SimConfig {
        version: 12_040,
        ..SimConfig::default()
    };
    let bench = Bench::on(config, "");
    let streams = [bench.stream(), bench.stream()];
    for round in 0..6 {
        for stream in streams {
            let block = bench.grow(stream, 4 + round % 3, (12..=64).step_by(4));
            bench.put(block, Some(stream));
        }
    }
    assert_eq!(bench.machine.count("cuCtxSynchronize"), 0);
    bench.finish();
}

/// Several blocks of one stream share what one of them freed, in handles.
#[test]
fn several_blocks_share_what_one_freed() {
    let bench = Bench::new("limit=96MiB");
    let stream = bench.stream();
    let beside = bench.grow(stream, 2, 4..=4);
    bench.free_grown(stream);
    bench.complete();
    let blocks = [(); 3].map(|()| bench.grow(stream, 4, (8..=28).step_by(4)));
    blocks.into_iter().for_each(|block| bench.put(block, Some(stream)));
    bench.put(beside, Some(stream));
    bench.finish();
}

/// The order checker notices a growth into memory that is in use.
#[test]
fn growth_into_memory_in_use_is_noticed() {
    let grow_again = |bench: &Bench| {
        let stream = bench.stream();
        bench.free_grown(stream);
        let block = bench.grow(stream, 8, 32..=32);
        bench.put(block, Some(stream));
    };
    let bench = Bench::new("");
    grow_again(&bench);
    bench.finish();
    let bench = Bench::new("");
    breaking("a block grows into its remainder once that is complete", || {
        grow_again(&bench);
    });
    let wrong = bench.wrong();
    assert!(wrong[0].contains("resized to"), "{wrong:?}");
}

/// Work that does not end: the growth is refused after `wait_ms`, the block stays as it is, and no later block of the pool
/// begins in such a range.
#[test]
fn growth_is_refused_while_the_work_before_does_not_end() {
    let bench = Bench::new("wait_ms=30");
    let stream = bench.stream();
    let before = bench.grow(stream, 8, (16..=64).step_by(8));
    let kernel = bench.app(|machine| machine.launch_persistent(stream, &[(before, 64 * MIB)]).unwrap());
    bench.put(before, Some(stream));
    let block = bench.request(8 * MIB, RESIZABLE, Some(stream)).unwrap();
    assert_eq!(block, before, "it begins in the same range");
    let error = bench.resize(block, 8 * MIB, 16 * MIB).unwrap_err().to_string();
    assert!(error.contains("did not end within wait_ms"), "{error}");
    assert_eq!(bench.allocator.stats(Some(0)).unwrap().out_of_memory, 1);
    // What it gave up, it gets back no earlier than the rest.
    assert_eq!(bench.resize(block, 8 * MIB, 2 * MIB).unwrap(), block);
    assert!(bench.resize(block, 2 * MIB, 8 * MIB).is_err());
    bench.put(block, Some(stream));
    let next = bench.request(8 * MIB, RESIZABLE, Some(stream)).unwrap();
    assert_eq!(bench.resize(next, 8 * MIB, 16 * MIB).unwrap(), next);
    assert!(bench.machine.release_persistent(kernel));
    bench.put(next, Some(stream));
    bench.finish();
}

/// Without a wait, once a capture is known, and where memory is short, a block does not begin in a range in use.
#[test]
fn range_in_use_is_not_taken_where_growth_must_not_wait() {
    for (options, begins) in [("", 1), ("wait_ms=0", 0), ("captures=1", 0), ("limit=74MiB", 0)] {
        let bench = Bench::new(options);
        let stream = bench.stream();
        let beside = bench.get(6 * MIB, None);
        bench.free_grown(stream);
        let block = bench.request(MIB, RESIZABLE, Some(stream)).unwrap();
        assert_eq!(bench.allocator.pool_of(0).remainders(), begins, "{options}");
        bench.launch(stream, block, MIB);
        bench.put(block, Some(stream));
        bench.put(beside, None);
        bench.finish();
    }
}

/// No event shows when the work on the range has completed.
#[test]
fn range_in_use_is_not_taken_without_an_event() {
    let bench = Bench::new("");
    let stream = bench.stream();
    bench.free_grown(stream);
    assert!(bench.machine.fail_every(Some("cuEventRecord"), 1, 2));
    let block = bench.request(MIB, RESIZABLE, Some(stream)).unwrap();
    bench.machine.clear_failures();
    assert_eq!(bench.allocator.pool_of(0).remainders(), 0);
    bench.launch(stream, block, MIB);
    bench.put(block, Some(stream));
    bench.finish();
}

/// A block that is freed before its remainder is complete, on its stream, on another one or on none.
#[test]
fn block_with_a_remainder_is_freed_anywhere() {
    for on in 0..3 {
        let bench = Bench::new("");
        let [stream, other] = [bench.stream(), bench.stream()];
        bench.free_grown(stream);
        let block = bench.request(8 * MIB, RESIZABLE, Some(stream)).unwrap();
        bench.launch(stream, block, 8 * MIB);
        if on == 1 {
            bench.app(|machine| {
                let event = machine.event_create().unwrap();
                machine.event_record(event, stream).unwrap();
                machine.stream_wait_event(other, event).unwrap();
                machine.event_destroy(event).unwrap();
            });
        }
        bench.put(block, [Some(stream), Some(other), None][on]);
        for stream in [stream, other] {
            let block = bench.grow(stream, 8, (16..=64).step_by(8));
            bench.put(block, Some(stream));
        }
        bench.finish();
    }
}

/// The context of the stream is destroyed while a block has a remainder. The application frees the block afterwards.
#[test]
fn remainder_outlives_its_stream() {
    let bench = Bench::new("wait_ms=50");
    let context = bench.app(|machine| machine.context_create(0)).unwrap();
    let stream = bench.stream();
    bench.free_grown(stream);
    let block = bench.request(8 * MIB, RESIZABLE, Some(stream)).unwrap();
    bench.app(|machine| machine.context_destroy(context)).unwrap();
    let grown = bench.resize(block, 8 * MIB, 32 * MIB).unwrap();
    let home = bench.stream();
    bench.launch(home, grown, 32 * MIB);
    bench.put(grown, Some(home));
    bench.finish();
}

/// Memory that live blocks have at their ends serves others where memory is short, once its work has completed.
#[test]
fn remainder_serves_others_where_memory_is_short() {
    for flags in [0, RESIZABLE] {
        let bench = Bench::new("limit=80MiB");
        let stream = bench.stream();
        bench.free_grown(stream);
        let block = bench.request(8 * MIB, RESIZABLE, Some(stream)).unwrap();
        let other = bench.stream();
        let large = bench.request(48 * MIB, flags, Some(other)).unwrap();
        assert_eq!(
            bench.allocator.resize_copies(large),
            flags == 0,
            "a resizable one has pages of its own"
        );
        bench.launch(other, large, 48 * MIB);
        bench.launch(stream, block, 8 * MIB);
        bench.put(large, Some(other));
        bench.put(block, Some(stream));
        bench.finish();
    }
}

/// Random blocks on two streams, few at a time, that grow, shrink and are freed while work is pending.
#[test]
fn random_growth_with_work_pending_is_in_order() {
    let (mut remainders, mut random) = (0, Random::new(1));
    let path = std::env::temp_dir().join(format!("trtalloc-remainders-{}.json", std::process::id()));
    for round in 0..if cfg!(debug_assertions) { 150 } else { 1500 } {
        let bench = Bench::new(["", "limit=160MiB", "limit=160MiB,wait_ms=1", "history=all"][round % 4]);
        let streams = [bench.stream(), bench.stream()];
        let mut blocks: Vec<(u64, u64, usize)> = Vec::new();
        bench.use_and_free(streams[0], 1, MIB);
        for _ in 0..120 {
            let size = random.between(1, 96) * MIB / 2;
            let on = random.below(2) as usize;
            let at = random.below(blocks.len().max(1) as u64) as usize;
            match random.below(10) {
                0..3 if blocks.len() < 3 => {
                    let flags = if random.below(8) == 0 { 0 } else { RESIZABLE };
                    let first = (size / 8).max(MIB / 2);
                    if let Ok(block) = bench.request(first, flags, Some(streams[on])) {
                        bench.launch(streams[on], block, first);
                        blocks.push((block, first, on));
                        remainders += u64::from(bench.allocator.pool_of(0).remainders() > 0);
                    }
                }
                3..7 if at < blocks.len() => {
                    let (block, had, on) = blocks[at];
                    let size = if random.below(6) == 0 { had / 2 } else { had + size / 4 };
                    if let Ok(new) = bench.resize(block, had, size) {
                        bench.launch(streams[on], new, size);
                        blocks[at] = (new, size, on);
                    }
                }
                7..9 if at < blocks.len() => {
                    let (block, _, on) = blocks.swap_remove(at);
                    bench.put(block, if random.below(8) == 0 { None } else { Some(streams[on]) });
                }
                9 if random.below(4) == 0 => bench.complete(),
                9 if random.below(3) == 0 => {
                    bench.allocator.pool_of(0).decay();
                }
                _ => {}
            }
        }
        bench
            .allocator
            .validate()
            .unwrap_or_else(|why| panic!("round {round}: {why}"));
        if round % 4 == 3 {
            // The history is replayed before it is written, and has to lead to what there is.
            bench.allocator.write_snapshot(&path).unwrap();
        }
        for (block, _, on) in blocks {
            bench.put(block, Some(streams[on]));
        }
        bench.finish_of(&format!("round {round}"));
    }
    std::fs::remove_file(path).unwrap();
    assert!(remainders > 100, "{remainders}");
}

/// Decay takes what a live block does not need of its range, and leaves what the blocks of the last windows needed.
#[test]
fn remainder_decays() {
    let bench = Bench::new("");
    let stream = bench.stream();
    bench.free_grown(stream);
    let reserved = || bench.allocator.stats(Some(0)).unwrap().reserved / MIB;
    let windows = |count, work: &dyn Fn()| {
        for _ in 0..count {
            work();
            bench.allocator.pool_of(0).decay();
            bench.allocator.validate().unwrap();
        }
    };
    // A block that grows to 64 MiB in each window keeps them.
    windows(3 * WINDOWS, &|| bench.free_grown(stream));
    assert!((64..=80).contains(&reserved()), "{}", reserved());
    let block = bench.request(8 * MIB, RESIZABLE, Some(stream)).unwrap();
    windows(WINDOWS, &|| bench.launch(stream, block, 8 * MIB));
    assert!(reserved() >= 64, "{}", reserved());
    bench.complete();
    // The handles go back at once. They do not count as idle only from the moment that they are cached.
    windows(WINDOWS + 1, &|| ());
    assert!(reserved() <= 16, "{}", reserved());
    let block = bench.resize(block, 8 * MIB, 32 * MIB).unwrap();
    bench.launch(stream, block, 32 * MIB);
    bench.put(block, Some(stream));
    bench.finish();
}
