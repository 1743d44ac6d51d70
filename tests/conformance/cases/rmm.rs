//! Cases that RMM's own tests and issues require and no other file has. The others, by RMM's names:
//!
//! | RMM | here |
//! |---|---|
//! | zero-size allocations | `requests::request_for_zero_bytes_is_refused` |
//! | AllocateWord … AllocateGB, 256-byte alignment | `requests::sizes_from_4_bytes_to_1_gib_are_served`, `requests::every_alignment_is_kept` |
//! | AllocateTooMuch (1 PiB) | `requests::request_for_a_pebibyte_is_refused` |
//! | AllocationsAreDifferent | `requests::live_blocks_do_not_overlap` |
//! | RandomAllocations on four threads | `requests::random_sizes_on_four_threads_keep_their_contents`, and `threads_share_one_stream` |
//! | AllocFreeDifferentThreads, same and different streams | `streams::consumer_on_*`, and here on default streams |
//! | PoolTest.ForceGrowth | `limits::growth_stops_at_the_limit`, `external::six_thousand_external_bytes_serve_requests` |
//! | limiting adaptor: a cap rolled back when upstream fails | `limits::limit_holds_when_the_driver_fails` |
//! | PoolTest.DeletedStream, cuML #2632 | `streams::memory_of_a_destroyed_stream_is_reclaimed`, and here |
//! | #649, #2251: a handle comes back as another stream | `streams::reused_stream_handle_waits_for_the_earlier_stream` |
//! | PoolTest.MultidevicePool | `requests::each_device_has_its_pool` |
//! | tracking and limiting adaptors: an address that comes back during a slow free | `streams::addresses_are_reused_on_many_threads` |
//! | tracking adaptor: unknown frees, no underflow | `requests::unknown_addresses_are_refused`, `requests::second_free_is_refused` |
//! | InitialAndMaxPoolSizeEqual, NonAlignedPoolSize | `external::external_memory_may_start_anywhere` |

use std::sync::mpsc::channel;

use super::{MIB, Random};
use crate::world::{Setup, World};

/// PoolTest.AllocateNinetyPercent and TwoLargeBuffers. Other processes may hold a part of a real device.
pub fn most_of_the_device_can_be_allocated(setup: &Setup) {
    let world = setup.world("");
    let total = world.total(0);
    let most = if world.machine().is_some() {
        total / 10 * 9
    } else {
        total / 2
    };
    let block = world.get(most);
    world.write_edges(0, block, most, 1);
    assert!(world.holds(block, most, 1));
    world.put(block);
    let two = [0; 2].map(|_| world.get(total / 4));
    two.into_iter().for_each(|block| world.put(block));
    world.finish();
}

/// mr_ref_test_mt's RandomAllocations and MixedRandomAllocationFree on one stream, and on the default one.
pub fn threads_share_one_stream(setup: &Setup) {
    let world = setup.world("");
    let own = world.stream();
    for stream in [0, own] {
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let world = &world;
                scope.spawn(move || world.on_thread(|| mixed(world, stream, seed)));
            }
        });
        world.check_books();
    }
    world.finish();
}

/// Allocations and frees of up to 5 MiB, in random order.
fn mixed(world: &World, stream: usize, seed: u64) {
    let mut random = Random::new(seed + 50);
    let mut live = Vec::new();
    for _ in 0..100 {
        if live.is_empty() || random.below(2) == 0 {
            let size = 1 + random.below(5 * MIB);
            let block = world.get_on(stream, size);
            world.write_edges(stream, block, size, seed as u8);
            live.push((block, size));
        } else {
            let (block, size) = live.swap_remove(random.below(live.len() as u64) as usize);
            world.write_edges(stream, block, size, seed as u8 + 1);
            world.put_on(stream, block);
        }
    }
    live.into_iter().for_each(|(block, _)| world.put_on(stream, block));
}

/// AllocFreeDifferentThreadsDefaultStream and …PerThreadDefaultStream: the latter is another stream on each thread.
pub fn consumer_on_a_default_stream_reuses_what_it_frees(setup: &Setup) {
    let world = setup.world("");
    for &stream in world.default_streams() {
        let (give, take) = channel::<(usize, u64)>();
        std::thread::scope(|scope| {
            let world = &world;
            scope.spawn(move || {
                world.on_thread(|| {
                    let mut random = Random::new(9);
                    for _ in 0..100 {
                        let size = 1 + random.below(MIB);
                        let block = world.get_on(stream, size);
                        world.write_edges(stream, block, size, 1);
                        world.wait(stream);
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
                    world.wait(stream);
                });
            });
        });
        world.check_books();
    }
    world.finish();
}

/// PoolTest.DeletedStream, and cuML's forest (#2632): many streams that own freed memory are destroyed when the default
/// stream allocates.
pub fn destroyed_streams_lose_no_memory(setup: &Setup) {
    for count in [1, 10] {
        let world = setup.world("limit=64MiB");
        let streams: Vec<usize> = (0..count).map(|_| world.stream()).collect();
        let size = 40 * MIB / count;
        for stream in &streams {
            let block = world.get_on(*stream, size);
            world.write_edges(*stream, block, size, 1);
            world.put_on(*stream, block);
        }
        streams.into_iter().for_each(|stream| world.destroy(stream));
        let block = world.get_on(0, 40 * MIB);
        world.write_edges(0, block, 40 * MIB, 2);
        assert!(world.holds(block, 40 * MIB, 2));
        world.finish();
        setup.device().leave();
    }
}
