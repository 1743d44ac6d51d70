//! A request finds what one of hundreds of streams has freed, however many events of others are pending.

use std::sync::atomic::Ordering;

use super::{Bench, MIB};

const STREAMS: usize = 512;
/// The streams that have freed a large block, and one that has freed as little as all others. Their work completes in turn.
const HOLDERS: [(usize, u64); 4] = [(0, LARGE), (300, LARGE), (STREAMS - 1, LARGE), (200, SMALL)];
const LARGE: u64 = 256 * MIB;
const SMALL: u64 = 2 * MIB;
/// What each stream requests after that, and keeps.
const KEPT: u64 = 512;
/// Work that goes on throughout the test, in nanoseconds.
const LONG: u64 = 1_000_000_000_000_000;

/// Each stream has freed a block behind work that goes on, and has recorded a completion event. Below the limit there is no
/// other memory, and a request may not wait. Once the work of one stream is complete, the next request gets
/// what it has freed, and waits for no other stream.
/// No context event covers the work of all (`captures=1`).
#[test]
fn miss_finds_what_one_of_512_streams_has_freed() {
    let bench = Bench::of(16 << 30, "wait_ms=0,captures=1");
    let streams: Vec<usize> = (0..STREAMS).map(|_| bench.stream()).collect();
    let mut kernels = [0; HOLDERS.len()];
    for (number, stream) in streams.iter().enumerate() {
        let holder = HOLDERS.iter().position(|(holder, _)| *holder == number);
        bench.use_and_free(*stream, 1, holder.map_or(SMALL, |holder| HOLDERS[holder].1));
        match holder {
            Some(holder) => kernels[holder] = bench.app(|machine| machine.launch_persistent(*stream, &[]).unwrap()),
            None => bench.app(|machine| machine.launch(*stream, LONG, &[])).unwrap(),
        }
    }
    // Another request lacked memory: the next miss of each stream records a completion event for what it has freed.
    let pool = bench.allocator.pool_of(0);
    pool.pressure_epoch.fetch_add(1, Ordering::Relaxed);
    let kept: Vec<u64> = streams.iter().map(|stream| bench.get(KEPT, Some(*stream))).collect();
    assert_eq!(bench.machine.count("cuEventRecord"), STREAMS as u64);
    let reserved = bench.allocator.stats(None).unwrap().reserved;
    bench.allocator.set_limit_without_wait(0, reserved).unwrap();

    let mut got = Vec::new();
    for ((holder, size), kernel) in HOLDERS.into_iter().zip(kernels) {
        let stream = bench.stream();
        let request = size - MIB;
        assert!(bench.app(|machine| machine.release_persistent(kernel)));
        bench
            .app(|machine| machine.stream_synchronize(streams[holder]))
            .unwrap();
        let count = |call: &str| bench.machine.count(call);
        let before = (count("cuEventQuery"), count("cuStreamWaitEvent"));
        let block = bench.request(request, 0, Some(stream));
        let (asked, waits) = (count("cuEventQuery") - before.0, count("cuStreamWaitEvent") - before.1);
        let block = block.unwrap_or_else(|why| panic!("stream {holder} of {STREAMS} has {size} bytes: {why}"));
        assert_eq!(waits, 0, "it waits for another stream's work beside what is complete");
        // In the last resort, each event is asked.
        assert!(asked <= 2 * STREAMS as u64, "{asked} queries");
        got.push((block, stream));
    }
    let kept = kept.into_iter().zip(streams);
    got.into_iter()
        .chain(kept)
        .for_each(|(block, stream)| bench.put(block, Some(stream)));
    bench.finish();
}
