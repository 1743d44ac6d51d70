//! A pool that is filled: few driver calls, little more memory than is in use, and small handles once blocks are freed.

use super::{Bench, MIB};
use crate::driver::sim::SimConfig;
use crate::sync::atomic::Ordering;

const GIB: u64 = 1 << 30;

fn bench(memory: u64, options: &str) -> Bench {
    let config = SimConfig {
        memory,
        ..SimConfig::default()
    };
    Bench::over(config, options)
}

/// The largest handle that is mapped.
fn largest_handle(bench: &Bench) -> u64 {
    let core = bench.allocator.pool_of(0).core.lock();
    core.memory
        .physical
        .handles_in(0, u64::MAX)
        .map(|(_, size)| size)
        .max()
        .unwrap()
}

#[test]
fn first_fill_takes_few_calls_and_little_memory_ahead() {
    for (size, most) in [
        (MIB, 450),
        (4 * MIB, 400),
        (16 * MIB, 300),
        (24 * MIB, 300),
        (64 * MIB, 300),
        (256 * MIB, 450),
    ] {
        for on_stream in [true, false] {
            let bench = bench(24 * GIB, "");
            let stream = Some(bench.stream()).filter(|_| on_stream);
            let mut blocks = Vec::new();
            let mut in_use = 0;
            while in_use + size <= 8 * GIB {
                blocks.push(bench.get(size, stream));
                in_use += size;
                let reserved = bench.allocator.stats(Some(0)).unwrap().reserved;
                assert!(
                    reserved <= in_use + in_use / 20 + 2 * MIB,
                    "{size}: {reserved} for {in_use}"
                );
            }
            let calls = bench.allocator.stats(Some(0)).unwrap().driver_calls;
            // A large block without a stream goes back as a whole, so it has handles of its own.
            let most = if on_stream {
                most
            } else {
                most.max(3 * blocks.len() as u64 + 16)
            };
            assert!(calls <= most, "{calls} calls for blocks of {} MiB", size / MIB);
            blocks.into_iter().for_each(|block| bench.put(block, stream));
            bench.finish();
        }
    }
}

/// Engines are loaded and unloaded without a stream. Each has few handles of its own, and gives them back.
#[test]
fn engine_takes_few_calls() {
    let bench = bench(24 * GIB, "");
    let stream = bench.stream();
    bench.use_and_free(stream, 1, GIB);
    let sizes = [640, 256, 64, 40];
    let calls = || bench.allocator.stats(Some(0)).unwrap().driver_calls;
    let load = || {
        let blocks = sizes.map(|size| bench.get(size * MIB, None));
        bench.app(|machine| machine.context_synchronize()).unwrap();
        blocks.into_iter().for_each(|block| bench.put(block, None));
        // The next call collects what has completed.
        bench.use_and_free(stream, 1, MIB);
        bench.app(|machine| machine.context_synchronize()).unwrap();
    };
    load();
    let (before, held) = (calls(), bench.allocator.stats(Some(0)).unwrap().reserved);
    (0..8).for_each(|_| load());
    let each = (calls() - before) / 8;
    assert!(each <= 70, "{each} calls for an engine of four blocks");
    assert!(bench.allocator.stats(Some(0)).unwrap().reserved <= held + GIB);
    bench.finish();
}

#[test]
fn handles_are_small_where_blocks_are_freed_between_requests() {
    let bench = bench(24 * GIB, "");
    let stream = bench.stream();
    for size in (16..256).step_by(16) {
        let block = bench.get(size * MIB, Some(stream));
        bench.put(block, Some(stream));
    }
    assert_eq!(largest_handle(&bench), 2 * MIB);
    bench.finish();
}

/// What large handles cannot give up is missed near a limit or on a full device, so they end long before it.
#[test]
fn handles_are_small_near_the_limit_and_on_a_full_device() {
    for (memory, options) in [(4 * GIB, ""), (24 * GIB, "limit=4GiB"), (8 * GIB, "headroom=4GiB")] {
        let bench = bench(memory, options);
        let stream = bench.stream();
        let mut blocks = Vec::new();
        while let Ok(block) = bench.request(16 * MIB, 0, Some(stream)) {
            blocks.push(block);
        }
        assert_eq!(blocks.len() as u64, 4 * GIB / (16 * MIB), "{options}");
        let core = bench.allocator.pool_of(0).core.lock();
        let handles: Vec<u64> = core
            .memory
            .physical
            .handles_in(2 * GIB + 512 * MIB, u64::MAX)
            .map(|of| of.1)
            .collect();
        assert_eq!(handles.iter().max(), Some(&(2 * MIB)), "{options}");
        drop(core);
        blocks.into_iter().for_each(|block| bench.put(block, Some(stream)));
        bench.finish();
    }
}

/// The device has enough for the request, though not for memory ahead of it. What moves handles, too, goes without that.
#[test]
fn memory_ahead_is_left_out_where_the_driver_has_too_little() {
    let bench = bench(24 * GIB, "");
    let stream = bench.stream();
    let mut blocks: Vec<u64> = (0..100).map(|_| bench.get(16 * MIB, Some(stream))).collect();
    let free = bench.app(|machine| machine.memory_info(0)).unwrap().0;
    let others = bench.app(|machine| machine.memory_malloc(free - 16 * MIB)).unwrap();
    let held = |bench: &Bench| bench.allocator.stats(Some(0)).unwrap().reserved;
    let before = held(&bench);
    let pressure = || bench.allocator.pool_of(0).pressure_epoch.load(Ordering::Relaxed);
    let epoch = pressure();
    while held(&bench) == before {
        blocks.push(bench.get(16 * MIB, Some(stream)));
    }
    assert_eq!(pressure(), epoch, "no other stream is asked for memory");
    bench.app(|machine| machine.memory_free(others)).unwrap();
    blocks.into_iter().for_each(|block| bench.put(block, Some(stream)));
    bench.finish();
}

/// After a phase in which blocks were freed, a pool that is filled further rises again.
#[test]
fn pool_rises_again_when_it_is_filled_further() {
    let bench = bench(24 * GIB, "");
    let stream = bench.stream();
    for size in (16..256).step_by(16) {
        let block = bench.get(size * MIB, Some(stream));
        bench.put(block, Some(stream));
    }
    let blocks: Vec<u64> = (0..128).map(|_| bench.get(16 * MIB, Some(stream))).collect();
    assert!(largest_handle(&bench) >= 16 * MIB, "{}", largest_handle(&bench));
    blocks.into_iter().for_each(|block| bench.put(block, Some(stream)));
    bench.finish();
}
