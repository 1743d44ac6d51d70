//! An allocator is closed while a thread still requests memory.

use crate::world::{UNIT, World, caught, explore};

/// The size of the address range that a pool reserves.
const WINDOW: u64 = 128 << 20;

/// The request is refused, or its block is usable until it is freed; in both cases nothing is left.
fn close(warm: bool) -> impl Fn() {
    move || {
        let world = World::new("");
        let stream = if warm { world.warm::<1>(1)[0] } else { world.stream() };
        let other = world.thread(move |world| {
            let block = world.allocate(UNIT, Some(stream)).ok();
            if let Some(block) = block {
                world.launch(stream, block, UNIT);
                world.put(block, Some(stream));
            }
        });
        world.allocator.close();
        // The application may use the address range again.
        let taken = world.machine.memory_reserve(WINDOW, 2 << 20).unwrap();
        other.join().unwrap();
        world.machine.context_synchronize().unwrap();
        world.allocator.close();
        let wrong: Vec<String> = world
            .machine
            .checker()
            .violations()
            .into_iter()
            .chain(world.machine.faults())
            .collect();
        assert_eq!(wrong, Vec::<String>::new());
        let (free, total) = world.machine.memory_info(0).unwrap();
        assert_eq!(free, total, "memory is left");
        let given_back = world.machine.memory_unreserve(taken, WINDOW);
        assert_eq!(given_back, Ok(()), "another allocator's range was used");
    }
}

/// Checks that all memory of a destroyed allocator was released to the driver.
fn all_back(world: &World) {
    assert_eq!(world.machine.faults(), Vec::<String>::new());
    let (free, total) = world.machine.memory_info(0).unwrap();
    assert_eq!(free, total, "memory is left");
}

/// Two threads free the last two blocks of a destroyed allocator at once: nothing is left, whichever comes last.
fn last_two(options: &'static str) -> impl Fn() {
    move || {
        let world = World::new(options);
        let [first, second] = [(); 2].map(|()| world.allocate(UNIT, None).unwrap());
        world.allocator.close();
        let other = world.thread(move |world| world.put(second, None));
        world.put(first, None);
        other.join().unwrap();
        all_back(&world);
    }
}

/// An allocator is destroyed while a thread frees its last block.
fn free_during_close() {
    let world = World::new("");
    let block = world.allocate(UNIT, None).unwrap();
    let other = world.thread(move |world| world.put(block, None));
    world.allocator.close();
    other.join().unwrap();
    all_back(&world);
}

/// A thread requests a dedicated allocation while the last one is freed and the allocator is destroyed.
fn request_during_close() {
    let world = World::new("guard=1");
    let block = world.allocate(UNIT, None).unwrap();
    let other = world.thread(move |world| {
        if let Ok(block) = world.allocate(UNIT, None) {
            world.put(block, None);
        }
    });
    world.put(block, None);
    world.allocator.close();
    other.join().unwrap();
    all_back(&world);
}

#[test]
fn close_loses_neither_of_the_last_two_blocks() {
    explore("close, the last two dedicated blocks", 3, last_two("guard=1"));
    explore("close, the last two blocks", 2, last_two(""));
}

#[test]
fn close_loses_no_block_of_a_late_free() {
    explore("close, a late free", 3, free_during_close);
}

#[test]
fn close_loses_no_block_of_a_late_request() {
    explore("close, a late request", 2, request_during_close);
}

#[test]
fn close_without_its_rules_loses_blocks() {
    let words = ["memory is left"];
    caught("a free counts its block under the lock that files it", &words, || {
        explore("", 2, last_two("guard=1"))
    });
    caught("a close judges under the lock", &words, || {
        explore("", 3, free_during_close)
    });
    caught("a close checks dedicated allocations", &words, || {
        explore("", 2, request_during_close)
    });
}

#[test]
fn a_close_and_a_hit() {
    explore("close, a hit", 2, close(true));
}

#[test]
fn a_close_and_a_first_request() {
    explore("close, a first request", 2, close(false));
}

#[test]
fn a_request_after_the_end() {
    let words = ["memory is left", "another allocator's range was used"];
    caught("a closed pool is left alone", &words, || explore("", 2, close(true)));
}
