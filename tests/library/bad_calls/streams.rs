//! Streams and contexts that were destroyed.

use trtalloc::allocator::RESIZABLE;

use crate::bad_calls::{MIB, Place, World};

pub fn frees_on_a_destroyed_stream_succeed(place: Place) {
    let world = World::new(place, "");
    for rebirth in [false, true] {
        let stream = world.device.stream();
        let blocks: Vec<usize> = (0..200)
            .map(|at| {
                world
                    .interface
                    .allocate_async(MIB, 0, if at == 3 { RESIZABLE } else { 0 }, stream)
            })
            .collect();
        for block in &blocks {
            world.device.write(stream, *block, MIB, 1);
        }
        world.device.destroy(stream);
        let born = rebirth.then(|| world.device.stream());
        for block in &blocks {
            assert!(
                world.interface.deallocate_async(*block, stream),
                "{}",
                world.interface.last_error()
            );
        }
        if let Some(born) = born {
            let block = world.interface.allocate_async(MIB, 0, 0, born);
            assert!(block != 0 && world.interface.deallocate_async(block, born));
        }
    }
    world.finish();
}

pub fn requests_after_a_context_reset_are_refused(place: Place) {
    let world = World::new(place, "");
    let stream = world.device.stream();
    let ordered = world.interface.allocate_async(MIB, 0, 0, stream);
    let blocks = [world.get(MIB), world.interface.allocate(MIB, 0, RESIZABLE)];
    match world.device.machine() {
        Some(machine) => machine.primary_reset(0).unwrap(),
        // SAFETY: the test's own device; nothing of its context is used after this.
        None => assert_eq!(unsafe { cudarc::driver::sys::cuDevicePrimaryCtxReset_v2(0) } as u32, 0),
    }
    world.device.pop_destroyed_context();
    world.device.enter(0);
    let stream = world.device.stream();
    for _ in 0..3 {
        assert_eq!(world.interface.allocate(40 * MIB, 0, 0), 0);
        assert_eq!(world.interface.allocate(MIB, 0, RESIZABLE), 0);
        assert_eq!(world.interface.allocate_async(40 * MIB, 0, 0, stream), 0);
        assert_eq!(world.interface.reallocate(blocks[1], 0, 90 * MIB), 0);
        assert!(!world.interface.last_error().is_empty());
    }
    assert!(world.interface.deallocate(blocks[0]) && world.interface.deallocate_async(blocks[1], stream));
    assert!(world.interface.deallocate_async(ordered, stream));
    assert!(!world.interface.deallocate(blocks[0]));
    world.interface.stats(0);
    world.interface.close();
}
