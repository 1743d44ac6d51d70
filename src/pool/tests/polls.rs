//! How many events a miss asks: a few, whatever the number of streams.

use std::sync::atomic::Ordering;

use super::{Bench, MIB};

/// As many streams as `STREAMS`, each with a block that it has freed behind a completion event.
fn streams_with_events(bench: &Bench) -> Vec<usize> {
    let streams: Vec<usize> = (0..STREAMS).map(|_| bench.stream()).collect();
    for stream in &streams {
        bench.use_and_free(*stream, 1, 2 * MIB);
    }
    let pool = bench.allocator.pool_of(0);
    pool.pressure_epoch.fetch_add(1, Ordering::Relaxed);
    for stream in &streams {
        // A miss records the event that others want.
        bench.use_and_free(*stream, 1, 2 * MIB + 512);
    }
    streams
}

const STREAMS: usize = 256;

#[test]
fn miss_asks_few_events_while_memory_may_grow() {
    let bench = Bench::of(8 << 30, "");
    let streams = streams_with_events(&bench);
    let mut most = 0;
    for stream in streams {
        let before = bench.machine.count("cuEventQuery");
        let block = bench.get(4 * MIB, Some(stream));
        most = most.max(bench.machine.count("cuEventQuery") - before);
        bench.put(block, Some(stream));
    }
    assert!((1..=4).contains(&most), "{most} queries");
    bench.finish();
}
