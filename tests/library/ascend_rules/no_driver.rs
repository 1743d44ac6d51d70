//! Pools without a driver, which cannot know whether work has completed.

use trtalloc::ffi::c::trtalloc_status;

use super::pool::{HostMemory, Pool, last_error};

const BYTES: u64 = 1 << 20;

/// A free without a stream declares that every use has ended.
#[test]
fn free_without_stream_is_reusable_at_once() {
    let memory = HostMemory::new(BYTES as usize);
    let pool = Pool::over(memory.address(), BYTES, "driver=none").unwrap();
    for _ in 0..100 {
        let all = pool.get(BYTES, 0);
        assert_eq!(all, memory.address(), "{}", last_error());
        assert_eq!(pool.get(1, 0), 0);
        assert!(pool.put(all));
        let halves = [pool.get(BYTES / 2, 0), pool.get(BYTES / 2, 0)];
        assert!(halves.iter().all(|half| *half != 0 && pool.put(*half)));
    }
    let stats = pool.stats();
    assert_eq!((stats.allocated, stats.pending, stats.cached), (0, 0, BYTES));
    assert_eq!((stats.allocations, stats.frees, stats.out_of_memory), (300, 300, 100));
    assert_eq!(
        (pool.trim(), pool.stats().reserved),
        (0, BYTES),
        "the caller's memory is not released"
    );
    assert!(memory.is(memory.address(), BYTES, 0), "never touched");
}

/// A handle may have been reused by another stream, and there is no driver to query.
#[test]
fn streams_are_refused() {
    let memory = HostMemory::new(BYTES as usize);
    let pool = Pool::over(memory.address(), BYTES, "driver=none").unwrap();
    for stream in [0, 1, 2, 0x1000] {
        assert_eq!(pool.get_on(stream, 1000), 0);
        assert!(
            last_error().contains("no driver to ask about streams"),
            "{}",
            last_error()
        );
        let block = pool.get(1000, 0);
        assert!(!pool.put_on(stream, block));
        assert!(last_error().contains("streams=trusted"), "{}", last_error());
        assert_eq!(pool.record(stream, block), trtalloc_status::Unsupported);
        assert_eq!(pool.release(stream), trtalloc_status::Ok);
        // The block still belongs to the caller.
        assert_eq!((pool.stats().allocated, pool.stats().pending), (1024, 0));
        assert!(pool.put(block) && !pool.put(block));
    }
}

#[test]
fn bad_frees_do_no_harm() {
    let memory = HostMemory::new(BYTES as usize);
    let pool = Pool::over(memory.address(), BYTES, "driver=none,rule=ascend").unwrap();
    let block = pool.get(1000, 0);
    for bad in [memory.address(), block + 1, block + 64, block - 64, 8, usize::MAX] {
        assert!(!pool.put(bad), "{bad:#x}");
    }
    assert!(pool.put(0) && pool.put(block) && !pool.put(block));
    let stats = pool.stats();
    assert_eq!((stats.allocated, stats.cached, stats.frees), (0, BYTES, 1));
}

/// Where streams outlive the allocator, memory freed on a stream can only be reused on that stream.
#[test]
fn trusted_streams_reuse_only_their_own_frees() {
    let memory = HostMemory::new(BYTES as usize);
    let pool = Pool::over(memory.address(), BYTES, "driver=none,streams=trusted,wait_ms=5000").unwrap();
    let (one, other) = (0x1000, 0x2000);
    let all = pool.get_on(one, BYTES);
    assert_ne!(all, 0, "{}", last_error());
    for _ in 0..3 {
        assert!(pool.put_on(one, all));
        assert_eq!(pool.get_on(other, 1000), 0, "the work of one stream may still use it");
        assert_eq!(pool.get(1000, 0), 0, "nor is it done for a caller without a stream");
        let halves = [pool.get_on(one, BYTES / 2), pool.get_on(one, BYTES / 2)];
        assert!(halves.iter().all(|half| *half != 0));
        assert_eq!(pool.record(other, halves[0]), trtalloc_status::Unsupported);
        // HostMemory freed without a stream can be reused anywhere; memory freed on another stream can be reused on that
        // one.
        assert!(pool.put(halves[0]));
        let taken = pool.get_on(other, BYTES / 2);
        assert_eq!(taken, halves[0], "{}", last_error());
        assert!(pool.put_on(other, taken) && pool.put_on(other, halves[1]));
        assert_eq!((pool.get_on(one, 1000), pool.get(1000, 0)), (0, 0));
        let whole = pool.get_on(other, BYTES);
        assert_eq!(whole, all, "{}", last_error());
        assert!(pool.put(whole));
        assert_eq!(pool.get_on(one, BYTES), all);
    }
    // A block allocated without a stream, freed on a stream that has allocated nothing.
    assert!(pool.put(all));
    let plain = pool.get(BYTES, 0);
    let third = 0x3000;
    assert!(pool.put_on(third, plain));
    assert_eq!((pool.get(1000, 0), pool.get_on(one, 1000)), (0, 0));
    assert_eq!(pool.get_on(third, BYTES), plain, "{}", last_error());
    // HostMemory of a stream that was released is not reused: its work may be pending.
    assert!(pool.put_on(third, plain));
    assert_eq!(pool.release(third), trtalloc_status::Ok);
    assert_eq!(
        (pool.get_on(third, 1000), pool.get_on(one, 1000), pool.get(1000, 0)),
        (0, 0, 0)
    );
    assert!(memory.is(memory.address(), BYTES, 0), "never touched");
}

/// The host may write to pinned memory at once, so reuse on the same stream is not safe either.
#[test]
fn pinned_memory_refuses_trusted_streams() {
    let memory = HostMemory::new(BYTES as usize);
    let options = "driver=none,rule=ascend-host,kind=pinned,streams=trusted";
    let pool = Pool::over(memory.address(), BYTES, options).unwrap();
    assert_eq!(pool.get_on(0x1000, 1000), 0);
    let block = pool.get(1000, 0);
    assert!(!pool.put_on(0x1000, block) && pool.put(block));
    assert_eq!(pool.stats().cached, BYTES);
}

/// The driver's own memory needs a driver.
#[test]
fn create_without_memory_needs_a_driver() {
    let mut out = std::ptr::null_mut();
    // SAFETY: a C string and a place to write to.
    let status = unsafe { trtalloc::ffi::c::trtalloc_create(c"driver=none".as_ptr(), &mut out) };
    assert_eq!((status, out.is_null()), (trtalloc_status::InvalidArgument, true));
    assert!(last_error().contains("trtalloc_create_from"), "{}", last_error());
}
