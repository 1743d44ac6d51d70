//! The parts of one pair, each measured by itself, and twice where a pair needs it twice.

mod common;

use std::hint::black_box;

use common::Rig;
use criterion::{Criterion, criterion_group, criterion_main};
use trtalloc::driver::{Driver, Stream};
use trtalloc::pool::index::Index;
use trtalloc::pool::stream_cache::block::{BlockState, Blocks};
use trtalloc::pool::stream_cache::classes::Classes;
use trtalloc::pool::stream_cache::{Key, StreamCaches};
use trtalloc::support::process;

const SIZE: u64 = 1 << 20;

fn parts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("part");
    let rig = Rig::new("");
    let key = Key {
        stream: rig.stream,
        context: 0,
        thread: 0,
    };
    let caches = StreamCaches::default();
    let (cache, guard) = caches.lock(key);
    drop(guard);
    let lock = std::sync::Mutex::new(0u64);
    group.bench_function("for scale: the standard library's mutex, once", |bencher| {
        bencher.iter(|| *black_box(&lock).lock().unwrap() += 1);
    });
    group.bench_function("lock, twice", |bencher| {
        bencher.iter(|| {
            for _ in 0..2 {
                black_box(cache).inner.lock().queries += 1;
            }
        });
    });
    group.bench_function("stream look-up and lock, twice", |bencher| {
        bencher.iter(|| {
            for _ in 0..2 {
                black_box(caches.lock(black_box(key)));
            }
        });
    });
    let index = Index::new(64 << 30, 512);
    let blocks = Blocks::default();
    index.set(SIZE, 1);
    group.bench_function("pointer to block", |bencher| {
        bencher.iter(|| black_box(blocks.get(index.get(black_box(SIZE)))).size());
    });
    let block = blocks.get(1);
    group.bench_function("block claimed and handed out", |bencher| {
        bencher.iter(|| {
            block.hand_out(Some(cache));
            black_box(block).claim_at_origin(cache, 0, BlockState::Cached)
        });
    });
    let mut classes = Classes::default();
    for (id, size) in (1..=64u32).zip((512..).step_by(1536)) {
        classes.push(&blocks, size, id);
    }
    group.bench_function("size class, pop and push", |bencher| {
        bencher.iter(|| {
            let id = classes.pop(&blocks, black_box(512 + 1536), 512).unwrap();
            classes.push(&blocks, 512 + 1536, id);
        });
    });
    let caches = StreamCaches::default();
    let key = Key {
        stream: Stream(64),
        context: 0,
        thread: 0,
    };
    let (_, mut inner) = caches.lock(key);
    group.bench_function("statistics, under the stream's lock", |bencher| {
        bencher.iter(|| {
            let raised = inner.balance.handed_out(black_box(SIZE));
            inner.balance.take_back(black_box(SIZE));
            raised
        });
    });
    group.bench_function("exit and fork, twice", |bencher| {
        bencher.iter(|| process::usable().is_ok() && !process::forked() && !process::exiting());
    });
    group.bench_function("vtable and FFI of one call", |bencher| {
        bencher.iter(|| rig.client.deallocate_async(black_box(0), rig.stream.0));
    });
    let driver: &dyn Driver = rig.driver.as_ref();
    group.bench_function("the simulated device's two answers", |bencher| {
        bencher.iter(|| {
            let stream: Stream = black_box(rig.stream);
            black_box((driver.stream_id(stream), driver.stream_capture(stream)))
        });
    });
    group.finish();
}

criterion_group!(benches, parts);
criterion_main!(benches);
