//! Misses that the stream's arena satisfies under one lock: they do all that other misses do.

use std::sync::atomic::Ordering::Relaxed;

use crate::driver::sim::SimConfig;
use crate::driver::{Capture, Stream};
use crate::pool::stream_cache::Key;
use crate::pool::{StreamView, Want};

use super::{Bench, MIB};

/// A miss on a stream covers what was freed without a stream, although it needs none of it.
#[test]
fn miss_in_the_arena_covers_what_was_freed_without_a_stream() {
    let bench = Bench::new("");
    let stream = bench.stream();
    bench.use_and_free(stream, 1, 8 * MIB);
    let blocks: Vec<u64> = (0..4).map(|_| bench.get(12 * MIB, None)).collect();
    blocks.into_iter().for_each(|block| bench.put(block, None));
    let events = || bench.machine.count("cuCtxRecordEvent");
    let before = events();
    let block = bench.get(MIB, Some(stream));
    assert_eq!(events(), before + 1);
    bench.put(block, Some(stream));
    bench.finish();
}

/// Where memory was short lately, the free of a block records a completion event if its stream has allocated few blocks
/// since. Otherwise the application may have destroyed the stream.
#[test]
fn block_of_a_miss_is_as_old_as_it_is() {
    let bench = Bench::new("");
    let stream = bench.stream();
    bench.use_and_free(stream, 2, 8 * MIB);
    let hits = || (0..300).for_each(|_| bench.put(bench.get(8 * MIB, Some(stream)), Some(stream)));
    let is_recorded = |block: u64| {
        bench.allocator.pool_of(0).shortages.fetch_add(1, Relaxed);
        let before = bench.machine.count("cuEventRecord");
        bench.put(block, Some(stream));
        bench.machine.count("cuEventRecord") > before
    };
    hits();
    assert!(is_recorded(bench.get(MIB, Some(stream))));
    let old = bench.get(2 * MIB, Some(stream));
    hits();
    assert!(!is_recorded(old));
    bench.finish();
}

/// A small block of a stream takes no part of a large handle in common free space.
#[test]
fn miss_leaves_large_handles_whole() {
    let bench = Bench::new("release_threshold=all");
    let stream = bench.stream();
    bench.put(bench.get(512, Some(stream)), Some(stream));
    let large = bench.get(256 * MIB, None);
    bench.put(large, None);
    // These make common free space of what was freed, and take none of it.
    let others = [(); 2].map(|()| bench.get(2 * MIB, None));
    let largest = || bench.allocator.stats_with_device(Some(0)).unwrap().largest_free;
    assert_eq!(largest(), 256 * MIB);
    // More than the arena has.
    let small = bench.get(4 * MIB, Some(stream));
    assert_eq!(largest(), 256 * MIB);
    bench.put(small, Some(stream));
    others.into_iter().for_each(|block| bench.put(block, None));
    bench.finish();
}

/// A stream's handle may come to serve another device between the look at its cache and the pool's lock.
#[test]
fn cache_of_another_device_serves_no_request() {
    let config = SimConfig {
        devices: 2,
        ..SimConfig::default()
    };
    let bench = Bench::on(config, "");
    let first = bench.stream();
    bench.put(bench.get(MIB, Some(first)), Some(first));
    let other = bench.app(|machine| machine.primary_retain(1)).unwrap();
    bench.app(|machine| machine.context_push(other)).unwrap();
    let second = bench.stream();
    bench.put(bench.get(4 * MIB, Some(second)), Some(second));
    let pool = bench.allocator.pool_of(0);
    let stream = Stream(second);
    let key = Key {
        stream,
        context: 0,
        thread: 0,
    };
    let view = StreamView {
        key,
        stream,
        id: bench.app(|machine| machine.stream_id(second)).unwrap(),
        capture: Capture::None,
        device: Some(0),
    };
    let want = Want {
        size: MIB,
        requested: MIB,
        align: 512,
    };
    let refused = pool.allocate(want, Some(&view)).unwrap_err().to_string();
    assert!(refused.contains("serves another device"), "{refused}");
    bench.app(|machine| machine.context_pop()).unwrap();
    bench.finish();
}
