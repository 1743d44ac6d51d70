//! Resizable blocks: every driver call of a resize fails in turn, thousands of resizes, the end of the address addresses,
//! and two threads at once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{Bench, MIB, RESIZABLE};
use crate::driver::Stream;
use crate::driver::sim::SimConfig;
use crate::support::stats::Stats;

const GIB: u64 = 1 << 30;

fn stats(bench: &Bench) -> Stats {
    bench.allocator.stats(Some(0)).unwrap()
}

/// Bytes that depend on their offset.
fn pattern(size: u64) -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    let made = || (0..8 * MIB).map(|at| (at ^ (at >> 8) ^ (at >> 20)) as u8).collect();
    &PATTERN.get_or_init(made)[..size as usize]
}

fn holds(bench: &Bench, address: u64, pattern: &[u8]) -> bool {
    let mut found = vec![0; pattern.len()];
    bench.machine.read(address, &mut found).unwrap();
    found == pattern
}

/// A resize of a block that was written to and is in use on a stream, while another block is live.
struct Case {
    options: &'static str,
    config: SimConfig,
    /// The block's size when it is allocated, before the resize, and after it.
    sizes: [u64; 3],
    /// Work on the block is pending.
    busy: bool,
}

impl Case {
    fn describe(&self) -> String {
        format!("{} {:?}", self.options, self.sizes.map(|size| size / MIB))
    }

    /// The block before the resize, its contents, and the other block.
    fn begin(&self) -> (Bench, u64, &[u8], u64) {
        let bench = Bench::on(self.config.clone(), self.options);
        let stream = bench.stream();
        let [first, before, _] = self.sizes;
        let dedicated = bench.get(3 * MIB, None);
        bench.machine.write(dedicated, pattern(3 * MIB)).unwrap();
        let mut block = bench.request(first, RESIZABLE, Some(stream)).unwrap();
        if before != first {
            block = bench.resize(block, first, before).unwrap();
        }
        let contents = pattern(before);
        bench.machine.write(block, contents).unwrap();
        if self.busy {
            bench.launch(stream, block, before);
        }
        (bench, block, contents, dedicated)
    }

    /// How many driver calls the resize makes.
    fn calls(&self) -> u64 {
        let (bench, block, contents, dedicated) = self.begin();
        let before = bench.machine.calls_made();
        let new = bench.resize(block, self.sizes[1], self.sizes[2]).unwrap();
        let made = bench.machine.calls_made() - before;
        self.end(bench, new, contents, dedicated);
        made
    }

    /// Some calls of a resize fail as `arm` says. The resize succeeds or not, and either way nothing is lost.
    fn fail(&self, what: &str, arm: impl FnOnce(&Bench)) {
        let (bench, block, contents, dedicated) = self.begin();
        let context = bench.machine.context_current().unwrap();
        let [_, had, size] = self.sizes;
        let before = stats(&bench);
        arm(&bench);
        let outcome = bench.resize(block, had, size);
        bench.machine.clear_failures();
        while bench.machine.context_current().unwrap() != context {
            bench.app(|machine| machine.context_pop()).unwrap();
        }
        bench.allocator.validate().unwrap_or_else(|why| panic!("{what}: {why}"));
        let after = stats(&bench);
        let now = match outcome {
            Ok(new) => new,
            Err(_) => {
                let free_cells = |stats: &Stats| {
                    (
                        stats.allocated,
                        stats.requested,
                        stats.reallocations,
                        stats.bytes_copied,
                    )
                };
                assert_eq!(free_cells(&after), free_cells(&before), "{what}");
                assert!(holds(&bench, block, &contents[..had.min(size) as usize]), "{what}");
                // The resize succeeds once the driver works again.
                bench
                    .resize(block, had, size)
                    .unwrap_or_else(|why| panic!("{what}: {why}"))
            }
        };
        assert!(holds(&bench, now, &contents[..had.min(size) as usize]), "{what}");
        self.end(bench, now, contents, dedicated);
    }

    fn end(&self, bench: Bench, block: u64, contents: &[u8], dedicated: u64) {
        let [_, had, size] = self.sizes;
        assert!(holds(&bench, block, &contents[..had.min(size) as usize]));
        assert!(holds(&bench, dedicated, pattern(3 * MIB)));
        bench.put(block, None);
        bench.put(dedicated, None);
        bench.finish();
    }
}

#[test]
fn every_call_of_a_resize_failed_in_turn() {
    let vmm = |sizes, busy| Case {
        options: "wait_ms=20",
        config: SimConfig::default(),
        sizes,
        busy,
    };
    let copies = |options, old: bool| Case {
        options,
        config: SimConfig {
            version: if old { 11_080 } else { SimConfig::default().version },
            ..SimConfig::default()
        },
        sizes: [MIB, MIB, 5 * MIB],
        busy: true,
    };
    let cases = [
        vmm([MIB, 5 * MIB, 30 * MIB], false),
        vmm([MIB, 5 * MIB, 30 * MIB], true),
        vmm([3 * MIB, 8 * MIB, 100 * MIB], false),
        vmm([3 * MIB, 8 * MIB, 100 * MIB], true),
        vmm([3 * MIB, 8 * MIB, MIB], true),
        copies("wait_ms=2000,backing=malloc", false),
        copies("wait_ms=2000,backing=malloc", true),
        copies("wait_ms=2000,passthrough=1", false),
        copies("wait_ms=2000,passthrough=1", true),
        copies("wait_ms=2000,passthrough=1,fill=0xAB", false),
    ];
    for case in cases {
        let step = if super::faults::in_full() { 1 } else { 4 };
        for n in (1..=case.calls()).step_by(step) {
            for code in [2, 999] {
                case.fail(&format!("{}: call {n} fails with {code}", case.describe()), |bench| {
                    assert!(bench.machine.fail_nth(None, n, code));
                });
            }
            // The next call fails too, which may be the first that undoes the resize.
            case.fail(&format!("{}: calls {n} and {} fail", case.describe(), n + 1), |bench| {
                assert!(bench.machine.fail_nth(None, n, 2) && bench.machine.fail_nth(None, n + 1, 999));
            });
        }
        for call in [
            "cuMemMap",
            "cuMemUnmap",
            "cuMemSetAccess",
            "cuMemCreate",
            "cuMemAddressReserve",
            "cuMemcpyDtoDAsync",
        ] {
            case.fail(&format!("{}: every {call} fails", case.describe()), |bench| {
                assert!(bench.machine.fail_every(Some(call), 1, 999));
            });
        }
    }
}

/// From 2 MiB to 8 GiB in steps of 1 MiB: nothing is copied. A growth makes at most three calls. A move makes one
/// reservation, a map for each handle, one access and what the growth needs.
#[test]
fn driver_calls_of_growth_from_2_mib_to_8_gib() {
    let config = SimConfig {
        memory: 24 * GIB,
        ..SimConfig::default()
    };
    let bench = Bench::over(config, "");
    let mut block = bench.request(2 * MIB, RESIZABLE, None).unwrap();
    let (mut handles, mut moves, mut growths) = (1, 0, 0);
    let write = |block: u64, step: u64| {
        bench
            .machine
            .write(block + step * MIB - 8, &step.to_le_bytes())
            .unwrap()
    };
    write(block, 2);
    for step in 3..=8192 {
        let before = bench.machine.calls();
        let submitted = stats(&bench).driver_calls;
        let new = bench.resize(block, (step - 1) * MIB, step * MIB).unwrap();
        let submitted = stats(&bench).driver_calls - submitted;
        let after = bench.machine.calls();
        let made = |call: &str| after.get(call).unwrap_or(&0) - before.get(call).unwrap_or(&0);
        handles += made("cuMemCreate");
        if new == block {
            assert!(submitted <= 3, "step {step}: {submitted}");
            growths += u64::from(submitted > 0);
        } else {
            moves += 1;
            let maps = (made("cuMemAddressReserve"), made("cuMemMap"), made("cuMemSetAccess"));
            assert_eq!(maps, (1, handles, 1), "step {step}");
            assert_eq!(submitted, handles + 2 + made("cuMemCreate"), "step {step}");
        }
        block = new;
        write(block, step);
    }
    assert!((3..=6).contains(&moves), "{moves}");
    assert!(growths < 250, "{growths}");
    for step in 2..=8192u64 {
        let mut found = [0; 8];
        bench.machine.read(block + step * MIB - 8, &mut found).unwrap();
        assert_eq!(u64::from_le_bytes(found), step);
    }
    let stats = stats(&bench);
    assert_eq!((stats.bytes_copied, stats.reallocations), (0, 8190));
    assert_eq!(stats.reallocations_in_place, 8190 - moves);
    bench.put(block, None);
    bench.finish();
}

#[test]
fn thousands_of_resizable_blocks_are_served() {
    let config = SimConfig {
        memory: 24 * GIB,
        ..SimConfig::default()
    };
    let bench = Bench::over(config, "");
    let stream = bench.stream();
    let mut blocks: Vec<u64> = (0..4000u64)
        .map(|at| {
            let block = bench
                .request(100_000, RESIZABLE, (at % 2 == 0).then_some(stream))
                .unwrap();
            bench.machine.write(block, &at.to_le_bytes()).unwrap();
            block
        })
        .collect();
    for (at, block) in blocks.iter_mut().enumerate() {
        let size = if at % 100 == 0 { 70 * MIB } else { 3 * MIB };
        *block = bench.resize(*block, 100_000, size).unwrap();
    }
    for (at, block) in blocks.iter().enumerate() {
        let mut found = [0; 8];
        bench.machine.read(*block, &mut found).unwrap();
        assert_eq!(u64::from_le_bytes(found), at as u64);
    }
    bench.allocator.validate().unwrap();
    assert_eq!(stats(&bench).reallocations, 4000);
    for (at, block) in blocks.into_iter().enumerate() {
        bench.put(block, (at % 3 == 0).then_some(stream));
    }
    bench.finish();
}

/// Blocks get less room where the address space is short. Where not even a block's own pages fit, it lives in ordinary
/// free space, and a move is refused. Live blocks stay, and freed ones make room again.
#[test]
fn address_space_may_run_out() {
    let config = SimConfig {
        memory: 4 * GIB,
        address_space: 16 * GIB + 2 * GIB + 62 * MIB,
        ..SimConfig::default()
    };
    let bench = Bench::over(config, "wait_ms=10");
    let mut blocks: Vec<u64> = Vec::new();
    let in_free_space = loop {
        let block = bench.request(MIB, RESIZABLE, None).unwrap();
        if bench.allocator.resize_copies(block) {
            break block;
        }
        blocks.push(block);
        bench
            .machine
            .write(block, &(blocks.len() as u64).to_le_bytes())
            .unwrap();
        assert!(blocks.len() < 2000, "there is no end");
    };
    // 32 blocks with 64 MiB of room each, and blocks with halves of it in the rest.
    assert_eq!(blocks.len(), 37);
    let in_free_space = bench.resize(in_free_space, MIB, 3 * MIB).unwrap();
    bench.put(in_free_space, None);
    let failed = bench.resize(blocks[0], MIB, 100 * MIB).unwrap_err();
    assert!(failed.to_string().contains("cuMemAddressReserve"), "{failed}");
    // There is room in place.
    assert_eq!(bench.resize(blocks[0], MIB, 30 * MIB).unwrap(), blocks[0]);
    for (at, block) in blocks.iter().enumerate() {
        let mut found = [0; 8];
        bench.machine.read(*block, &mut found).unwrap();
        assert_eq!(u64::from_le_bytes(found), at as u64 + 1);
    }
    bench.allocator.validate().unwrap();
    let half = blocks.split_off(blocks.len() / 2);
    blocks.into_iter().for_each(|block| bench.put(block, None));
    let moved = bench.resize(half[0], MIB, 200 * MIB).unwrap();
    assert_ne!(moved, half[0]);
    bench.put(moved, None);
    half[1..].iter().for_each(|block| bench.put(*block, None));
    bench.finish();
}

/// Threads resize their own blocks, while one inspects, trims and sets limits, and one declares uses.
#[test]
fn resizes_and_other_calls_do_not_interfere() {
    let bench = Bench::new("limit=900MiB,wait_ms=20");
    let done = AtomicBool::new(false);
    let context = bench.machine.context_current().unwrap();
    let shared = bench.request(MIB, RESIZABLE, None).unwrap();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2u64)
            .map(|seed| {
                let bench = &bench;
                scope.spawn(move || {
                    bench.machine.context_push(context).unwrap();
                    let stream = bench.stream();
                    let mut draw = seed + 1;
                    for round in 0..150u64 {
                        let mut size = MIB;
                        let Ok(mut block) = bench.request(size, RESIZABLE, Some(stream)) else {
                            continue;
                        };
                        for step in 0..8u64 {
                            draw = draw
                                .wrapping_mul(6_364_136_223_846_793_005)
                                .wrapping_add(1_442_695_040_888_963_407);
                            let next = 1 + (draw >> 33) % (if step == 5 { 150 * MIB } else { 20 * MIB });
                            bench.machine.write(block, &draw.to_le_bytes()).unwrap();
                            if let Ok(new) = bench.resize(block, size, next.max(8)) {
                                (block, size) = (new, next.max(8));
                            }
                            let mut found = [0; 8];
                            bench.machine.read(block, &mut found).unwrap();
                            assert_eq!(u64::from_le_bytes(found), draw);
                            bench.launch(stream, block, size);
                        }
                        bench.put(block, (round % 3 != 0).then_some(stream));
                        bench.machine.advance(3_000_000);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            bench.machine.context_push(context).unwrap();
            let mut n = 0u64;
            while !done.load(Relaxed) {
                n += 1;
                bench.allocator.validate().unwrap();
                let stats = stats(&bench);
                assert!(stats.allocated <= stats.reserved_peak, "{stats:?}");
                bench.allocator.record_stream(shared, Stream(0)).unwrap();
                match n % 16 {
                    3 => drop(bench.allocator.trim(Some(0), 64 * MIB)),
                    7 => bench.allocator.set_limit(Some(0), (600 + n % 300) * MIB).unwrap(),
                    _ => {}
                }
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
        });
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Relaxed);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    bench.put(shared, None);
    bench.finish();
}
