//! `headroom`: what the device keeps free for others.

use super::{Bench, MIB};

/// A device of 1 GiB.
fn bench(options: &str) -> Bench {
    Bench::new(options)
}

fn free(bench: &Bench) -> u64 {
    bench.app(|machine| machine.memory_info(0)).unwrap().0
}

#[test]
fn headroom_stays_free_whatever_is_requested() {
    for options in [
        "headroom=256MiB",
        "headroom=25%",
        "headroom=256MiB,backing=malloc",
        "headroom=256MiB,limit=1GiB",
    ] {
        for flags in [0, super::RESIZABLE] {
            let bench = bench(options);
            let stream = bench.stream();
            let mut blocks = Vec::new();
            let error = loop {
                match bench.request(24 * MIB, flags, Some(stream).filter(|_| blocks.len() % 2 == 0)) {
                    Ok(block) => blocks.push(block),
                    Err(error) => break error.to_string(),
                }
            };
            assert!(error.contains("headroom 268435456 bytes"), "{options}: {error}");
            assert!(free(&bench) >= 256 * MIB, "{options}: {} MiB free", free(&bench) / MIB);
            assert!(blocks.len() >= 26, "{options}, {flags}: {}", blocks.len());
            // What is there already serves requests.
            let last = blocks.pop().unwrap();
            bench.put(last, None);
            blocks.push(bench.request(24 * MIB, flags, None).unwrap());
            blocks.into_iter().for_each(|block| bench.put(block, None));
            bench.finish();
        }
    }
}

#[test]
fn what_others_take_and_return_counts() {
    let bench = bench("headroom=256MiB,wait_ms=0");
    let theirs = bench.app(|machine| machine.memory_malloc(700 * MIB)).unwrap();
    let first = bench.request(64 * MIB, 0, None).unwrap();
    assert!(bench.request(64 * MIB, 0, None).is_err());
    bench.app(|machine| machine.memory_free(theirs)).unwrap();
    let second = bench.request(64 * MIB, 0, None).unwrap();
    [first, second].into_iter().for_each(|block| bench.put(block, None));
    bench.finish();
}

/// Whether memory is short decides only how free memory is used. So a miss that finds memory in its arena does not ask the driver
/// each time.
#[test]
fn misses_of_an_arena_hardly_ask_for_free_memory() {
    let bench = bench("headroom=256MiB");
    let stream = Some(bench.stream());
    let turn = |round: u64| {
        // Sizes differ, so each request misses its stream's cache.
        let blocks = [1, 2].map(|part| bench.get((8 + round % 4 * 2) * part * MIB, stream));
        blocks.into_iter().for_each(|block| bench.put(block, stream));
    };
    (0..16).for_each(turn);
    let asked = || bench.machine.calls().get("cuMemGetInfo").copied().unwrap_or(0);
    let (before, begun) = (asked(), std::time::Instant::now());
    (0..1000).for_each(turn);
    // At most once for each millisecond that has passed.
    let most = begun.elapsed().as_millis() as u64 + 1;
    let more = asked() - before;
    assert!(more <= most, "2,000 requests asked {more} times, {most} expected");
    bench.finish();
}
