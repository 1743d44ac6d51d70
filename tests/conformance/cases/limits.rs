//! What is held, what is released, and what is refused.

use std::time::{Duration, Instant};

use trtalloc::allocator::RESIZABLE;

use super::{KIB, MIB, Random};
use crate::world::{Setup, World};

/// RMM's numbers, in units of 16 KiB.
pub fn growth_stops_at_the_limit(setup: &Setup) {
    const UNIT: u64 = 16 * KIB;
    for options in ["", ",backing=malloc", ",passthrough=1"] {
        let world = setup.world(&format!("limit={},wait_ms=500{options}", 6000 * UNIT));
        let stream = world.stream();
        let blocks = [1000, 4000, 500].map(|units| (world.get(units * UNIT), units * UNIT));
        for (at, (block, size)) in blocks.iter().enumerate() {
            world.write_edges(stream, *block, *size, at as u8);
        }
        for flags in [0, RESIZABLE] {
            assert_eq!(world.try_get(2000 * UNIT, 0, flags), 0, "{options}");
            assert_eq!(world.try_get_on(stream, 2000 * UNIT, 0, flags), 0, "{options}");
        }
        assert!(
            world.interface().last_error().starts_with("out of memory"),
            "{}",
            world.interface().last_error()
        );
        assert!(world.stats().reserved <= 6000 * UNIT && world.stats().out_of_memory >= 4);
        for (at, (block, size)) in blocks.iter().enumerate() {
            assert!(world.holds(*block, *size, at as u8));
        }
        world.put(blocks[1].0);
        world.wait_for_all();
        world.get(2000 * UNIT);
        world.finish();
        setup.device().leave();
    }
}

/// The device keeps so much memory free for others, whatever is requested.
pub fn headroom_stays_free(setup: &Setup) {
    for options in ["", ",backing=malloc", ",passthrough=1"] {
        let room = 96 * MIB;
        let free = |world: &World| world.interface().inside().driver().memory_info(0).unwrap().0;
        let probe = setup.world("");
        let headroom = free(&probe) - room;
        probe.finish();
        setup.device().leave();
        let world = setup.world(&format!("headroom={headroom},wait_ms=500{options}"));
        let stream = world.stream();
        let mut blocks = Vec::new();
        for flags in [0, RESIZABLE].into_iter().cycle().take(32) {
            blocks.push(world.try_get(5 * MIB, 0, flags));
            blocks.push(world.try_get_on(stream, 5 * MIB, 0, flags));
        }
        assert!(world.interface().last_error().contains("headroom"), "{options}");
        let left = free(&world);
        assert!(left >= headroom, "{options}: {left} of {headroom}");
        blocks.retain(|block| *block != 0);
        assert!(blocks.len() as u64 * 5 * MIB >= room / 2, "{options}: {}", blocks.len());
        blocks.into_iter().for_each(|block| world.put(block));
        world.finish();
        setup.device().leave();
    }
}

/// The driver's malloc takes granules of 2 MiB, which small allocations share. A simulated device may take less, never more.
pub fn passthrough_counts_what_the_driver_takes(setup: &Setup) {
    const LIMIT: u64 = 64 * MIB;
    let world = setup.world(&format!("passthrough=1,limit={LIMIT},wait_ms=200"));
    let free = |world: &World| world.interface().inside().driver().memory_info(0).unwrap().0;
    world.put(world.get(MIB));
    world.trim(0);
    assert_eq!(world.stats().reserved, 0);
    let before = free(&world);
    let mut random = Random::new(30);
    let mut live = Vec::new();
    for _ in 0..1_000 {
        let size = match random.below(4) {
            0 => 1 + random.below(3 * MIB),
            1 => 2 * MIB * (1 + random.below(3)) + 1,
            _ => 1 + random.below(300 * KIB),
        };
        if random.below(5) < 2 && !live.is_empty() {
            world.put(live.swap_remove(random.below(live.len() as u64) as usize));
        } else {
            let block = world.try_get(size, 0, 0);
            let reserved = world.stats().reserved;
            // Not refused while it would fit. In a simulated device small allocations may lie in two granules.
            let needed = size.next_multiple_of(2 * MIB) + if size < MIB { 2 * MIB } else { 0 };
            assert!(block != 0 || reserved + needed > LIMIT, "{size} beside {reserved}");
            live.extend(Some(block).filter(|block| *block != 0));
        }
        let (taken, reserved) = (before.saturating_sub(free(&world)), world.stats().reserved);
        assert!(
            taken <= reserved && reserved <= LIMIT,
            "{taken} taken, {reserved} counted"
        );
    }
    assert!(world.stats().out_of_memory > 0);
    live.into_iter().for_each(|block| world.put(block));
    world.trim(0);
    assert_eq!(world.stats().reserved, 0);
    world.finish();
    setup.device().leave();
}

pub fn idle_memory_decays(setup: &Setup) {
    for options in ["decay_ms=40", "decay_ms=40,backing=malloc", "decay_ms=40,limit=256MiB"] {
        let world = setup.world(options);
        if !world.features().context_events {
            return world.finish();
        }
        let stream = world.stream();
        let held = world.get_on(stream, 4 * MIB);
        let blocks = [0; 4].map(|_| world.get_on(stream, 24 * MIB));
        for block in blocks {
            world.write_edges(stream, block, 24 * MIB, 1);
            world.put_on(stream, block);
        }
        let resizable = world.try_get_on(stream, 8 * MIB, 0, RESIZABLE);
        world.put_on(stream, resizable);
        world.wait_for_all();
        let deadline = Instant::now() + Duration::from_secs(60);
        // Segments of the driver's malloc are larger than a block.
        while world.stats().reserved > 40 * MIB {
            assert!(Instant::now() < deadline, "{options}: {:?}", world.stats());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(world.stats().reserved >= 4 * MIB, "{options}");
        // What went back is created again.
        let again = world.get_on(stream, 24 * MIB);
        world.write_edges(stream, again, 24 * MIB, 2);
        world.put_on(stream, again);
        world.put_on(stream, held);
        world.finish();
        setup.device().leave();
    }
}

/// The first request obtains the reserve, and no free, trim, threshold or higher limit returns it.
pub fn reserve_is_held_until_the_end(setup: &Setup) {
    const RESERVE: u64 = 64 * MIB;
    for options in ["", ",backing=malloc", ",release_threshold=0", ",release_threshold=all"] {
        let world = setup.world(&format!("reserve={RESERVE},wait_ms=500{options}"));
        let stream = world.stream();
        let first = world.get(MIB);
        let free = |world: &World| world.interface().inside().driver().memory_info(0).unwrap().0;
        assert!(
            world.stats().reserved >= RESERVE,
            "{options}: {}",
            world.stats().reserved
        );
        let left = free(&world);
        let inside: Vec<usize> = (0..3).map(|_| world.get_on(stream, 10 * MIB)).collect();
        for (at, block) in inside.iter().enumerate() {
            world.write_edges(stream, *block, 10 * MIB, at as u8);
        }
        assert_eq!(free(&world), left, "{options}: taken from the reserve");
        let beyond = world.get(96 * MIB);
        for (at, block) in inside.iter().enumerate() {
            assert!(world.holds(*block, 10 * MIB, at as u8), "{options}");
        }
        let blocks = [first, beyond].into_iter().chain(inside);
        blocks.for_each(|block| world.put(block));
        world.wait_for_all();
        world.trim(0);
        let held = world.stats().reserved;
        assert!((RESERVE..=RESERVE + 40 * MIB).contains(&held), "{options}: {held}");
        assert_eq!(world.interface().set_limit(0, 2 * RESERVE), 0);
        assert!(world.stats().reserved >= RESERVE, "{options}");
        world.check_books();
        // A limit below the reserve comes first.
        assert_eq!(world.interface().set_limit(0, MIB), 0);
        assert!(
            world.stats().reserved <= 2 * MIB,
            "{options}: {}",
            world.stats().reserved
        );
        world.finish();
        setup.device().leave();
    }
}

pub fn limit_holds_when_the_driver_fails(setup: &Setup) {
    let world = setup.world("limit=1TiB,wait_ms=0");
    let first = world.get(4 * MIB);
    let before = world.stats().reserved;
    for _ in 0..3 {
        for flags in [0, RESIZABLE] {
            assert_eq!(world.try_get(world.total(0) + MIB, 0, flags), 0);
        }
        assert!(world.stats().reserved <= before, "what was begun is undone");
        world.check_books();
    }
    world.put(first);
    world.finish();
    setup.device().leave();

    let world = setup.world("limit=256MiB,wait_ms=0");
    let stream = world.stream();
    let Some(machine) = world.machine().cloned() else {
        return world.finish();
    };
    let first = world.get_on(stream, 4 * MIB);
    let resizable = world.get_resizable(MIB);
    world.write_edges(stream, first, 4 * MIB, 1);
    world.write_edges(stream, resizable, MIB, 2);
    for call in ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAddressReserve"] {
        if machine.count(call) == 0 {
            // This driver needs no such call: mapping gives it access.
            continue;
        }
        for code in [2, 999] {
            let before = world.stats().reserved;
            assert!(machine.fail_every(Some(call), 1, code));
            if call != "cuMemAddressReserve" {
                assert_eq!(world.try_get_on(stream, 64 * MIB, 0, 0), 0, "{call}");
                assert_eq!(world.try_get(64 * MIB, 0, 0), 0, "{call}");
            }
            // Where only addresses are short, the block lives in ordinary free space.
            if call != "cuMemAddressReserve" || code != 2 {
                assert_eq!(world.try_get(64 * MIB, 0, RESIZABLE), 0, "{call}");
            }
            assert_eq!(world.try_resize(resizable, 100 * MIB), 0, "{call}");
            machine.clear_failures();
            world.check_books();
            assert!(world.stats().reserved <= before.max(256 * MIB), "{call}");
        }
    }
    assert!(world.holds(first, 4 * MIB, 1) && world.holds(resizable, MIB, 2));
    // The whole limit is still available.
    let all = world.get(240 * MIB);
    world.put(all);
    world.finish();
}

pub fn limit_set_later_releases_free_memory(setup: &Setup) {
    for options in ["wait_ms=1000", "wait_ms=1000,release_threshold=1GiB"] {
        limit_set_later(setup.world(options));
        setup.device().leave();
    }
}

fn limit_set_later(world: World) {
    let stream = world.stream();
    let blocks = [0; 3].map(|_| world.get(32 * MIB));
    world.write_edges(stream, blocks[0], 32 * MIB, 1);
    world.put(blocks[2]);
    world.wait_for_all();
    assert_eq!(world.interface().set_limit(0, 64 * MIB), 0);
    assert_eq!(world.stats().limit, 64 * MIB);
    assert!(world.stats().reserved <= 64 * MIB, "{:?}", world.stats());
    assert_eq!(world.try_get(MIB, 0, 0), 0);
    assert_eq!(world.try_get_on(stream, MIB, 0, RESIZABLE), 0);
    // The limit is below what is allocated: blocks stay, and new requests are refused.
    assert_eq!(world.interface().set_limit(0, 2 * MIB), 0);
    assert_eq!(world.stats().reserved, 64 * MIB);
    assert!(world.holds(blocks[0], 32 * MIB, 1));
    world.put(blocks[1]);
    world.wait_for_all();
    assert_eq!(world.try_get(32 * MIB, 0, 0), 0);
    // What is freed later goes back, whatever the threshold keeps otherwise.
    assert!(world.stats().reserved <= 36 * MIB, "{:?}", world.stats());
    assert_eq!(world.interface().set_limit(0, 0), 0);
    let again = world.get(320 * MIB);
    world.put(again);
    world.finish();
}

pub fn pending_memory_counts_towards_the_limit(setup: &Setup) {
    let world = setup.world("limit=32MiB,wait_ms=300");
    let stream = world.stream();
    for flags in [0, RESIZABLE] {
        let block = world.try_get_on(stream, 16 * MIB, 0, flags);
        let hold = world.hold(stream);
        world.write_edges(stream, block, 16 * MIB, 1);
        world.put(block);
        let stats = world.stats();
        assert!(stats.pending == 16 * MIB && stats.allocated == 0, "{stats:?}");
        assert_eq!(world.try_get(24 * MIB, 0, flags), 0);
        hold.let_go();
        world.wait(stream);
        let block = world.get_flagged(24 * MIB, flags);
        assert_eq!(world.stats().pending, 0);
        world.put(block);
        world.trim(0);
    }
    world.finish();
}

pub fn trim_releases_free_memory(setup: &Setup) {
    for options in ["", "backing=malloc"] {
        let world = setup.world(options);
        let stream = world.stream();
        let blocks: Vec<usize> = (0..10).map(|_| world.get(8 * MIB)).collect();
        let kept = blocks[4];
        world.write_edges(stream, kept, 8 * MIB, 6);
        blocks
            .iter()
            .filter(|block| **block != kept)
            .for_each(|block| world.put(*block));
        let before = world.stats().reserved;
        assert_eq!(world.trim(1 << 40), 0, "nothing to do");
        let released = world.trim(40 * MIB);
        let after = world.stats().reserved;
        assert_eq!(before - after, released, "{options}");
        assert!(after <= 40 * MIB, "{options}: {after}");
        world.trim(0);
        let least = world.stats().reserved;
        // Memory is released in whole pages, or in the driver's segments, which hold a few.
        assert!((8 * MIB..=12 * MIB).contains(&least) || !options.is_empty(), "{least}");
        assert!(world.holds(kept, 8 * MIB, 6));
        // What a stream freed is released too, but not while its work may still use it.
        let more: Vec<usize> = (0..10).map(|_| world.get_on(stream, 8 * MIB)).collect();
        for block in more {
            world.write_edges(stream, block, 8 * MIB, 1);
            world.put_on(stream, block);
        }
        world.trim(0);
        assert_eq!(world.stats().reserved, least, "{options}");
        world.put(kept);
        world.trim(0);
        assert_eq!(world.stats().reserved, 0, "{options}");
        world.finish();
        setup.device().leave();
    }
}

pub fn peaks_are_exact_and_can_be_reset(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    let blocks = [0; 4].map(|_| world.get_on(stream, 8 * MIB));
    blocks.iter().for_each(|block| world.put_on(stream, *block));
    let stats = world.stats();
    assert_eq!((stats.allocated, stats.allocated_peak), (0, 32 * MIB));
    assert!(stats.reserved_peak >= 32 * MIB);
    world.trim(0);
    assert_eq!(world.interface().reset_peaks(0), 0);
    let stats = world.stats();
    assert_eq!((stats.allocated_peak, stats.reserved_peak), (0, 0));
    world.get(MIB);
    assert_eq!(world.stats().allocated_peak, MIB);
    world.finish();
}

/// Makes a call that reclaims what has completed.
fn nudge(world: &World) {
    world.wait_for_all();
    let block = world.get(6 * MIB);
    world.put(block);
    world.wait_for_all();
    let block = world.get(7 * MIB);
    world.put(block);
}

pub fn threshold_0_keeps_nothing(setup: &Setup) {
    for options in ["release_threshold=0", "release_threshold=0,backing=malloc"] {
        let world = setup.world(options);
        let stream = world.stream();
        let blocks = [0; 8].map(|_| world.get(20 * MIB));
        let ordered = [0; 8].map(|_| world.get_on(stream, 20 * MIB));
        for (block, other) in blocks.into_iter().zip(ordered) {
            world.write_edges(stream, other, 20 * MIB, 1);
            world.put(block);
            world.put_on(stream, other);
        }
        nudge(&world);
        // The stream keeps what it freed. Everything else is released except what the last calls took.
        assert!(
            world.stats().reserved <= 8 * 20 * MIB + 32 * MIB,
            "{options}: {:?}",
            world.stats()
        );
        world.finish();
        setup.device().leave();
    }
}

pub fn threshold_keeps_that_many_bytes(setup: &Setup) {
    let world = setup.world("release_threshold=64MiB");
    let blocks = [0; 16].map(|_| world.get(16 * MIB));
    assert!(world.stats().reserved >= 256 * MIB);
    blocks.into_iter().for_each(|block| world.put(block));
    nudge(&world);
    assert!(world.stats().reserved <= 64 * MIB, "{:?}", world.stats());
    assert!(world.stats().reserved >= 32 * MIB, "{:?}", world.stats());
    world.finish();
}

pub fn threshold_all_keeps_everything(setup: &Setup) {
    let world = setup.world("release_threshold=all");
    let blocks = [0; 8].map(|_| world.get(64 * MIB));
    let before = world.stats().reserved;
    blocks.into_iter().for_each(|block| world.put(block));
    nudge(&world);
    assert_eq!(world.stats().reserved, before);
    world.finish();
}

pub fn large_blocks_are_released(setup: &Setup) {
    let world = setup.world("");
    let small = [0; 8].map(|_| world.get(8 * MIB));
    let large = world.get(256 * MIB);
    small.into_iter().for_each(|block| world.put(block));
    nudge(&world);
    let before = world.stats().reserved;
    assert!(
        before >= 256 * MIB + 8 * 8 * MIB,
        "small ones stay: {:?}",
        world.stats()
    );
    world.put(large);
    nudge(&world);
    assert!(world.stats().reserved <= before - 256 * MIB, "{:?}", world.stats());
    world.finish();
}

pub fn close_releases_everything(setup: &Setup) {
    for options in ["", "backing=malloc"] {
        let world = setup.world(options);
        let stream = world.stream();
        let (plain, ordered) = (world.get(MIB), world.get_on(stream, MIB));
        let resizable = world.get_resizable(MIB);
        let cached = world.get_on(stream, 20 * MIB);
        world.put_on(stream, cached);
        world.interface().close();
        for refused in [
            world.try_get(MIB, 0, 0),
            world.try_get_on(stream, MIB, 0, 0),
            world.try_get_on(stream, 20 * MIB, 0, 0),
            world.try_get(MIB, 0, RESIZABLE),
        ] {
            assert_eq!(refused, 0);
        }
        world.interface().close();
        for block in [plain, ordered, resizable] {
            world.write_edges(stream, block, MIB, 4);
            assert!(world.holds(block, MIB, 4), "still valid");
        }
        world.put(plain);
        world.put_on(stream, resizable);
        world.put_on(stream, ordered);
        world.interface().close();
        if let Some(machine) = world.machine() {
            let (free, total) = machine.memory_info(0).unwrap();
            assert_eq!(free, total, "{options}: memory went with the last block");
        }
        assert!(!world.interface().deallocate(plain) && !world.interface().deallocate_async(ordered, stream));
        assert!(world.interface().deallocate(0));
        world.right();
        setup.device().leave();
    }
}

/// Work outlasts the close. Its memory goes back without a further call, once it has ended.
pub fn memory_that_work_uses_at_the_close_goes_back_later(setup: &Setup) {
    for options in ["wait_ms=0", "wait_ms=100,backing=malloc"] {
        let world = setup.world(options);
        let stream = world.stream();
        let block = world.get(64 * MIB);
        let hold = world.hold(stream);
        world.write_edges(stream, block, 64 * MIB, 1);
        world.put(block);
        world.interface().close();
        assert!(world.stats().reserved >= 64 * MIB, "{options}: work uses it");
        hold.let_go();
        let deadline = Instant::now() + Duration::from_secs(60);
        while world.stats().reserved > 0 {
            assert!(Instant::now() < deadline, "{options}: {:?}", world.stats());
            std::thread::sleep(Duration::from_millis(1));
        }
        world.right();
        world.leave();
    }
}
