//! An allocator is closed while a thread still asks it for memory.

use crate::world::{UNIT, World, explore};

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
