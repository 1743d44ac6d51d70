//! Pointers that are not, or no longer, a block of the allocator.

use trtalloc::allocator::RESIZABLE;

use crate::bad_calls::{MIB, Place, World};

/// None of them is a block, whatever is done with it.
fn refused_blocks(world: &World, addresses: &[usize]) {
    let stream = world.device.stream();
    for address in addresses {
        assert!(!world.interface.deallocate(*address), "{address:#x}");
        assert!(!world.interface.deallocate_async(*address, stream), "{address:#x}");
        assert_eq!(world.interface.reallocate(*address, 0, MIB), 0, "{address:#x}");
        assert_ne!(world.interface.record_stream(*address, stream), 0, "{address:#x}");
    }
}

pub fn foreign_pointers_are_refused(place: Place) {
    let world = World::new(place, "");
    let block = world.get(MIB);
    let own = world.device.malloc(MIB);
    let local = 0;
    refused_blocks(
        &world,
        &[own, std::ptr::from_ref(&local).addr(), 1, 4096, usize::MAX, 1 << 63],
    );
    world.device.free(own);
    assert!(world.interface.deallocate(block));
    world.finish();
}

pub fn interior_pointers_are_refused(place: Place) {
    let world = World::new(place, "");
    let block = world.get(4 * MIB);
    let resizable = world.interface.allocate(4 * MIB, 0, RESIZABLE);
    for inside in [1, 256, 512, 4096, 2 << 20] {
        refused_blocks(&world, &[block + inside, resizable + inside]);
    }
    assert!(world.interface.deallocate(block) && world.interface.deallocate(resizable));
    world.finish();
}

pub fn double_frees_are_refused(place: Place) {
    let world = World::new(place, "");
    let stream = world.device.stream();
    let ordered = world.interface.allocate_async(MIB, 0, 0, stream);
    let (plain, resizable) = (world.get(MIB), world.interface.allocate(MIB, 0, RESIZABLE));
    assert!(world.interface.deallocate_async(ordered, stream));
    // The pool knows it as a block until it collects what has completed.
    assert!(!world.interface.deallocate_async(ordered, stream));
    assert!(world.interface.deallocate(plain) && world.interface.deallocate(resizable));
    refused_blocks(&world, &[ordered, plain, resizable]);
    // Twice at once.
    for _ in 0..200 {
        let block = world.get(MIB);
        let taken: usize = std::thread::scope(|scope| {
            let free = || usize::from(world.interface.deallocate(block));
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(free)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(taken, 1);
    }
    world.finish();
}

pub fn requests_after_destroy_are_refused(place: Place) {
    let world = World::new(place, "");
    let block = world.get(MIB);
    world.interface.close();
    world.interface.close();
    assert_eq!(world.interface.allocate(MIB, 0, 0), 0);
    assert_eq!(world.interface.allocate_async(MIB, 0, 0, 0), 0);
    assert!(world.interface.deallocate(block) && !world.interface.deallocate(block));
    assert_eq!(world.interface.stats(0).allocated, 0);
    world.interface.close();
}
