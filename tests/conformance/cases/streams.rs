//! Which stream reuses what, and when.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use super::{KIB, MIB, Random};
use crate::world::Setup;

pub fn consumer_on_the_same_stream_reuses_at_once(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    let (give, take) = channel::<(usize, u64)>();
    std::thread::scope(|scope| {
        let world = &world;
        scope.spawn(move || {
            world.on_thread(|| {
                let mut random = Random::new(1);
                for _ in 0..200 {
                    let size = 1 + random.below(2 * MIB);
                    let block = world.get_on(stream, size);
                    world.write_edges(stream, block, size, 1);
                    give.send((block, size)).unwrap();
                }
            });
        });
        scope.spawn(move || {
            world.on_thread(|| {
                for (block, size) in take {
                    world.write_edges(stream, block, size, 2);
                    world.put_on(stream, block);
                }
            });
        });
    });
    world.finish();
}

pub fn consumer_on_another_stream_waits_for_the_producer(setup: &Setup) {
    let world = setup.world("");
    let (first, second) = (world.stream(), world.stream());
    let (give, take) = channel::<(usize, u64)>();
    std::thread::scope(|scope| {
        let world = &world;
        scope.spawn(move || {
            world.on_thread(|| {
                let mut random = Random::new(2);
                for _ in 0..200 {
                    let size = 1 + random.below(2 * MIB);
                    let block = world.get_on(first, size);
                    world.write_edges(first, block, size, 1);
                    world.order(first, second);
                    give.send((block, size)).unwrap();
                }
            });
        });
        scope.spawn(move || {
            world.on_thread(|| {
                for (block, size) in take {
                    world.write_edges(second, block, size, 2);
                    world.put_on(second, block);
                }
            });
        });
    });
    world.finish();
}

pub fn stream_reuses_what_it_freed_without_a_driver_call(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    let sizes = [512, 100 * KIB, 3 * MIB];
    let blocks = sizes.map(|size| world.get_on(stream, size));
    blocks.iter().for_each(|block| world.put_on(stream, *block));
    let before = world.stats();
    let hold = world.hold(stream);
    for _ in 0..300 {
        let again = sizes.map(|size| world.get_on(stream, size));
        assert_eq!(again, blocks, "while work is pending");
        again.iter().for_each(|block| world.put_on(stream, *block));
    }
    let after = world.stats();
    hold.let_go();
    assert_eq!(after.driver_calls, before.driver_calls);
    assert!(after.driver_queries - before.driver_queries <= 2 * 900, "{after:?}");
    assert_eq!(after.reserved, before.reserved);
    world.finish();
}

/// Each stream takes requests of any size up to the largest that it had before, while all of its work is pending.
pub fn pending_work_costs_no_memory_call(setup: &Setup) {
    let world = setup.world("");
    let streams = [world.stream(), world.stream(), world.stream()];
    let request = |stream: usize, unit: u64| {
        let sizes = [4 * unit, 2 * unit, unit];
        let blocks = sizes.map(|size| world.get_on(stream, size));
        for (block, size) in blocks.iter().zip(sizes) {
            world.write_edges(stream, *block, size, 1);
        }
        blocks.iter().for_each(|block| world.put_on(stream, *block));
    };
    let largest = 9 * MIB;
    streams.iter().for_each(|stream| request(*stream, largest));
    let before = world.stats();
    let needs = streams.len() as u64 * 7 * largest;
    assert!(before.reserved <= needs / 100 * 105, "{before:?}");
    let holds = streams.map(|stream| world.hold(stream));
    let mut random = Random::new(1);
    for _ in 0..40 {
        for stream in streams {
            request(stream, MIB + random.below(largest / KIB - KIB) * KIB);
        }
    }
    let after = world.stats();
    holds.into_iter().for_each(|hold| hold.let_go());
    assert_eq!(
        (after.reserved, after.driver_calls),
        (before.reserved, before.driver_calls)
    );
    world.finish();
}

/// What another stream freed goes back to the stream that allocated it, and the other stream takes none of it.
pub fn block_of_another_stream_goes_home(setup: &Setup) {
    let world = setup.world("");
    let (home, other) = (world.stream(), world.stream());
    let own = world.get_on(other, MIB);
    let block = world.get_on(home, 40 * MIB);
    world.order(home, other);
    world.write_edges(other, block, 40 * MIB, 1);
    world.put_on(other, block);
    let inside = world.get_on(other, 3 * MIB);
    assert!(inside < block || inside >= block + (40 << 20), "it is a guest");
    world.wait(other);
    let before = world.stats().reserved;
    assert_eq!(world.get_on(home, 40 * MIB), block);
    assert_eq!(world.stats().reserved, before);
    [own, inside].iter().for_each(|own| world.put_on(other, *own));
    world.put_on(home, block);
    world.finish();
}

/// Frees so much on `stream` that it records a completion event.
fn fill_and_free(world: &crate::world::World, stream: usize, count: u64, size: u64) {
    let blocks: Vec<usize> = (0..count).map(|_| world.get_on(stream, size)).collect();
    for block in &blocks {
        world.write_edges(stream, *block, size, 1);
    }
    blocks.into_iter().for_each(|block| world.put_on(stream, block));
}

pub fn other_stream_takes_freed_memory_behind_its_event(setup: &Setup) {
    let world = setup.world("limit=64MiB,wait_ms=5000");
    let (first, second) = (world.stream(), world.stream());
    // At first, a request finds all memory on another stream, and waits. From then on, streams record a completion
    // event for what they free.
    fill_and_free(&world, first, 64, MIB);
    let block = world.get_on(second, 32 * MIB);
    world.put_on(second, block);
    let hold = world.hold(first);
    fill_and_free(&world, first, 64, MIB);
    // There is no other memory; the work on `first` has not completed, and the call does not wait for it.
    let block = world.get_on(second, 32 * MIB);
    world.write_edges(second, block, 32 * MIB, 2);
    hold.let_go();
    assert!(world.holds(block, 32 * MIB, 2));
    world.finish();
}

pub fn request_without_a_stream_waits_for_the_work(setup: &Setup) {
    let world = setup.world("limit=64MiB,wait_ms=300");
    let stream = world.stream();
    let block = world.get_on(stream, 64 * MIB);
    let hold = world.hold(stream);
    world.write_edges(stream, block, 64 * MIB, 1);
    world.put_on(stream, block);
    assert_eq!(world.try_get(64 * MIB, 0, 0), 0, "the work is not over");
    assert_eq!(world.stats().out_of_memory, 1);
    hold.let_go();
    world.wait(stream);
    let block = world.get(64 * MIB);
    world.write_edges(0, block, 64 * MIB, 2);
    assert!(world.holds(block, 64 * MIB, 2));
    world.finish();
}

pub fn free_without_a_stream_waits_for_the_work(setup: &Setup) {
    let world = setup.world("limit=64MiB,wait_ms=300");
    let (first, second) = (world.stream(), world.stream());
    let block = world.get_on(first, 64 * MIB);
    let hold = world.hold(first);
    world.write_edges(first, block, 64 * MIB, 1);
    world.put(block);
    assert_eq!(world.stats().pending, 64 * MIB);
    for stream in [first, second, 0] {
        assert_eq!(world.try_get_on(stream, 64 * MIB, 0, 0), 0, "the work is not over");
    }
    world.check_books();
    hold.let_go();
    world.wait(first);
    let block = world.get_on(second, 64 * MIB);
    assert_eq!(world.stats().pending, 0);
    world.write_edges(second, block, 64 * MIB, 2);
    assert!(world.holds(block, 64 * MIB, 2));
    world.finish();
}

pub fn allocations_and_frees_with_and_without_streams_mix(setup: &Setup) {
    let world = setup.world("");
    let (first, second) = (world.stream(), world.stream());
    for round in 0..20u64 {
        let size = (round + 1) * 300 * KIB;
        let plain = world.get(size);
        let ordered = world.get_on(first, size);
        let resizable = world.get_resizable(size);
        for block in [plain, ordered, resizable] {
            world.write_edges(first, block, size, round as u8);
        }
        match round % 3 {
            0 => {
                world.put_on(first, plain);
                world.put(ordered);
                world.put(resizable);
            }
            1 => {
                world.order(first, second);
                world.put_on(second, plain);
                world.put_on(second, ordered);
                world.put_on(second, resizable);
            }
            _ => {
                world.wait(first);
                world.put_on(0, plain);
                world.put_on(2, ordered);
                world.put_on(1, resizable);
            }
        }
        world.check_books();
    }
    world.finish();
}

pub fn memory_of_a_destroyed_stream_is_reclaimed(setup: &Setup) {
    let world = setup.world("limit=64MiB");
    for _ in 0..10 {
        let stream = world.stream();
        fill_and_free(&world, stream, 8, 8 * MIB);
        world.destroy(stream);
    }
    // In the end, every stream may reuse the last one's memory.
    let block = world.get(64 * MIB);
    world.write_edges(0, block, 64 * MIB, 3);
    assert!(world.holds(block, 64 * MIB, 3));
    world.finish();
}

pub fn reused_stream_handle_waits_for_the_earlier_stream(setup: &Setup) {
    let world = setup.world("");
    let mut seen = 0;
    for _ in 0..8 {
        let dying = world.stream();
        let block = world.get_on(dying, 4 * MIB);
        let hold = world.hold(dying);
        world.write_edges(dying, block, 4 * MIB, 1);
        world.put_on(dying, block);
        world.destroy(dying);
        let born = world.stream();
        seen += usize::from(born == dying);
        let other = world.get_on(born, 4 * MIB);
        // Without stream ids, any stream may reuse what was freed once it waits for the event.
        if world.features().stream_ids {
            assert_ne!(other, block, "the work on it is not over");
        }
        world.write_edges(born, other, 4 * MIB, 2);
        hold.let_go();
        world.wait_for_all();
        world.put_on(born, other);
        world.destroy(born);
    }
    if world.machine().is_some() {
        assert_eq!(seen, 8, "handles are used again at once");
    }
    world.finish();
}

pub fn memory_of_a_released_stream_serves_others(setup: &Setup) {
    let world = setup.world("limit=64MiB");
    let other = world.stream();
    for round in 0..4 {
        let stream = world.stream();
        let block = world.get_on(stream, 64 * MIB);
        world.write_edges(stream, block, 64 * MIB, 1);
        world.put_on(stream, block);
        assert_eq!(world.interface().stream_release(stream), 0);
        world.destroy(stream);
        let block = if round % 2 == 0 {
            world.get(64 * MIB)
        } else {
            world.get_on(other, 64 * MIB)
        };
        world.write_edges(other, block, 64 * MIB, 2);
        world.put_on(other, block);
    }
    // A stream that never allocated, and the default streams.
    let unknown = world.stream();
    for stream in [unknown, 0, 1, 2] {
        assert_eq!(world.interface().stream_release(stream), 0, "{stream}");
    }
    world.finish();
}

pub fn block_used_on_other_streams_waits_for_them(setup: &Setup) {
    let world = setup.world("");
    let (home, other) = (world.stream(), world.stream());
    for resizable in [false, true] {
        let block = if resizable {
            world.get_resizable(MIB)
        } else {
            world.get_on(home, MIB)
        };
        world.write_edges(home, block, MIB, 1);
        world.order(home, other);
        let hold = world.hold(other);
        world.write_edges(other, block, MIB, 2);
        world.record(block, other);
        world.put_on(home, block);
        let next = world.get_on(home, MIB);
        assert_ne!(next, block, "it is still used elsewhere");
        hold.let_go();
        world.put_on(home, next);
    }
    world.finish();
}

pub fn addresses_are_reused_on_many_threads(setup: &Setup) {
    let world = setup.world("limit=256MiB");
    let passed: Mutex<Vec<usize>> = Mutex::default();
    std::thread::scope(|scope| {
        for seed in 1..=4 {
            let (world, passed) = (&world, &passed);
            scope.spawn(move || {
                world.on_thread(|| {
                    let mut random = Random::new(seed);
                    let stream = world.stream();
                    for _ in 0..400 {
                        let size = [512, 4096, 4608][random.below(3) as usize];
                        let block = match random.below(8) {
                            0 => world.get(size),
                            _ => world.get_on(stream, size),
                        };
                        match random.below(3) {
                            // Another thread frees the block later, without a stream.
                            0 => passed.lock().unwrap().push(block),
                            _ => world.put_on(stream, block),
                        }
                        let theirs = passed.lock().unwrap().pop();
                        if let Some(block) = theirs.filter(|_| random.below(2) == 0) {
                            world.put(block);
                        } else if let Some(block) = theirs {
                            passed.lock().unwrap().push(block);
                        }
                    }
                    world.wait(stream);
                });
            });
        }
    });
    world.finish();
}

pub fn blocks_keep_their_contents(setup: &Setup) {
    let world = setup.world("limit=128MiB");
    let streams: Vec<usize> = (0..4).map(|_| world.stream()).collect();
    let mut random = Random::new(77);
    let mut live: Vec<(usize, u64, usize, u8)> = Vec::new();
    for round in 0..400u64 {
        if live.len() >= 16 || (!live.is_empty() && random.below(3) == 0) {
            let (block, size, stream, byte) = live.swap_remove(random.below(live.len() as u64) as usize);
            if round % 5 == 0 {
                assert!(world.holds(block, size, byte), "block {block:#x} + {size}");
            }
            if random.below(4) == 0 {
                world.put(block)
            } else {
                world.put_on(stream, block)
            }
        } else {
            let stream = streams[random.below(4) as usize];
            let size = 1 + random.below(6 * MIB);
            let block = world.get_on(stream, size);
            let byte = round as u8;
            world.write_edges(stream, block, size, byte);
            live.push((block, size, stream, byte));
        }
    }
    for (block, size, _, byte) in live {
        assert!(world.holds(block, size, byte), "block {block:#x} + {size}");
    }
    world.finish();
}
