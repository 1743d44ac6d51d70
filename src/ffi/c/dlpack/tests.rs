//! Owners, the order of uses, and what is refused.

use super::*;
use crate::driver::sim::model::Machine;
use crate::driver::sim::{SimConfig, SimDriver};
use crate::support::config::Config;

const MIB: u64 = 1 << 20;

#[test]
fn memory_of_other_drivers_is_not_lent_as_cudas() {
    let driver = SimDriver::new(SimConfig::default());
    assert_eq!(device_type(&*driver, false).unwrap(), CUDA);
    assert_eq!(device_type(&*driver, true).unwrap(), CUDA_HOST);
    let other = device_type(&crate::driver::none::NoDriver, false).unwrap_err();
    assert_eq!(
        other.to_string(),
        "unsupported: DLPack lends memory of CUDA here, and the driver is none"
    );
}

struct World {
    exported: &'static ExportedAllocator,
    machine: Arc<Machine>,
    context: usize,
    streams: [Stream; 3],
}

fn world() -> World {
    world_with(SimConfig::default())
}

fn world_with(config: SimConfig) -> World {
    let driver = SimDriver::new(config);
    let machine = driver.machine().clone();
    let context = machine.primary_retain(0).unwrap();
    machine.context_push(context).unwrap();
    let streams = [(); 3].map(|()| Stream(machine.stream_create(true).unwrap()));
    let allocator = Allocator::with_driver(driver, Config::default()).unwrap();
    World {
        exported: ExportedAllocator::new(allocator),
        machine,
        context,
        streams,
    }
}

impl World {
    fn block(&self, stream: Option<Stream>) -> Arc<trtalloc_dlpack_block> {
        self.block_of(MIB, stream)
    }

    fn block_of(&self, size: u64, stream: Option<Stream>) -> Arc<trtalloc_dlpack_block> {
        let request = Request {
            size,
            alignment: 0,
            flags: 0,
            stream,
            device: None,
        };
        trtalloc_dlpack_block::allocate(self.exported, request).unwrap()
    }

    /// Whether what is queued on the stream waits for a kernel that does not end.
    fn waits(&self, stream: Stream) -> bool {
        self.machine.launch(stream.0, 1, &[]).unwrap();
        self.machine.work_ends(stream.0).unwrap() == u64::MAX
    }

    /// Whether the block's memory is reused at once by its own stream, once `let_go` has ended its last use.
    fn is_reused(&self, block: Arc<trtalloc_dlpack_block>, let_go: impl FnOnce(Arc<trtalloc_dlpack_block>)) -> bool {
        let (address, stream) = (block.memory.lock().address, block.stream);
        let_go(block);
        self.block(stream).memory.lock().address == address
    }
}

#[test]
fn a_consumers_stream_waits_for_the_blocks_stream() {
    let world = world();
    let [own, consumer, other] = world.streams;
    let block = world.block(Some(own));
    let kernel = world.machine.launch_persistent(own.0, &[]).unwrap();
    block.use_on(Some(own)).unwrap();
    block.use_on(None).unwrap();
    assert!(!world.waits(consumer) && !world.waits(other));
    block.use_on(Some(consumer)).unwrap();
    assert!(world.waits(consumer) && !world.waits(other));
    // Also where no context is current, as on a thread that has not used CUDA.
    world.machine.context_pop().unwrap();
    block.use_on(Some(other)).unwrap();
    assert_eq!(world.machine.context_current(), Ok(0));
    assert!(world.waits(other));
    world.machine.context_push(world.context).unwrap();
    assert!(world.machine.release_persistent(kernel));
}

#[test]
fn a_default_stream_is_waited_for_without_a_context() {
    let world = world();
    let kernel = world.machine.launch_persistent(Stream::LEGACY.0, &[]).unwrap();
    let block = world.block(Some(Stream::DEFAULT));
    world.machine.context_pop().unwrap();
    block.use_on(Some(world.streams[0])).unwrap();
    assert!(world.waits(world.streams[0]));
    assert!(world.machine.release_persistent(kernel));
}

/// Runs `work` on another thread, in the same context.
fn elsewhere<T: Send>(world: &World, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            world.machine.context_push(world.context).unwrap();
            work()
        });
        thread.join().unwrap()
    })
}

#[test]
fn another_threads_default_stream_is_waited_for() {
    let world = world();
    let [consumer, other, _] = world.streams;
    let block = world.block(Some(Stream::PER_THREAD));
    let kernel = world.machine.launch_persistent(Stream::PER_THREAD.0, &[]).unwrap();
    elsewhere(&world, || {
        block.use_on(Some(consumer)).unwrap();
        assert!(world.waits(consumer) && !world.waits(other));
        // The handle of the block's stream means another stream here.
        assert!(!world.waits(Stream::PER_THREAD));
        block.use_on(Some(Stream::PER_THREAD)).unwrap();
        assert!(world.waits(Stream::PER_THREAD));
    });
    assert!(world.machine.release_persistent(kernel));
}

#[test]
fn another_threads_default_stream_is_refused_where_no_event_covers_it() {
    let refused = |world: &World| {
        let block = world.block(Some(Stream::PER_THREAD));
        block.use_on(Some(world.streams[0])).unwrap();
        let refused = elsewhere(world, || block.use_on(Some(world.streams[0])).unwrap_err());
        assert!(matches!(refused, Error::Unsupported(_)), "{refused}");
        refused.to_string()
    };
    let older = SimConfig {
        version: 12_040,
        ..SimConfig::default()
    };
    assert!(refused(&world_with(older)).contains("CUDA 12.5"));
    // A context event would end the capture.
    let world = world();
    let captures = world.streams[1].0;
    world.machine.stream_begin_capture(captures, 2).unwrap();
    world.exported.allocator().unwrap().driver().note_capture();
    assert!(refused(&world).contains("captures"));
    assert_eq!(world.machine.captures_ended(), 0);
}

#[test]
fn a_default_stream_of_another_context_is_waited_for() {
    let world = world();
    let block = world.block(Some(Stream::DEFAULT));
    let kernel = world.machine.launch_persistent(Stream::LEGACY.0, &[]).unwrap();
    // It is current from now on, and its legacy stream is another one.
    world.machine.context_create(0).unwrap();
    assert!(!world.waits(Stream::LEGACY));
    block.use_on(Some(Stream::LEGACY)).unwrap();
    assert!(world.waits(Stream::LEGACY));
    // Nor is the block freed on that one.
    assert!(!world.is_reused(block, drop));
    assert!(world.machine.release_persistent(kernel));
}

/// A stream that the allocator knows may have what it freed at once.
#[test]
fn another_thread_does_not_free_a_block_on_its_own_default_stream() {
    let world = world();
    let block = world.block(Some(Stream::PER_THREAD));
    let address = block.memory.lock().address;
    let kernel = world.machine.launch_persistent(Stream::PER_THREAD.0, &[]).unwrap();
    elsewhere(&world, || {
        let _much = world.block_of(100 * MIB, Some(Stream::PER_THREAD));
        drop(block);
        let next = world.block(Some(Stream::PER_THREAD));
        assert_ne!(next.memory.lock().address, address);
    });
    assert!(world.machine.release_persistent(kernel));
    // On its own thread the stream has it at once.
    assert!(world.is_reused(world.block(Some(Stream::PER_THREAD)), drop));
}

#[test]
fn memory_is_reused_behind_each_named_use() {
    let world = world();
    let [own, consumer, unnamed] = world.streams;
    // Nothing used it, so its own stream has it at once.
    assert!(world.is_reused(world.block(Some(own)), drop));
    for (stream, named) in [(consumer, Some(consumer)), (unnamed, None)] {
        let block = world.block(Some(own));
        block.use_on(named).unwrap();
        let kernel = world.machine.launch_persistent(stream.0, &[]).unwrap();
        assert!(!world.is_reused(block, drop), "{named:?}");
        assert!(world.machine.release_persistent(kernel));
    }
    // A user that let go without an order.
    let block = world.block(Some(own));
    let kernel = world.machine.launch_persistent(unnamed.0, &[]).unwrap();
    let reused = world.is_reused(block, |block| {
        // SAFETY: the only owner.
        unsafe { trtalloc_dlpack_release(Arc::into_raw(block).cast_mut(), false) }
    });
    assert!(!reused && world.machine.release_persistent(kernel));
}

#[test]
fn the_last_owner_frees_the_block() {
    let world = world();
    let stats = || world.exported.allocator().unwrap().stats(Some(0)).unwrap();
    let block = world.block(Some(world.streams[0]));
    let (old, new) = (
        lend::<Managed>(&block, (2, 32), &[4, 5]),
        lend::<Versioned>(&block, (2, 32), &[]),
    );
    assert!(matches!(block.reallocate(2 * MIB), Err(Error::Unsupported(_))));
    drop(block);
    assert_eq!((stats().allocated, stats().frees), (MIB, 0));
    delete(old);
    assert_eq!((stats().allocated, stats().frees), (MIB, 0));
    delete(new);
    assert_eq!((stats().allocated, stats().frees), (0, 1));
    delete(null_mut::<Managed>());
}

#[test]
fn a_destroyed_stream_does_not_keep_the_block() {
    let world = world();
    let block = world.block(Some(world.streams[0]));
    world.machine.stream_destroy(world.streams[0].0).unwrap();
    // SAFETY: the only owner.
    unsafe { trtalloc_dlpack_release(Arc::into_raw(block).cast_mut(), false) };
    let stats = world.exported.allocator().unwrap().stats(Some(0)).unwrap();
    assert_eq!((stats.allocated, stats.frees), (0, 1));
}

/// No element is at an offset that strides could be wrong about, whatever the other extents are.
#[test]
fn a_tensor_without_elements_takes_any_extents() {
    let block = world().block(None);
    for extents in [[0, 1 << 62, 1 << 62], [1 << 62, 0, 1 << 62], [0, 0, i64::MAX]] {
        let tensor = lend::<Managed>(&block, (2, 32), &extents);
        assert_eq!(Arc::strong_count(&block), 2);
        delete(tensor);
    }
    assert_eq!(Arc::strong_count(&block), 1);
}

/// A caller may look at its block while another thread resizes it.
#[test]
fn block_is_not_shared_while_it_is_looked_at() {
    let world = world();
    let request = Request {
        size: 2 * MIB,
        alignment: 0,
        flags: crate::allocator::RESIZABLE,
        stream: Some(world.streams[0]),
        device: None,
    };
    let block = trtalloc_dlpack_block::allocate(world.exported, request).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let memory = block.memory.lock();
        let looks = scope.spawn(|| {
            let info = block_info(&block);
            ended.store(true, Ordering::Release);
            info.owners
        });
        // The other thread waits for the lock.
        for _ in 0..100 {
            assert_eq!(Arc::strong_count(&block), 1);
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert!(!ended.load(Ordering::Acquire));
        drop(memory);
        assert_eq!(looks.join().unwrap(), 1);
    });
    block.reallocate(4 * MIB).unwrap();
    let info = block_info(&block);
    assert_eq!((info.bytes, info.owners), (4 * MIB, 1));
    let second = block.clone();
    assert_eq!(block_info(&second).owners, 2);
}

fn block_info(block: &Arc<trtalloc_dlpack_block>) -> trtalloc_dlpack_info {
    let mut info = trtalloc_dlpack_info {
        memory: null_mut(),
        bytes: 0,
        owners: 0,
        device_type: 0,
        device: 0,
    };
    // SAFETY: an owner of the block, and a local.
    assert!(unsafe { trtalloc_dlpack_get(Arc::as_ptr(block).cast_mut(), &mut info) });
    info
}
