//! Decay and trims of very many pieces: the work is in proportion to them, and others get the pool's lock in between.

use super::{Bench, MIB};
use crate::pool::{Pool, WINDOWS};

/// The most nodes that one hold of the lock may look at.
const HOLD: u64 = 4096;

/// Two such blocks make up a handle.
const HALF: u64 = MIB - 1024;

/// `count` free pieces of a stream between blocks in use, whose work has completed. Each piece is three blocks.
fn with_pieces(count: u64, size: u64) -> (Bench, Vec<u64>) {
    let bench = Bench::of(64 << 30, "headroom=0");
    let stream = bench.stream();
    let blocks: Vec<u64> = (0..4 * count).map(|_| bench.get(size, Some(stream))).collect();
    let (held, freed): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(at, _)| at % 4 == 0);
    freed.into_iter().for_each(|(_, block)| bench.put(block, Some(stream)));
    bench.complete();
    (bench, held.into_iter().map(|(_, block)| block).collect())
}

/// How many nodes a call looks at, and the most during one hold of the lock.
fn looks(pool: &Pool, call: impl FnOnce()) -> (u64, u64) {
    let take = || pool.core.lock().memory.free_space.looks.take();
    take();
    call();
    take()
}

/// Ends windows until everything idle is gone; the most nodes that one window looked at, and one hold of the lock.
fn most_of_windows(bench: &Bench) -> (u64, u64) {
    let pool = bench.allocator.pool_of(0);
    let windows = (0..2 * WINDOWS).map(|_| {
        looks(pool, || {
            pool.decay();
        })
    });
    windows.fold((0, 0), |most, of| (most.0.max(of.0), most.1.max(of.1)))
}

#[test]
fn decay_is_linear_and_gives_way() {
    for (count, size) in [(2_000, 16 << 10), (8_000, 16 << 10), (500, HALF), (2_000, HALF)] {
        let (bench, held) = with_pieces(count, size);
        let before = bench.allocator.stats(Some(0)).unwrap().reserved;
        let (total, longest) = most_of_windows(&bench);
        bench.allocator.validate().unwrap();
        let reserved = bench.allocator.stats(Some(0)).unwrap().reserved;
        if size == HALF {
            assert!(reserved <= before - count * HALF, "{reserved} of {before}");
        }
        assert!(
            total <= 32 * count + 2 * HOLD,
            "{total} looks at {count} pieces of {size}"
        );
        assert!(
            longest <= HOLD,
            "{longest} looks at {count} pieces of {size} in one hold"
        );
        held.into_iter().for_each(|block| bench.put(block, None));
        bench.finish();
    }
}

#[test]
fn trim_from_outside_is_linear_and_gives_way() {
    for count in [500, 2_000] {
        let (bench, held) = with_pieces(count, HALF);
        let pool = bench.allocator.pool_of(0);
        let mut released = 0;
        let (total, longest) = looks(pool, || released = pool.trim_completed(0, true).unwrap());
        assert!(released >= count * HALF, "{released}");
        assert!(total <= 32 * count + 2 * HOLD, "{total} looks at {count} pieces");
        assert!(longest <= HOLD, "{longest} looks at {count} pieces in one hold");
        held.into_iter().for_each(|block| bench.put(block, None));
        bench.finish();
    }
}
