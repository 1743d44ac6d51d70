//! The driver's malloc may put its memory anywhere: no block lies in two allocations. The checker checks that for each
//! block handed out, and [`Allocator::validate`] checks the free ranges.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{Bench, MIB};
use crate::allocator::Request;
use crate::driver::sim::{Addresses, SimConfig};

const POLICIES: [Addresses; 7] = [
    Addresses::Ascending,
    Addresses::Descending,
    Addresses::Returning,
    Addresses::Apart,
    Addresses::Odd,
    Addresses::Drawn(1),
    Addresses::Drawn(2),
];

fn bench(addresses: Addresses, options: &str) -> Bench {
    let config = SimConfig {
        addresses,
        ..SimConfig::default()
    };
    Bench::on(config, options)
}

#[test]
fn segments_that_adjoin_stay_apart() {
    for addresses in POLICIES {
        for options in ["backing=malloc", "kind=pinned", "backing=malloc,guard=1"] {
            let bench = bench(addresses, options);
            // It runs twice, because addresses and offsets come back once the segments are gone.
            for _ in 0..2 {
                let blocks = [(); 6].map(|()| bench.get(3 * MIB / 2, None));
                blocks.into_iter().for_each(|block| bench.put(block, None));
                bench.allocator.validate().unwrap();
                // Two segments together have room for it, but none alone.
                let larger = bench.get(3 * MIB, None);
                bench.allocator.validate().unwrap();
                assert_eq!(bench.wrong(), Vec::<String>::new(), "{addresses:?} {options}");
                bench.put(larger, None);
                bench.allocator.trim(Some(0), 4 * MIB).unwrap();
                bench.allocator.validate().unwrap();
                bench.allocator.trim(Some(0), 0).unwrap();
            }
            bench.finish();
        }
    }
}

#[test]
fn random_blocks_lie_in_one_allocation_each() {
    for (at, addresses) in POLICIES.into_iter().enumerate() {
        for options in [
            "backing=malloc,limit=192MiB,wait_ms=5",
            "kind=pinned,limit=192MiB,wait_ms=5",
            "passthrough=1,limit=192MiB,wait_ms=5",
        ] {
            let bench = bench(addresses, options);
            let streams = [None, Some(bench.stream()), Some(bench.stream())];
            let mut blocks: Vec<(u64, Option<usize>)> = Vec::new();
            let mut random = at as u64 + 1;
            for step in 0..600 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let draw = random >> 33;
                let stream = streams[draw as usize % 3];
                match draw % 16 {
                    0..9 => {
                        let size = 1 + (draw >> 4) % ((12 * MIB) >> (draw % 5 * 3));
                        if let Ok(block) = bench.request(size, 0, stream) {
                            if let Some(stream) = stream {
                                bench.launch(stream, block, size);
                            }
                            blocks.push((block, stream));
                        }
                    }
                    9..14 if !blocks.is_empty() => {
                        let (block, stream) = blocks.swap_remove(draw as usize % blocks.len());
                        bench.put(block, stream.filter(|_| !draw.is_multiple_of(3)));
                    }
                    14 => drop(bench.allocator.trim(Some(0), draw % (256 * MIB))),
                    _ => bench.app(|machine| machine.advance(2_000_000)),
                }
                let valid = bench.allocator.validate();
                valid.unwrap_or_else(|why| panic!("{addresses:?} {options}, step {step}: {why}"));
                assert_eq!(
                    bench.wrong(),
                    Vec::<String>::new(),
                    "{addresses:?} {options}, step {step}"
                );
            }
            for (block, stream) in blocks {
                bench.put(block, stream);
            }
            bench.finish();
        }
    }
}

#[test]
fn alignment_holds_at_any_address_of_the_driver() {
    for addresses in POLICIES {
        for options in ["backing=malloc", "kind=pinned", "passthrough=1"] {
            let bench = bench(addresses, options);
            let aligned = |alignment| {
                let request = Request {
                    size: 5000,
                    alignment,
                    flags: 0,
                    stream: None,
                    device: None,
                };
                let block = bench.allocator.allocate(request).unwrap();
                bench.machine.checker().hand_out(block, 5000, None);
                assert_eq!(block % alignment.max(512), 0, "{addresses:?} {options}");
                block
            };
            let blocks = [0, 256, 512, 1024, 4096, 65_536, MIB, 2 * MIB].map(aligned);
            assert_eq!(bench.wrong(), Vec::<String>::new(), "{addresses:?} {options}");
            bench.allocator.validate().unwrap();
            blocks.into_iter().for_each(|block| bench.put(block, None));
            bench.finish();
        }
    }
}

#[test]
fn segment_is_forgotten_before_the_driver_reuses_its_addresses() {
    for options in ["backing=malloc", "kind=pinned"] {
        let bench = bench(Addresses::Returning, options);
        let block = bench.get(MIB, None);
        bench.put(block, None);
        let (allocator, call) = match options {
            "kind=pinned" => (bench.allocator.clone(), "cuMemFreeHost"),
            _ => (bench.allocator.clone(), "cuMemFree"),
        };
        assert!(allocator.pool_of(0).knows(block));
        // The address may belong to another pool as soon as the call is made, so this pool must not answer for it.
        let known = Arc::new(AtomicBool::new(true));
        let seen = known.clone();
        bench.machine.come_between(call, 1, move |_| {
            seen.store(allocator.pool_of(0).knows(block), Relaxed);
        });
        bench.machine.fail_nth(Some(call), 1, 999);
        bench.allocator.trim(Some(0), 0).unwrap();
        assert!(!known.load(Relaxed), "{options}");
        // The driver refused: the segment is still the pool's, and serves requests.
        assert!(bench.allocator.pool_of(0).knows(block), "{options}");
        bench.allocator.validate().unwrap();
        let again = bench.get(MIB, None);
        assert_eq!(again, block, "{options}");
        bench.put(again, None);
        bench.finish();
    }
}
