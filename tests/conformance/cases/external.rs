//! Pools over external memory.

use trtalloc::allocator::RESIZABLE;
use trtalloc::pool::rounding::RoundingRule;

use super::{KIB, MIB, Random};
use crate::world::{Setup, World};

/// Memory filled with one byte, which the allocator must not change.
fn memory(setup: &Setup, bytes: u64) -> usize {
    setup.device().enter(0);
    let base = setup.device().malloc(bytes);
    setup.device().write(0, base, bytes, 0x5a);
    setup.device().wait_for_all();
    base
}

fn untouched(setup: &Setup, base: usize, bytes: u64) -> bool {
    setup.device().read(base, bytes).iter().all(|byte| *byte == 0x5a)
}

fn inside(base: usize, bytes: u64, block: usize, size: u64) -> bool {
    block >= base && block as u64 + size <= base as u64 + bytes
}

/// Allocates and frees until all of the memory has been in use, without writing to it.
fn random_work(world: &World, base: usize, bytes: u64, rounds: u64) {
    let streams = [world.stream(), world.stream(), 0];
    let mut random = Random::new(bytes);
    let mut live = Vec::new();
    for _ in 0..rounds {
        let stream = streams[random.below(3) as usize];
        let size = 1 + random.below(bytes / 8);
        let block = if random.below(3) == 0 {
            world.try_get(size, 0, 0)
        } else {
            world.try_get_on(stream, size, 0, 0)
        };
        if block == 0 {
            // What streams freed becomes reusable once their work has completed.
            for (block, stream) in live.drain(..) {
                world.put_on(stream, block);
            }
            continue;
        }
        assert!(inside(base, bytes, block, size));
        live.push((block, stream));
        if random.below(3) == 0 {
            let (block, stream) = live.swap_remove(random.below(live.len() as u64) as usize);
            if random.below(2) == 0 {
                world.put(block)
            } else {
                world.put_on(stream, block)
            }
        }
    }
    live.into_iter().for_each(|(block, _)| world.put(block));
    world.check_books();
}

pub fn external_memory_serves_requests(setup: &Setup) {
    let bytes = 8 * MIB;
    let base = memory(setup, bytes);
    let world = setup.over(base, bytes, "wait_ms=100", RoundingRule::CUDA);
    let stream = world.stream();
    assert_eq!(world.try_get(bytes + 1, 0, 0), 0, "more than there is");
    let all = world.get(bytes / 512 * 512 - 512);
    assert!(inside(base, bytes, all, bytes - 512));
    assert!(
        (bytes - 512..=bytes).contains(&world.stats().reserved),
        "{:?}",
        world.stats()
    );
    assert_eq!(world.try_get_on(stream, 4096, 0, 0), 0, "all of it is out");
    world.put(all);
    for shift in 0..=20 {
        let block = world.get_aligned(1000, 1 << shift);
        assert!(block.is_multiple_of(1 << shift), "{shift}");
        assert!(inside(base, bytes, block, 1000));
        world.put(block);
    }
    random_work(&world, base, bytes, 500);
    assert_eq!(world.trim(0), 0, "it is not the allocator's to give back");
    world.finish();
    assert!(untouched(setup, base, bytes), "never touched, never freed");
    setup.device().free(base);
}

/// RMM's numbers, unchanged.
pub fn six_thousand_external_bytes_serve_requests(setup: &Setup) {
    let base = memory(setup, 6000);
    for (options, rule) in [
        ("wait_ms=200", RoundingRule::CUDA),
        ("rule=ascend,wait_ms=200", RoundingRule::ascend(32, 64)),
    ] {
        let world = setup.over(base, 6000, options, rule);
        let blocks = [1000, 4000, 500].map(|size| (world.get(size), size));
        assert_eq!(world.try_get(2000, 0, 0), 0);
        for (at, (block, size)) in blocks.iter().enumerate() {
            assert!(inside(base, 6000, *block, *size));
            world.write(0, *block, *size, at as u8);
        }
        for (at, (block, size)) in blocks.iter().enumerate() {
            assert!(world.holds(*block, *size, at as u8));
        }
        world.put(blocks[1].0);
        world.wait_for_all();
        world.get(2000);
        world.finish();
    }
    setup.device().free(base);
}

fn by_rule(setup: &Setup, options: &str, rule: RoundingRule) {
    let bytes = MIB;
    let base = memory(setup, bytes);
    keeps_to(setup.over(base, bytes, options, rule), options, rule);
    setup.device().free(base);
}

fn keeps_to(world: World, options: &str, rule: RoundingRule) {
    for length in [1000, 1, 31, 32, 33, 64, 4095, 100 * KIB] {
        let blocks = [world.get(length), world.get(length)];
        assert!(
            blocks.iter().all(|block| (*block as u64).is_multiple_of(rule.start)),
            "{options}: {length}"
        );
        // The blocks adjoin, with no more between them than the rule says.
        let [first, second] = [blocks[0].min(blocks[1]), blocks[0].max(blocks[1])];
        assert_eq!(
            (second - first) as u64,
            rule.stride(length).unwrap(),
            "{options}: {length}"
        );
        // The owner may write beyond its bytes as far as the rule says.
        world.write(0, second, length, 2);
        world.write(0, first, rule.extent(length).unwrap(), 1);
        assert!(world.holds(second, length, 2), "{options}: {length}");
    }
    world.finish();
}

pub fn pools_follow_ascends_rule(setup: &Setup) {
    for (options, rule) in [
        ("rule=ascend", RoundingRule::ascend(32, 64)),
        ("rule=ascend-media,pad=16", RoundingRule::ascend(16, 128)),
        ("rule=ascend,pad=0,backing=malloc", RoundingRule::ascend(0, 64)),
        ("rule=ascend-host,kind=pinned", RoundingRule::ascend(32, 64)),
    ] {
        keeps_to(setup.by_rule(options, rule), options, rule);
    }
}

/// The memory belongs to one device, and requests on another device share the one pool.
pub fn external_memory_has_one_pool_for_all_devices(setup: &Setup) {
    let bytes = MIB;
    let base = memory(setup, bytes);
    let world = setup.over(base, bytes, "wait_ms=100", RoundingRule::CUDA);
    if world.count() < 2 {
        world.finish();
        return setup.device().free(base);
    }
    let near = world.stream();
    let here = world.get_on(near, bytes / 2);
    world.enter(1);
    let far = world.stream();
    assert_eq!(world.try_get_on(far, bytes - 1024, 0, 0), 0, "more than is left");
    assert_eq!(
        world.interface().allocate_on(1, 1024, far),
        0,
        "the memory is device 0's"
    );
    let there = world.get_of(-1, far, bytes / 4, true);
    assert!(inside(base, bytes, there, bytes / 4));
    assert!(there >= here + (bytes / 2) as usize || there + (bytes / 4) as usize <= here);
    let anywhere = world.get(1024);
    world.put_on(far, there);
    world.put(anywhere);
    world.leave();
    world.put_on(near, here);
    assert_eq!(world.interface().stats(1), Default::default());
    random_work(&world, base, bytes, 100);
    world.finish();
    setup.device().free(base);
}

/// Work of another device's stream counts too, whichever context is current: here in host memory, which every device
/// may use.
pub fn stream_of_another_device_gets_external_memory(setup: &Setup) {
    let own = setup.world("");
    // On Ascend, a stream can be named only while its own context is current.
    if own.count() < 2 || own.interface().inside().driver().name() == "ascend" {
        return own.finish();
    }
    let base = own.interface().inside().driver().host_malloc(MIB).unwrap();
    let world = setup.over(base as usize, MIB, "wait_ms=100", RoundingRule::CUDA);
    // The memory has room for one block at a time, by any rule and at any address.
    let bytes = MIB - 4 * KIB;
    let near = world.stream();
    world.enter(1);
    let (far, consumer) = (world.stream(), world.stream());
    world.enter(0);
    for _ in 0..3 {
        // The consumer has allocated nothing.
        let block = world.get_on(near, bytes);
        world.write_edges(near, block, bytes, 8);
        assert!(world.order(near, consumer));
        world.write_edges(consumer, block, bytes, 9);
        world.put_on(consumer, block);
        let block = world.get(bytes);
        world.put(block);
        let block = world.get_of(-1, far, bytes, true);
        world.write_edges(far, block, bytes, 7);
        world.put_on(far, block);
        let block = world.get(bytes);
        world.put(block);
    }
    world.leave();
    world.wait_for_all();
    world.leave();
    world.finish();
    own.interface().inside().driver().host_free(base).unwrap();
    own.finish();
}

pub fn external_memory_follows_ascends_rule(setup: &Setup) {
    assert_eq!(RoundingRule::ascend(32, 64).stride(1000), Some(1088));
    by_rule(setup, "rule=ascend", RoundingRule::ascend(32, 64));
    by_rule(setup, "rule=ascend,pad=16", RoundingRule::ascend(16, 64));
    by_rule(setup, "rule=ascend,pad=0", RoundingRule::ascend(0, 64));
    by_rule(setup, "rule=ascend-host", RoundingRule::ascend(32, 64));
}

pub fn external_memory_follows_ascends_media_rule(setup: &Setup) {
    assert_eq!(RoundingRule::ascend(32, 128).stride(1000), Some(1152));
    by_rule(setup, "rule=ascend-media", RoundingRule::ascend(32, 128));
}

/// Neither the start nor the end is a multiple of the granule.
pub fn external_memory_may_start_anywhere(setup: &Setup) {
    let bytes = MIB;
    let base = memory(setup, bytes);
    let (odd, less) = (base + 100, bytes - 300);
    for (options, rule) in [("", RoundingRule::CUDA), ("rule=ascend", RoundingRule::ascend(32, 64))] {
        let world = setup.over(odd, less, &format!("wait_ms=100,{options}"), rule);
        let reserved = less / rule.start * rule.start;
        let held = {
            let block = world.get(1);
            world.put(block);
            world.stats().reserved
        };
        assert!(
            held <= reserved && held + rule.start >= reserved,
            "{held} of {reserved}"
        );
        random_work(&world, odd, less, 300);
        // Memory of a fixed size supports no resizing.
        let block = world.try_get(4096, 0, RESIZABLE);
        assert!(block != 0 && world.try_resize(block, 8192) == 0);
        world.finish();
        assert!(untouched(setup, base, bytes));
    }
    setup.device().free(base);
}
