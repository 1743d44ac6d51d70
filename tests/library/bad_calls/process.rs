//! Calls of a forked child, at the end of a thread or of the process, and from many threads.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use trtalloc::allocator::RESIZABLE;

use crate::bad_calls::{MIB, Place, World};

pub fn calls_in_a_forked_child_are_refused(place: Place) {
    let world = World::new(place, "");
    let stream = world.device.stream();
    let (plain, ordered) = (world.get(MIB), world.interface.allocate_async(MIB, 0, 0, stream));
    // Another thread most likely holds the locks at the time of the fork.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                world.device.enter(0);
                while !stop.load(Ordering::Relaxed) {
                    let block = world.interface.allocate(700_000, 0, 0);
                    assert!(world.interface.deallocate(block));
                }
                world.device.leave();
            });
        }
        for _ in 0..5 {
            // SAFETY: the child calls the library under test, and leaves by _exit.
            let child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child == 0 {
                let refused = world.interface.allocate(MIB, 0, 0) == 0
                    && world.interface.allocate_async(MIB, 0, 0, stream) == 0
                    && world.interface.allocate(MIB, 0, RESIZABLE) == 0
                    && world.interface.reallocate(plain, 0, MIB) == 0
                    && !world.interface.deallocate(plain)
                    && !world.interface.deallocate_async(ordered, stream)
                    && world.interface.deallocate(0)
                    && world.interface.trim(0, 0).0 != 0
                    && world.interface.set_limit(0, 1) != 0
                    && world.interface.stream_release(stream) != 0
                    && world.interface.record_stream(plain, stream) != 0;
                world.interface.close();
                // SAFETY: ends the child without its parent's handlers.
                unsafe { libc::_exit(if refused { 0 } else { 1 }) };
            }
            let mut status = 0;
            // SAFETY: the child of this process and a local to write to.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child was not refused, or did not end");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(world.interface.deallocate(plain) && world.interface.deallocate_async(ordered, stream));
    world.finish();
}

static WORLD: OnceLock<World> = OnceLock::new();

/// Whatever the order of handlers, calls have an answer.
extern "C" fn use_it_late() {
    let world = WORLD.get().unwrap();
    let block = world.interface.allocate(3 * MIB, 0, 0);
    let resized = world.interface.reallocate(block, 0, 5 * MIB);
    let ordered = world.interface.allocate_async(3 * MIB, 0, 0, 0);
    let taken = world.interface.deallocate(block) && world.interface.deallocate_async(ordered, 0);
    if resized != 0 || !taken {
        // SAFETY: ends the process where a panic would look like a crash.
        unsafe { libc::_exit(3) };
    }
    world.interface.trim(0, 0);
    world.interface.close();
}

pub fn calls_at_exit_have_an_answer(place: Place) {
    // SAFETY: a plain function. It is registered before the library's own handler, so it runs after it.
    assert_eq!(unsafe { libc::atexit(use_it_late) }, 0);
    let world = WORLD.get_or_init(|| World::new(place, ""));
    let block = world.get(MIB);
    world.device.write(0, block, MIB, 1);
    // SAFETY: as above; this one runs before the library's.
    assert_eq!(unsafe { libc::atexit(use_it_late) }, 0);
}

struct Late(Option<usize>);

impl Drop for Late {
    fn drop(&mut self) {
        let world = WORLD.get().unwrap();
        let block = world.interface.allocate(MIB, 0, 0);
        // A refusal is logged, while the thread's locals are going.
        let refused = !world.interface.deallocate(12_345) && world.interface.reallocate(block, 3, 1) == 0;
        let taken =
            world.interface.deallocate(block) && self.0.is_none_or(|block| world.interface.deallocate_async(block, 2));
        if block == 0 || !refused || !taken {
            // SAFETY: as above.
            unsafe { libc::_exit(4) };
        }
    }
}

thread_local! {
    static FIRST: RefCell<Late> = const { RefCell::new(Late(None)) };
    static LAST: RefCell<Late> = const { RefCell::new(Late(None)) };
}

pub fn calls_from_thread_local_destructors_have_an_answer(place: Place) {
    let world = WORLD.get_or_init(|| World::new(place, ""));
    for _ in 0..20 {
        // Joined by its handle: that waits for its locals, too.
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // One that is destroyed after, and one before, whatever the library keeps for a thread.
                FIRST.with(|late| late.borrow_mut().0 = None);
                world.device.enter(0);
                let block = world.interface.allocate_async(MIB, 0, 0, 2);
                LAST.with(|late| late.borrow_mut().0 = Some(block));
            });
            thread.join().unwrap();
        });
    }
    world.finish();
}

pub fn blocks_of_ten_thousand_threads_can_be_freed(place: Place) {
    let world = World::new(place, "");
    for batch in 0..50 {
        let threads: Vec<_> = std::thread::scope(|scope| {
            (0..200)
                .map(|at| {
                    let world = &world;
                    std::thread::Builder::new()
                        .stack_size(128 << 10)
                        .spawn_scoped(scope, move || {
                            world.device.enter(0);
                            let stream = if at % 2 == 0 { 2 } else { 0 };
                            let block = world.interface.allocate_async(1 + at * 100 + batch, 0, 0, stream);
                            world.device.leave();
                            block
                        })
                        .unwrap()
                })
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(
            threads.iter().all(|block| *block != 0),
            "{}",
            world.interface.last_error()
        );
        for block in threads {
            assert!(world.interface.deallocate(block));
        }
    }
    world.finish();
}
