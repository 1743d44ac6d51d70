//! Streams that stop requesting: others get what they have freed once it is complete, and streams that take turns keep it.

use super::{Bench, MIB};
use crate::sync::breaking;

const SIZES: [u64; 3] = [32 * MIB, 16 * MIB, 8 * MIB];
const REQUEST: u64 = 56 * MIB;

/// Serves one request on each of so many new streams. The work of each stays pending, if it is to be `held`.
fn serve_once(bench: &Bench, streams: usize, held: bool) -> Vec<u64> {
    let serve = || {
        let stream = bench.stream();
        let blocks = SIZES.map(|size| bench.get(size, Some(stream)));
        for (block, size) in blocks.into_iter().zip(SIZES) {
            bench.launch(stream, block, size);
        }
        let kernel = held.then(|| bench.app(|machine| machine.launch_persistent(stream, &[]).unwrap()));
        blocks.into_iter().for_each(|block| bench.put(block, Some(stream)));
        if !held {
            bench.app(|machine| machine.stream_synchronize(stream)).unwrap();
        }
        kernel
    };
    (0..streams).filter_map(|_| serve()).collect()
}

#[test]
fn new_stream_gets_the_arena_of_a_silent_one() {
    let bench = Bench::of(8 << 30, "");
    serve_once(&bench, 100, false);
    let stats = bench.allocator.stats(None).unwrap();
    assert_eq!(stats.allocated_peak, REQUEST);
    // And a page for each stream that requested lately.
    let most = 4 * REQUEST + 4 * 2 * MIB;
    assert!(stats.reserved_peak <= most, "{} MiB", stats.reserved_peak / MIB);
    bench.finish();
}

#[test]
fn arena_with_pending_work_stays() {
    let bench = Bench::of(8 << 30, "");
    let held = serve_once(&bench, 20, true);
    let stats = bench.allocator.stats(None).unwrap();
    assert!(stats.reserved >= 20 * REQUEST, "{} MiB", stats.reserved / MIB);
    for kernel in held {
        assert!(bench.app(|machine| machine.release_persistent(kernel)));
    }
    bench.finish();
}

#[test]
fn early_gift_of_an_arena_is_noticed() {
    let bench = Bench::of(8 << 30, "");
    let held = breaking("only what is complete is bequeathed", || serve_once(&bench, 20, true));
    for kernel in held {
        assert!(bench.app(|machine| machine.release_persistent(kernel)));
    }
    assert!(!bench.wrong().is_empty(), "the order checker noticed nothing");
}

#[test]
fn streams_that_take_turns_keep_their_arenas() {
    let bench = Bench::of(8 << 30, "");
    let streams: Vec<usize> = (0..8).map(|_| bench.stream()).collect();
    let serve = |rounds: usize| {
        for stream in streams.iter().cycle().take(rounds * streams.len()) {
            let blocks = SIZES.map(|size| bench.get(size, Some(*stream)));
            blocks.into_iter().for_each(|block| bench.put(block, Some(*stream)));
        }
        bench.machine.submissions()
    };
    let warm = serve(4);
    assert_eq!(serve(100), warm, "each stream has its own memory by now");
    bench.finish();
}
