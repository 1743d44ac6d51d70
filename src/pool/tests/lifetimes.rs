//! Blocks that outlive the others of their stream lie apart from them, so that what the others leave stays contiguous.

use std::collections::VecDeque;

use crate::driver::sim::SimConfig;

use super::{Bench, MIB};

/// What a stream does with the third block of a request.
#[derive(Clone, Copy)]
enum Third {
    /// It lives for 0 to 8 more requests.
    LivesOn,
    /// Another stream uses it and frees it, a request later.
    Passes,
}

/// Serves 1,000 requests of 8 shapes on one stream, and returns what is reserved in the end, in percent of the most that
/// was in use.
fn serve(third: Third, seed: u64) -> u64 {
    let memory = 64 << 30;
    let config = SimConfig {
        memory,
        ..SimConfig::default()
    };
    let bench = Bench::over(config, "");
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
        for (at, block) in blocks.into_iter().enumerate() {
            match third {
                Third::LivesOn if at == 2 => held.push_back((block, number + draw(9))),
                Third::Passes if at == 2 => held.push_back((block, number + 1)),
                _ => bench.put(block, Some(stream)),
            }
        }
        let over: Vec<_> = held.iter().filter(|(_, last)| *last <= number).copied().collect();
        held.retain(|(_, last)| *last > number);
        for (block, _) in over {
            let by = match third {
                Third::LivesOn => stream,
                Third::Passes => other,
            };
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
    let percent: Vec<u64> = (1..=6).map(|seed| serve(Third::LivesOn, seed)).collect();
    assert!(
        percent.iter().sum::<u64>() <= 6 * 118,
        "{percent:?} percent of the needs are reserved"
    );
}

#[test]
fn blocks_that_another_stream_frees_lie_apart() {
    let percent: Vec<u64> = (1..=6).map(|seed| serve(Third::Passes, seed)).collect();
    assert!(
        percent.iter().sum::<u64>() <= 6 * 118,
        "{percent:?} percent of the needs are reserved"
    );
}
