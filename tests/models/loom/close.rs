//! An allocator is closed while a thread still asks it for memory.

use trtalloc_models::caught;

use crate::world::{UNIT, World, explore};

/// What a pool reserves.
const WINDOW: u64 = 128 << 20;

/// Either the request is refused, or its block is good until it is freed; and then nothing is left.
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
        // The window is the application's to use again.
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
        assert_eq!(given_back, Ok(()), "somebody else's range was used");
    }
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
    let words = ["memory is left", "somebody else's range was used"];
    caught("a closed pool is left alone", &words, || explore("", 2, close(true)));
}
