//! Streams that are gone silently, whose handles never come again: their caches and owners serve others.

use super::{Bench, MIB};
use crate::driver::{Capture, Context, Stream};
use crate::pool::stream_cache::hit::FreedToCache;
use crate::pool::stream_cache::{Key, Service};
use crate::pool::{StreamView, Want};

/// Here the table has a sixteenth of its buckets, and a sixteenth of the owners are kept. So this is as 20,000 otherwise.
const MANY: usize = 1_250;

/// Enough that each bucket of the table has a vacant cache.
const ENOUGH: usize = 560;

/// Serves one request on each of so many new streams. None of them is destroyed, so no handle comes back.
fn serve_once(bench: &Bench, streams: usize) {
    for _ in 0..streams {
        let stream = bench.stream();
        bench.use_and_free(stream, 1, 4 * MIB);
        bench.app(|machine| machine.stream_synchronize(stream)).unwrap();
    }
}

/// How many caches and how many owners there are.
fn counts(bench: &Bench) -> (usize, usize) {
    let pool = bench.allocator.pool_of(0);
    let core = pool.core.lock();
    (
        pool.caches.all().count(),
        core.memory
            .free_space
            .count_owners()
            .max(core.reclaimer.pending.count_owners()),
    )
}

fn key(stream: usize) -> Key {
    Key {
        stream: Stream(stream),
        context: 0,
        thread: 0,
    }
}

#[test]
fn streams_whose_handles_never_come_again_leave_room() {
    let bench = Bench::of(8 << 30, "");
    serve_once(&bench, MANY);
    let (caches, owners) = counts(&bench);
    assert!(caches < 6_000 / 16, "{caches} caches");
    assert!(owners < 2_500 / 16, "{owners} owners");
    let stats = bench.allocator.stats(None).unwrap();
    assert_eq!((stats.allocations, stats.frees), (MANY as u64, MANY as u64));
    assert_eq!((stats.allocated, stats.requested), (0, 0));
    assert!(stats.driver_queries >= 2 * MANY as u64);
    bench.finish();
}

/// What the pool does for the default streams of threads that end.
fn default_streams_of_threads(bench: &Bench, threads: usize) {
    let warm = bench.get(MIB, None);
    bench.put(warm, None);
    let pool = bench.allocator.pool_of(0);
    let context = bench.app(|machine| machine.context_current()).unwrap();
    for thread in 1..=threads {
        let key = Key {
            stream: Stream::PER_THREAD,
            context: Context(context).0,
            thread: thread << 12,
        };
        let view = StreamView {
            key,
            stream: Stream::PER_THREAD,
            id: 1_000 + thread as u64,
            capture: Capture::None,
            device: Some(0),
        };
        let want = Want {
            size: 4 * MIB,
            requested: 4 * MIB,
            align: 512,
        };
        let address = pool.allocate(want, Some(&view)).unwrap();
        let (cache, inner) = pool.caches.lock(key);
        let block = pool.find(address).unwrap();
        let taken = pool.free_to_cache::<false>(cache, inner, block, address, false);
        assert!(matches!(taken, FreedToCache::Taken { .. }));
    }
}

#[test]
fn default_streams_of_threads_that_ended_leave_room() {
    // Before CUDA 12.5 no stream counts as silent. Where memory is short, what the streams have freed serves others.
    for version in [12_090, 12_040] {
        let config = crate::driver::sim::SimConfig {
            version,
            ..Default::default()
        };
        let bench = Bench::on(config, "limit=256MiB");
        default_streams_of_threads(&bench, MANY);
        let (caches, owners) = counts(&bench);
        assert!(caches < 8_000 / 16, "{caches} caches, {version}");
        assert!(owners < 5_000 / 16, "{owners} owners, {version}");
        let stats = bench.allocator.stats(None).unwrap();
        assert_eq!((stats.allocated, stats.allocations - stats.frees), (0, 0), "{version}");
        bench.finish();
    }
}

/// A block keeps the cache that it came from. So it is freed as what it is, however many streams came meanwhile. The
/// simulated device ends the process where a destroyed stream is named to it.
#[test]
fn blocks_of_streams_that_are_gone_are_freed_as_theirs() {
    let bench = Bench::of(8 << 30, "");
    let [own, other, none, gone] = [(); 4].map(|()| bench.stream());
    let blocks = [own, other, none, gone].map(|stream| {
        let first = bench.get(MIB, Some(stream));
        let block = bench.get(2 * MIB, Some(stream));
        bench.put(first, Some(stream));
        block
    });
    let resizable = bench.request(2 * MIB, super::RESIZABLE, Some(gone)).unwrap();
    bench.allocator.stream_release(Stream(gone)).unwrap();
    bench.app(|machine| machine.stream_destroy(gone)).unwrap();
    serve_once(&bench, ENOUGH);
    for stream in [own, other, none, gone] {
        let (_, inner) = bench.allocator.pool_of(0).caches.lock_known(key(stream)).unwrap();
        assert!(inner.in_use > 0, "its block is in use");
    }
    bench.launch(own, blocks[0], 2 * MIB);
    bench.put(blocks[0], Some(own));
    bench.put(blocks[1], Some(own));
    bench.put(blocks[2], None);
    bench.put(blocks[3], Some(gone));
    bench.put(resizable, Some(gone));
    let stats = bench.allocator.stats(None).unwrap();
    let all = ENOUGH as u64 + 9;
    assert_eq!((stats.allocations, stats.frees, stats.allocated), (all, all, 0));
    for stream in [own, other, none, gone] {
        let known = bench.allocator.pool_of(0).caches.lock_known(key(stream));
        assert_eq!(known.map_or(0, |(_, inner)| inner.in_use), 0);
    }
    bench.finish();
}

/// A stream that comes back after its cache serves another one is a new one, and so is its free of a block that others own.
#[test]
fn streams_come_back_after_their_caches_serve_others() {
    let bench = Bench::of(8 << 30, "");
    let streams: Vec<usize> = (0..64).map(|_| bench.stream()).collect();
    for stream in &streams {
        bench.use_and_free(*stream, 1, 4 * MIB);
        bench.app(|machine| machine.stream_synchronize(*stream)).unwrap();
    }
    serve_once(&bench, ENOUGH);
    let pool = bench.allocator.pool_of(0);
    let has_cache = |stream: &&usize| {
        let known = pool.caches.lock_known(key(**stream));
        known.is_some_and(|(_, inner)| !matches!(inner.service, Service::Unused))
    };
    assert_eq!(streams.iter().filter(has_cache).count(), 0, "they were forgotten");
    for (at, stream) in streams.iter().enumerate() {
        let block = bench.get(4 * MIB, if at % 2 == 0 { Some(*stream) } else { None });
        bench.launch(*stream, block, 4 * MIB);
        bench.put(block, Some(*stream));
        bench.use_and_free(*stream, 2, 3 * MIB);
    }
    assert_eq!(bench.wrong(), Vec::<String>::new());
    bench.finish();
}
