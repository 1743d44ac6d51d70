//! One allocation and its free: on the way TensorRT takes, on others, where nothing fits, and in a pool without any merits.

mod common;

use std::collections::HashMap;
use std::ffi::c_void;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::Rig;
use criterion::{Criterion, criterion_group, criterion_main};
use parking_lot::Mutex;
use trtalloc::allocator::Request;
use trtalloc::capi::{trtalloc_allocate_async, trtalloc_deallocate_async};
use trtalloc::trace::steady::{Holes, pair};

const SIZE: u64 = 1 << 20;

/// The least a pool can do: one lock, a list for each size, and a map from address to size.
#[derive(Default)]
struct Plain {
    ready: HashMap<u64, Vec<u64>>,
    live: HashMap<u64, u64>,
    end: u64,
}

fn plain_pair(pool: &Mutex<Plain>, size: u64) -> u64 {
    let block = {
        let mut pool = pool.lock();
        let ready = pool.ready.get_mut(&size).and_then(Vec::pop);
        let block = ready.unwrap_or_else(|| {
            pool.end += size;
            pool.end
        });
        pool.live.insert(block, size);
        block
    };
    let mut pool = pool.lock();
    if let Some(size) = pool.live.remove(&black_box(block)) {
        pool.ready.entry(size).or_default().push(block);
    }
    block
}

/// Time of `count` pairs while another thread makes pairs on a stream of its own.
fn beside_another(rig: &Rig, count: u64) -> Duration {
    let stream = rig.application.create_stream().unwrap();
    let client = rig.client;
    let (start, over) = (Barrier::new(2), AtomicBool::new(false));
    let time = std::thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            while !over.load(Ordering::Relaxed) {
                (0..64).for_each(|_| assert!(pair(client, SIZE, stream)));
            }
        });
        start.wait();
        let begun = Instant::now();
        let all = (0..count).all(|_| pair(client, SIZE, rig.stream));
        let time = begun.elapsed();
        over.store(true, Ordering::Relaxed);
        assert!(all);
        time
    });
    rig.allocator.stream_release(stream).unwrap();
    rig.application.destroy_stream(stream).unwrap();
    time
}

fn pairs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pair");
    let plain = Mutex::new(Plain::default());
    group.bench_function("a mutex and two hash maps", |bencher| {
        bencher.iter(|| plain_pair(&plain, black_box(SIZE)));
    });
    for streams in ["checked", "trusted"] {
        let rig = Rig::new(&format!("streams={streams}"));
        group.bench_function(format!("vtable, streams={streams}"), |bencher| {
            bencher.iter(|| assert!(pair(rig.client, black_box(SIZE), rig.stream)));
        });
        group.bench_function(format!("vtable, streams={streams}, another thread beside"), |bencher| {
            bencher.iter_custom(|count| beside_another(&rig, count));
        });
    }
    let rig = Rig::new("");
    group.bench_function("Rust", |bencher| {
        bencher.iter(|| {
            let block = rig.allocator.allocate(Request {
                size: black_box(SIZE),
                alignment: 0,
                flags: 0,
                stream: Some(rig.stream),
                device: None,
            });
            rig.allocator.deallocate(block.unwrap(), Some(rig.stream)).unwrap();
        });
    });
    let handle = std::ptr::from_ref(rig.handle).cast_mut().cast();
    let stream = rig.stream.0 as *mut c_void;
    group.bench_function("C", |bencher| {
        bencher.iter(|| {
            // SAFETY: the handle is never freed, and the stream outlives the loop.
            let block = unsafe { trtalloc_allocate_async(handle, black_box(SIZE), 0, 0, stream) };
            // SAFETY: as above.
            assert!(unsafe { trtalloc_deallocate_async(handle, block, stream) });
        });
    });
    group.bench_function("vtable, without a stream", |bencher| {
        bencher.iter(|| {
            let block = rig.client.allocate(black_box(SIZE), 0, 0);
            assert!(block != 0 && rig.client.deallocate(block));
        });
    });
    group.finish();
}

/// Requests that nothing free fits exactly.
fn misses(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("miss");
    for count in [10, 1_000, 10_000] {
        let rig = Rig::new("");
        let mut holes = Holes::make(&rig.allocator, rig.stream, count).unwrap();
        group.bench_function(format!("{count} holes"), |bencher| {
            bencher.iter(|| assert!(holes.miss(rig.client)));
        });
        holes.end(&rig.allocator).unwrap();
    }
    group.finish();
}

criterion_group!(benches, pairs, misses);
criterion_main!(benches);
