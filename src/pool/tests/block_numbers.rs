//! A block has a number, and there are only so many. A request that finds memory and no number is refused, and what it
//! found is as free as before, for the same callers.

use crate::driver::sim::SimConfig;
use crate::driver::sim::model::capture::MODE_RELAXED;
use crate::pool::stream_cache::block::Blocks;

use super::{Bench, MIB};

const CUDA_11_8: u32 = 11_080;

fn bench(version: u32, options: &str) -> Bench {
    let config = SimConfig {
        version,
        ..SimConfig::default()
    };
    Bench::on(config, options)
}

/// Requests blocks until no number is left for another, and returns those.
fn exhaust(bench: &Bench, size: u64, stream: Option<usize>) -> Vec<u64> {
    let mut blocks = Vec::new();
    let refused = loop {
        match bench.request(size, 0, stream) {
            Ok(block) => blocks.push(block),
            Err(refused) => break refused.to_string(),
        }
    };
    assert!(refused.contains("blocks at once"), "{refused}");
    blocks
}

fn put_all(bench: &Bench, blocks: Vec<u64>, stream: Option<usize>) {
    blocks.into_iter().for_each(|block| bench.put(block, stream));
}

#[test]
fn memory_of_a_stream_comes_back_after_a_refusal() {
    let bench = bench(SimConfig::default().version, "");
    let stream = bench.stream();
    bench.use_and_free(stream, 1, 8 * MIB);
    let blocks = exhaust(&bench, 512, None);
    assert!(blocks.len() as u32 > Blocks::MAX - 64, "{}", blocks.len());
    // What coalesced left it a few numbers.
    let few = exhaust(&bench, 4 << 10, Some(stream));
    assert!(few.len() < 64, "{}", few.len());
    put_all(&bench, few, Some(stream));
    put_all(&bench, blocks, None);
    // Its end checks that a trim returns everything.
    bench.finish();
}

#[test]
fn memory_of_a_capture_comes_back_after_a_refusal() {
    let bench = bench(SimConfig::default().version, "");
    let stream = bench.stream();
    bench.app(|machine| machine.stream_begin_capture(stream, MODE_RELAXED).unwrap());
    let block = bench.get(8 * MIB, Some(stream));
    bench.put(block, Some(stream));
    let blocks = exhaust(&bench, 512, None);
    let few = exhaust(&bench, 4 << 10, Some(stream));
    put_all(&bench, few, Some(stream));
    let graph = bench.app(|machine| machine.stream_end_capture(stream).unwrap());
    bench.app(|machine| machine.graph_destroy(graph).unwrap());
    bench.machine.drain_user_objects();
    put_all(&bench, blocks, None);
    bench.finish();
}

/// Memory of another stream, behind whose event it would have been taken, stays that stream's.
#[test]
fn memory_of_another_stream_stays_its_own_after_a_refusal() {
    let bench = bench(SimConfig::default().version, "limit=48MiB");
    let (first, second) = (bench.stream(), bench.stream());
    let held = [(); 2].map(|()| bench.get(15 * MIB, Some(first)));
    let whole = bench.get(2 * MIB, Some(second));
    let blocks = exhaust(&bench, 512, None);
    for block in held {
        bench.launch(first, block, 15 * MIB);
        bench.put(block, Some(first));
    }
    let few = exhaust(&bench, 4 << 10, Some(second));
    put_all(&bench, few, Some(second));
    bench.put(whole, Some(second));
    put_all(&bench, blocks, None);
    bench.finish();
}

/// Before CUDA 12, a stream takes memory behind the event of the free. No other caller gets it.
#[test]
fn memory_behind_an_event_stays_behind_it_after_a_refusal() {
    let bench = bench(CUDA_11_8, "limit=48MiB");
    let [stream, other, third] = [(); 3].map(|()| bench.stream());
    let held = [(); 2].map(|()| bench.get(15 * MIB, Some(stream)));
    let numbers: Vec<u64> = (0..64).map(|_| bench.get(512, Some(third))).collect();
    let blocks = exhaust(&bench, 512, None);
    for block in held {
        bench.launch(stream, block, 15 * MIB);
        bench.put(block, Some(stream));
    }
    let few = exhaust(&bench, 4 * MIB, Some(other));
    // Now there are numbers again, and no memory but what waits for work. The order checker notices a request that
    // does not.
    put_all(&bench, numbers, Some(third));
    bench.allocator.trim(Some(0), u64::MAX).unwrap();
    let block = bench.get(MIB, Some(third));
    bench.launch(third, block, MIB);
    bench.put(block, Some(third));
    put_all(&bench, few, Some(other));
    put_all(&bench, blocks, None);
    bench.finish();
}
