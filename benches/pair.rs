//! Benchmarks of this project alone: the cases of `compare`, and a pair through the other interfaces.

// `compare` uses more of it.
#[allow(dead_code)]
#[path = "compare/cases.rs"]
mod cases;
mod common;
#[path = "compare/pools.rs"]
mod pools;

use std::ffi::c_void;
use std::hint::black_box;
use std::time::Duration;

use cases::{CASES, Case};
use common::Rig;
use criterion::{Criterion, criterion_group, criterion_main};
use pools::Ours;
use trtalloc::allocator::Request;
use trtalloc::ffi::c::{trtalloc_allocate_async, trtalloc_deallocate_async};

const SIZE: u64 = 1 << 20;

/// The cases through the C++ vtable.
fn cases(criterion: &mut Criterion) {
    let measured = std::env::args().any(|argument| argument == "--bench");
    for streams in ["checked", "trusted"] {
        let mut group = criterion.benchmark_group(format!("vtable, streams={streams}"));
        group.warm_up_time(Duration::from_secs(1));
        group.measurement_time(Duration::from_secs(2));
        let chosen = CASES
            .iter()
            .filter(|case| streams == "checked" || matches!(case, Case::Pairs { .. }));
        for case in chosen {
            let rig = Rig::new(&format!("streams={streams}"));
            let ours = Ours::of(&rig);
            let mut round = if measured { *case } else { case.short() }.prepare(&ours);
            group.bench_function(case.name(), |bencher| {
                bencher.iter_custom(|count| {
                    let each = round(count).expect("there is room");
                    Duration::from_secs_f64(each * count as f64 / 1e9)
                });
            });
        }
        group.finish();
    }
}

fn ways_in(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pair");
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
    let handle = std::ptr::from_ref(rig.exported).cast_mut().cast();
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

criterion_group!(benches, cases, ways_in);
criterion_main!(benches);
