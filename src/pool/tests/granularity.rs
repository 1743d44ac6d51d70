//! The granularity of handles: CUDA computes it from the properties of an allocation, and recommends another one than the
//! smallest.

use super::{Bench, MIB, RESIZABLE};
use crate::driver::sim::SimConfig;

/// Requests of many sizes, resizes and frees.
fn work(bench: &Bench) {
    let stream = bench.stream();
    for round in 1..40 {
        let on = Some(stream).filter(|_| round % 3 != 0);
        let block = bench.get(round * 700_001, on);
        let growing = bench.request(round * 90_001, RESIZABLE, on).unwrap();
        let growing = bench.resize(growing, round * 90_001, round * 400_001).unwrap();
        if let Some(stream) = on {
            bench.launch(stream, block, round * 700_001);
        }
        bench.put(block, on);
        bench.put(growing, on);
    }
}

fn maps_pages_of(config: SimConfig, options: &str, page: u64) {
    let bench = Bench::over(
        SimConfig {
            memory: 4 << 30,
            ..config
        },
        options,
    );
    work(&bench);
    let pool = bench.allocator.pool_of(0);
    assert!(pool.addresses.base().is_some(), "{options}: no virtual memory");
    assert_eq!(pool.core.lock().memory.physical.page, page, "{options}");
    let reserved = bench.allocator.stats(Some(0)).unwrap().reserved;
    assert_eq!(reserved % page, 0, "{options}");
    bench.finish();
}

#[test]
fn exportable_handles_may_be_larger() {
    for options in ["share=fd", "share=fabric", "rdma=1"] {
        let config = SimConfig {
            exportable_granularity: 16 * MIB,
            ..SimConfig::default()
        };
        maps_pages_of(config.clone(), options, 16 * MIB);
        maps_pages_of(config, "", 2 * MIB);
    }
}

#[test]
fn recommended_granularity_may_differ() {
    for (granularity, recommended_granularity) in [(64 << 10, 2 * MIB), (2 * MIB, 32 * MIB), (64 << 10, 64 << 10)] {
        let config = SimConfig {
            granularity,
            recommended_granularity,
            ..SimConfig::default()
        };
        maps_pages_of(config, "", recommended_granularity);
    }
}
