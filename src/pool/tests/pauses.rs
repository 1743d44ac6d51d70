//! A stream that pauses for long beside bursts on other streams: it keeps its arena while the others ask for little in its
//! pauses, and otherwise it requests its memory anew, once. Time alone makes no stream silent.

use super::{Bench, MIB};
use crate::driver::sim::model::functions::Call;

/// The blocks of a request of the server: 56 MiB.
const SERVED: [u64; 3] = [32 * MIB, 16 * MIB, 8 * MIB];
const NEED: u64 = 56 * MIB;
/// The blocks of a burst: 24 MiB.
const BURST: [u64; 3] = [16 * MIB, 6 * MIB, 2 * MIB];
const BURST_NEED: u64 = 24 * MIB;

/// A stream is silent once others have asked for so many times the peak in use (`slow_path/steps.rs`).
const SILENT: u64 = 2;

const PAUSE: u64 = 10_000_000_000;
const ROUNDS: usize = 60;

/// Allocates the blocks on the stream, uses each, and frees them.
fn request(bench: &Bench, stream: usize, sizes: &[u64]) {
    let blocks: Vec<u64> = sizes.iter().map(|size| bench.get(*size, Some(stream))).collect();
    for (block, size) in blocks.iter().zip(sizes) {
        bench.launch(stream, *block, *size);
    }
    blocks.into_iter().for_each(|block| bench.put(block, Some(stream)));
    bench.app(|machine| machine.stream_synchronize(stream)).unwrap();
}

fn memory_calls(bench: &Bench) -> u64 {
    let calls = [Call::MemCreate, Call::MemMap, Call::MemUnmap, Call::MemRelease];
    calls.iter().map(|call| bench.machine.count(call.name())).sum()
}

/// In each round the server pauses for ten seconds, in which there is a burst, and then serves four requests. Returns the
/// memory calls that its requests have made in each round.
fn serve_with_pauses(bench: &Bench, mut burst: impl FnMut()) -> Vec<u64> {
    let server = bench.stream();
    let serve = |_: usize| {
        bench.machine.advance(PAUSE);
        burst();
        let before = memory_calls(bench);
        (0..4).for_each(|_| request(bench, server, &SERVED));
        memory_calls(bench) - before
    };
    (0..ROUNDS).map(serve).collect()
}

/// A request on each of so many new streams, which are destroyed once they are complete.
fn new_streams(bench: &Bench, count: u64, sizes: &[u64]) {
    for _ in 0..count {
        let stream = bench.stream();
        request(bench, stream, sizes);
        bench.app(|machine| machine.stream_destroy(stream)).unwrap();
    }
}

fn reserved_peak(bench: &Bench) -> u64 {
    bench.allocator.stats(None).unwrap().reserved_peak
}

/// Each stream holds what it needs, and neither makes a memory call after its first requests.
#[test]
fn two_streams_with_pauses_hold_their_needs() {
    let bench = Bench::of(8 << 30, "");
    let bursty = bench.stream();
    let served = serve_with_pauses(&bench, || (0..16).for_each(|_| request(&bench, bursty, &BURST)));
    let calls = memory_calls(&bench);
    assert_eq!(served[1..].iter().sum::<u64>(), 0, "{served:?}");
    request(&bench, bursty, &BURST);
    assert_eq!(memory_calls(&bench), calls, "the bursty stream keeps its arena, too");
    let held = reserved_peak(&bench);
    assert!(held <= NEED + BURST_NEED, "{} MiB", held / MIB);
    bench.finish();
}

/// What others ask for in a pause does not suffice to make the server silent.
#[test]
fn arena_stays_where_little_is_asked_for_in_a_pause() {
    let bench = Bench::of(8 << 30, "");
    let count = SILENT * NEED / BURST_NEED - 1;
    let served = serve_with_pauses(&bench, || new_streams(&bench, count, &BURST));
    assert_eq!(served[1..].iter().sum::<u64>(), 0, "{served:?}");
    let held = reserved_peak(&bench);
    // The server's arena, and those of the streams that requested lately.
    let most = NEED + SILENT * NEED + BURST_NEED + 2 * MIB * count;
    assert!(held <= most, "{} MiB, more than {} MiB", held / MIB, most / MIB);
    bench.finish();
}

/// What others ask for in each pause makes the server silent, and its arena serves them, whose shapes differ from pause to
/// pause. It requests its memory anew once, and not in each round.
#[test]
fn stream_that_comes_back_from_long_pauses_requests_its_memory_once() {
    let bench = Bench::of(8 << 30, "");
    let bursts = [[40, 8, 4], [30, 20, 14], [24, 24, 4]].map(|burst| burst.map(|size| size * MIB));
    let mut bursts = bursts.iter().cycle();
    let count = 8;
    let served = serve_with_pauses(&bench, || {
        bursts
            .next()
            .into_iter()
            .for_each(|burst| new_streams(&bench, count, burst))
    });
    let again = served.iter().skip(1).filter(|calls| **calls > 0).count();
    assert!(again <= 1, "{served:?}");
    let held = reserved_peak(&bench);
    let most = 2 * NEED + (SILENT + 2) * NEED + 2 * MIB * count;
    assert!(held <= most, "{} MiB, more than {} MiB", held / MIB, most / MIB);
    bench.finish();
}
