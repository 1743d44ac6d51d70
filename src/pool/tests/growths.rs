//! What a request costs in a program with many streams.

use super::{Bench, MIB};
use crate::pool::Pool;

/// The most nodes and owners that a request which grows the pool looks at on average.
const MOST: u64 = 32;

fn looks(pool: &Pool, call: impl FnOnce()) -> u64 {
    let take = || pool.core.lock().memory.free_space.looks.take().0;
    take();
    call();
    take()
}

/// A request that grows the pool looks at the streams that concern it, and not at each that has memory of its own. Silent
/// streams concern it.
#[test]
fn growth_does_not_look_at_every_stream() {
    const GROWTHS: u64 = 64;
    for count in [10, 1_000] {
        let bench = Bench::of(64 << 30, "headroom=0");
        for _ in 0..count {
            let stream = bench.stream();
            let [_held, freed] = [0, 1].map(|_| bench.get(4 * MIB, Some(stream)));
            bench.launch(stream, freed, 4 * MIB);
            bench.put(freed, Some(stream));
        }
        let one = bench.stream();
        let looked = looks(bench.allocator.pool_of(0), || {
            for _ in 0..GROWTHS {
                bench.get(4 * MIB, Some(one));
            }
        });
        assert!(looked <= GROWTHS * MOST, "{count} streams: {looked} looks");
    }
}
