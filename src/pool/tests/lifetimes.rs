//! Blocks that outlive the others of their stream lie apart from them, so that what the others leave stays contiguous.

use std::collections::VecDeque;

use crate::driver::sim::SimConfig;

use super::{Bench, MIB};

fn bench() -> Bench {
    let config = SimConfig {
        memory: 64 << 30,
        ..SimConfig::default()
    };
    Bench::over(config, "")
}

/// Serves 1,000 requests of 8 shapes on one stream. The third block of a request lives for 0 to 8 more, and `frees_here`
/// says whether this stream frees it, or another one that never allocates. Returns what is reserved in the end, in
/// percent of the most that was in use.
fn serve(frees_here: bool, seed: u64) -> u64 {
    let bench = bench();
    let (stream, other) = (bench.stream(), bench.stream());
    let mut random = seed;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
        (random >> 33) % below
    };
    let mut held: VecDeque<(u64, u64)> = VecDeque::new();
    let mut needs = 0;
    for number in 0..1_000 {
        let unit = (draw(8) + 1) * 32 * MIB;
        let blocks = [4 * unit, 2 * unit, unit, unit / 3].map(|size| bench.get(size, Some(stream)));
        bench.launch(stream, blocks[0], 4 * unit);
        needs = needs.max(bench.allocator.stats(Some(0)).unwrap().allocated);
        for at in [0, 1, 3] {
            bench.put(blocks[at], Some(stream));
        }
        held.push_back((blocks[2], number + draw(9)));
        let over: Vec<_> = held.iter().filter(|(_, last)| *last <= number).copied().collect();
        held.retain(|(_, last)| *last > number);
        for (block, _) in over {
            let by = if frees_here { stream } else { other };
            bench.put(block, Some(by));
        }
        bench.machine.advance(500_000);
    }
    let reserved = bench.allocator.stats(Some(0)).unwrap().reserved;
    held.into_iter().for_each(|(block, _)| bench.put(block, Some(stream)));
    bench.finish();
    reserved * 100 / needs
}

#[test]
fn outputs_that_live_on_lie_apart() {
    let percent: Vec<u64> = (1..=6).map(|seed| serve(true, seed)).collect();
    assert!(
        percent.iter().sum::<u64>() <= 6 * 118,
        "{percent:?} percent of the needs are reserved"
    );
}

/// A stream that never allocates frees them, and no request of it ever moves them from its cache to its free space.
#[test]
fn what_a_stream_frees_that_never_allocates_goes_home() {
    let percent: Vec<u64> = (1..=6).map(|seed| serve(false, seed)).collect();
    assert!(
        percent.iter().sum::<u64>() <= 6 * 118,
        "{percent:?} percent of the needs are reserved"
    );
}

#[test]
fn blocks_that_another_stream_frees_lie_apart() {
    let bench = bench();
    let (stream, other) = (bench.stream(), bench.stream());
    for number in 0..100 {
        let large = bench.get(512 * MIB, Some(stream));
        let passed = bench.get((32 + number % 8) * MIB, Some(stream));
        bench.put(large, Some(stream));
        bench.put(passed, Some(other));
    }
    let passed = bench.get(40 * MIB, Some(stream));
    let large = bench.get(500 * MIB, Some(stream));
    assert!(passed > large);
    bench.put(passed, Some(stream));
    bench.put(large, Some(stream));
    bench.finish();
}
