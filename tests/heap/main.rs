//! What a pair costs of the host's heap: nothing, recorded or not, once everything is warm.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use trtalloc::allocator::{Allocator, Request};
use trtalloc::driver::Driver;
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::trace::application::Application;

struct Counting;

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
    /// Bytes taken and not given back, by this thread.
    static HELD: Cell<i64> = const { Cell::new(0) };
}

fn hold(bytes: usize, gone: usize) {
    let _ = HELD.try_with(|held| held.set(held.get() + bytes as i64 - gone as i64));
}

// SAFETY: the system's allocator, and a count that takes no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = TAKEN.try_with(|taken| taken.set(taken.get() + 1));
        hold(layout.size(), 0);
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        hold(0, layout.size());
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = TAKEN.try_with(|taken| taken.set(taken.get() + 1));
        hold(size, layout.size());
        // SAFETY: the caller's promises.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

const HISTORIES: [&str; 5] = [
    "off",
    "state,stacks=native",
    "all,max_entries=1000",
    "all,stacks=native,max_entries=1000",
    "all,stacks=all,context=alloc,max_entries=1000",
];

#[test]
fn a_pair_takes_none_of_it() {
    let driver = SimDriver::new(SimConfig {
        checker: false,
        ..SimConfig::default()
    });
    let application = Application::new(driver.clone(), 0).unwrap();
    let stream = application.create_stream().unwrap();
    let tag = trtalloc::tags::intern("engine").unwrap();
    for (tag, history) in [0, tag]
        .into_iter()
        .flat_map(|tag| HISTORIES.map(|history| (tag, history)))
    {
        let config = trtalloc::config::Config::parse("").unwrap();
        let allocator = Allocator::with_driver(driver.clone() as std::sync::Arc<dyn Driver>, config).unwrap();
        allocator.history(history).unwrap();
        let pairs = |count: u64| {
            for _ in 0..count {
                let blocks: [u64; 8] = std::array::from_fn(|of| {
                    let request = Request {
                        size: 512 << of,
                        alignment: 0,
                        flags: 0,
                        stream: Some(stream),
                        device: None,
                    };
                    allocator.allocate_for(&request, tag).unwrap()
                });
                for address in blocks {
                    allocator.deallocate(address, Some(stream)).unwrap();
                }
            }
        };
        // From one place, so that the second round has no stack that was not seen in the first.
        let taken: Vec<u64> = (0..2)
            .map(|_| {
                let before = TAKEN.get();
                pairs(1000);
                TAKEN.get() - before
            })
            .collect();
        assert_eq!(taken[1], 0, "{history}, tag {tag}");
        allocator.close();
    }
}

/// What streams leave that are gone: their caches are found without a lock and stay, with little in them. Streams that are not
/// known to be gone leave no more, once the pool gives up what it does not need.
#[test]
fn streams_that_are_gone_leave_little() {
    const STREAMS: usize = 1200;
    for released in [true, false] {
        let driver = SimDriver::new(SimConfig {
            checker: false,
            ..SimConfig::default()
        });
        let application = Application::new(driver.clone(), 0).unwrap();
        let streams: Vec<_> = (0..STREAMS).map(|_| application.create_stream().unwrap()).collect();
        let config = trtalloc::config::Config::parse("decay_ms=0").unwrap();
        let allocator = Allocator::with_driver(driver as std::sync::Arc<dyn Driver>, config).unwrap();
        let work = |stream| {
            let request = Request {
                size: 64 << 10,
                alignment: 0,
                flags: 0,
                stream: Some(stream),
                device: None,
            };
            allocator.allocate(request).unwrap()
        };
        let mut left = Vec::new();
        // The first half makes what as many streams at once share.
        for streams in streams.chunks(STREAMS / 2) {
            let before = HELD.get();
            let blocks: Vec<u64> = streams.iter().map(|stream| work(*stream)).collect();
            for (block, stream) in blocks.into_iter().zip(streams) {
                allocator.deallocate(block, Some(*stream)).unwrap();
            }
            for stream in streams.iter().filter(|_| released) {
                allocator.stream_release(*stream).unwrap();
            }
            for _ in 0..2 {
                allocator.trim(Some(0), 0).unwrap();
            }
            left.push((HELD.get() - before) / streams.len() as i64);
        }
        let most = if released { 1 << 10 } else { 2 << 10 };
        assert!(left[1] <= most, "{left:?} bytes for each stream");
        allocator.close();
    }
}
