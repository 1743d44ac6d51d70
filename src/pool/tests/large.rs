//! Blocks of up to 3 GiB under a limit: no request is refused while the memory is free.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Bench, MIB};
use crate::driver::sim::SimConfig;
use crate::driver::sim::model::capture::MODE_RELAXED;
use crate::trace::random::Random;

const GIB: u64 = 1 << 30;
const PAGE: u64 = 2 * MIB;

/// Blocks of one stream whose work is complete.
struct Mix {
    bench: Bench,
    stream: usize,
    limit: u64,
    live: Vec<(u64, u64)>,
}

/// A bench on a device of `memory` bytes.
fn bench(memory: u64, options: &str) -> Bench {
    let config = SimConfig {
        memory,
        ..SimConfig::default()
    };
    Bench::over(config, options)
}

impl Mix {
    fn new(limit: u64) -> Mix {
        Mix::on(bench(64 * GIB, &format!("limit={limit},wait_ms=0")), limit)
    }

    fn on(bench: Bench, limit: u64) -> Mix {
        Mix {
            stream: bench.stream(),
            bench,
            limit,
            live: Vec::new(),
        }
    }

    fn in_use(&self) -> u64 {
        self.live.iter().map(|(_, size)| size).sum()
    }

    /// The largest request that may not be refused: the memory outside all handles that hold a part of a live block,
    /// less the request's own part of a page. A block's neighbours in a handle may be freed before it, and then that
    /// block alone keeps the handle whole.
    fn room_below_limit(&self) -> u64 {
        if self.live.is_empty() {
            return self.limit - PAGE;
        }
        let pool = self.bench.allocator.pool_of(0);
        let core = pool.core.lock();
        let offset = |(block, size): &(u64, u64)| (pool.addresses.offset(*block).unwrap(), *size);
        let touched = self.live.iter().map(offset);
        let handles: BTreeMap<u64, u64> = touched
            .flat_map(|(from, size)| core.memory.physical.handles_in(from, from + size))
            .collect();
        self.limit.saturating_sub(handles.values().sum::<u64>() + PAGE)
    }

    /// Makes a request, and returns whether it was satisfied.
    fn get(&mut self, size: u64) -> bool {
        let Ok(block) = self.bench.request(size, 0, Some(self.stream)) else {
            return false;
        };
        self.live.push((block, size));
        true
    }

    fn put(&mut self, at: usize) {
        let (block, _) = self.live.swap_remove(at % self.live.len());
        self.bench.put(block, Some(self.stream));
    }

    fn refused(&self, size: u64) -> String {
        format!(
            "{} MiB refused beside {} MiB in use: {:?}",
            size / MIB,
            self.in_use() / MIB,
            self.bench.allocator.stats(Some(0)).unwrap()
        )
    }

    fn finish(mut self) {
        while !self.live.is_empty() {
            self.put(0);
        }
        self.bench.finish();
    }
}

/// Makes `steps` requests of `sizes`, with at most `most` bytes in use at once; returns how many were refused.
fn refusals(mut mix: Mix, sizes: (u64, u64), most: u64, steps: usize) -> usize {
    let mut random = Random::new(1);
    let mut refused = 0;
    for _ in 0..steps {
        let size = sizes.0 + 512 * random.below((sizes.1 - sizes.0) / 512);
        while mix.in_use() + size > most {
            let at = random.below(mix.live.len() as u64) as usize;
            mix.put(at);
        }
        refused += usize::from(!mix.get(size));
    }
    mix.finish();
    refused
}

#[test]
fn requests_of_one_to_three_gib_succeed_while_memory_is_free() {
    assert_eq!(refusals(Mix::new(8000 * MIB), (GIB, 3 * GIB), 7200 * MIB, 1000), 0);
}

#[test]
fn requests_of_similar_size_succeed_up_to_near_the_limit() {
    let sizes = (1126 * MIB, 1536 * MIB);
    assert_eq!(refusals(Mix::new(6300 * MIB), sizes, 6000 * MIB, 2000), 0);
}

#[test]
fn free_handles_go_back_before_a_full_device_refuses() {
    let memory = 8000 * MIB;
    let mix = Mix::on(bench(memory, "wait_ms=0"), memory);
    assert_eq!(refusals(mix, (GIB, 3 * GIB), 7200 * MIB, 1000), 0);
}

const LIMIT: u64 = 4 * GIB;

/// Fills a pool to its limit with large handles and frees the memory; returns the stream that freed it.
fn large_handles(bench: &Bench) -> usize {
    let stream = bench.stream();
    let blocks: Vec<Option<u64>> = (0..4).map(|_| bench.request(GIB, 0, Some(stream)).ok()).collect();
    blocks
        .into_iter()
        .flatten()
        .for_each(|block| bench.put(block, Some(stream)));
    stream
}

/// Requests that the free large handles do not fit, and large blocks made of small handles.
fn exchanges(bench: &Bench) {
    let stream = large_handles(bench);
    let mut out: Vec<Option<u64>> = Vec::new();
    for size in [3 * MIB, 30 * MIB, 2 * GIB, 100 * MIB, GIB + 700 * MIB] {
        out.push(bench.request(size, 0, Some(stream)).ok());
        bench.allocator.validate().unwrap();
    }
    for block in out.drain(..).flatten() {
        bench.put(block, Some(stream));
    }
    out.push(bench.request(3 * GIB + 900 * MIB, 0, Some(stream)).ok());
    out.into_iter()
        .flatten()
        .for_each(|block| bench.put(block, Some(stream)));
}

fn limited() -> Bench {
    bench(64 * GIB, &format!("limit={LIMIT},wait_ms=0"))
}

#[test]
fn every_call_of_an_exchange_fails_in_turn_and_nothing_is_lost() {
    let counted = |call: &str| {
        let bench = limited();
        let before = bench.machine.count(call);
        exchanges(&bench);
        let made = bench.machine.count(call) - before;
        bench.finish();
        made
    };
    for call in [
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemUnmap",
        "cuMemRelease",
    ] {
        let made = counted(call);
        assert!(made > 0, "{call} is not called");
        // Each of the last calls, where handles are exchanged, and some of those before.
        let early = (1..made).step_by((made / 12).max(1) as usize);
        for n in early.chain(made.saturating_sub(12).max(1)..=made) {
            for code in [2, 999] {
                let bench = limited();
                assert!(bench.machine.fail_nth(Some(call), n, code));
                exchanges(&bench);
                assert!(bench.machine.failures_struck() > 0, "{call} {n}");
                bench.machine.clear_failures();
                let stream = bench.stream();
                let block = bench.get(LIMIT - 2 * MIB, Some(stream));
                bench.put(block, Some(stream));
                bench.finish_of(&format!("{call} {n} failed with {code}"));
            }
        }
    }
}

#[test]
fn capture_releases_no_mapped_handle() {
    let bench = limited();
    let stream = large_handles(&bench);
    // Another stream makes a request, so what the first one freed is covered and becomes common.
    let other = bench.stream();
    let block = bench.get(GIB, Some(other));
    bench.put(block, Some(other));
    let released = bench.machine.count("cuMemRelease");
    bench
        .app(|machine| machine.stream_begin_capture(stream, MODE_RELAXED))
        .unwrap();
    let block = bench.get(3 * MIB, Some(stream));
    assert_eq!(bench.machine.count("cuMemRelease"), released);
    bench.put(block, Some(stream));
    let graph = bench.app(|machine| machine.stream_end_capture(stream)).unwrap();
    bench.app(|machine| machine.graph_destroy(graph)).unwrap();
    bench.machine.drain_user_objects();
    bench.finish();
}

#[test]
fn memory_with_pending_work_is_not_released() {
    let bench = limited();
    let first = bench.stream();
    let blocks = [GIB; 4].map(|size| bench.get(size, Some(first)));
    let kernels = blocks.map(|block| bench.app(|machine| machine.launch_persistent(first, &[(block, GIB)]).unwrap()));
    blocks.iter().for_each(|block| bench.put(*block, Some(first)));
    let second = bench.stream();
    let unmapped = bench.machine.count("cuMemUnmap");
    let _ = bench
        .request(3 * MIB, 0, Some(second))
        .map(|block| bench.put(block, Some(second)));
    assert_eq!(bench.machine.count("cuMemUnmap"), unmapped);
    for kernel in kernels {
        assert!(bench.app(|machine| machine.release_persistent(kernel)));
    }
    let block = bench.get(3 * MIB, Some(second));
    bench.put(block, Some(second));
    bench.finish();
}

/// A size between 512 bytes and 3 GiB, small and large ones equally often.
fn size() -> impl Strategy<Value = u64> {
    (9..32_u32, 0..1_u64 << 31).prop_map(|(log, part)| {
        let least = 1 << log;
        (least + part % least).min(3 * GIB)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn requests_that_fit_the_free_memory_succeed(
        steps in prop::collection::vec((size(), any::<bool>(), any::<usize>()), 1..300),
        limit in 3..12_u64,
    ) {
        let mut mix = Mix::new(limit * GIB);
        for (size, puts, at) in steps {
            if puts && !mix.live.is_empty() {
                mix.put(at);
            }
            while mix.room_below_limit() < size && !mix.live.is_empty() {
                mix.put(at);
            }
            if mix.room_below_limit() >= size {
                let met = mix.get(size);
                prop_assert!(met, "{}", mix.refused(size));
            }
        }
        mix.finish();
    }
}

/// The device is nearly full, and the driver sometimes refuses to take back what a failed attempt had created.
#[test]
fn refused_request_ends_although_releases_fail() {
    for (free, every, cached) in
        (1..6).flat_map(|free| (2..6).flat_map(move |every| (0..4).map(move |n| (free, every, n))))
    {
        let bench = Bench::new("wait_ms=0");
        let blocks: Vec<u64> = (0..cached).map(|_| bench.get(PAGE, None)).collect();
        let (left, _) = bench.machine.memory_info(0).unwrap();
        bench.machine.others_hold(0, left - free * PAGE).unwrap();
        blocks.into_iter().for_each(|block| bench.put(block, None));
        bench.machine.fail_every(Some("cuMemRelease"), every, 999);
        let what = format!("{free} pages are free, {cached} cached, each release number {every} fails");
        bench
            .machine
            .come_between("cuMemCreate", 2_000, move |_| panic!("it goes on for ever: {what}"));
        assert!(bench.request(64 * PAGE, 0, None).is_err());
        bench.machine.clear_failures();
        bench.machine.others_hold(0, 0).unwrap();
        let block = bench.get(64 * PAGE, None);
        bench.put(block, None);
        bench.finish();
    }
}

#[test]
fn request_larger_than_the_device_releases_nothing() {
    let bench = Bench::new("wait_ms=0");
    let block = bench.get(64 * MIB, None);
    bench.put(block, None);
    let before = bench.allocator.stats(Some(0)).unwrap().reserved;
    assert!(bench.request(2 * GIB, 0, None).is_err());
    assert_eq!(bench.allocator.stats(Some(0)).unwrap().reserved, before);
    bench.finish();
}
