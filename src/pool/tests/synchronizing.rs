//! The thread that synchronizes on drivers without context events, and frees that find their context reset.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Bench, MIB, RESIZABLE};
use crate::driver::sim::SimConfig;
use crate::support::error::Error;
use crate::sync::breaking;

/// An allocator over a driver of CUDA 12.4.
fn without_context_events(options: &str) -> Bench {
    let version = 12_040;
    Bench::on(
        SimConfig {
            version,
            ..SimConfig::default()
        },
        options,
    )
}

/// The signals of the application are for its own threads.
#[test]
fn thread_that_synchronizes_takes_no_signal() {
    let bench = without_context_events("limit=64MiB");
    let block = bench.get(60 * MIB, None);
    bench.put(block, None);
    let blocked = Arc::new(AtomicU64::new(0));
    let noted = blocked.clone();
    bench.machine.come_between("cuCtxSynchronize", 1, move |_| {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        noted.store(u64::from_str_radix(mask.trim(), 16).unwrap(), Relaxed);
    });
    let block = bench.get(50 * MIB, None);
    let blocked = blocked.load(Relaxed);
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGPROF, libc::SIGCHLD] {
        assert_ne!(blocked & 1 << (signal - 1), 0, "signal {signal}: {blocked:x}");
    }
    bench.put(block, None);
    bench.finish();
}

/// A synchronization has no time limit of its own. So none is made where no thread can be started for it.
#[test]
fn nothing_is_synchronized_without_a_thread() {
    for options in ["limit=64MiB", "limit=64MiB,backing=malloc"] {
        let bench = without_context_events(options);
        let (block, kept) = (
            bench.get(50 * MIB, None),
            bench.request(4 * MIB, RESIZABLE, None).unwrap(),
        );
        bench.put(block, None);
        breaking("a thread can be started", || {
            let refused = bench.request(40 * MIB, 0, None);
            assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{options}: {refused:?}");
            let refused = bench.resize(kept, 4 * MIB, 40 * MIB);
            assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{options}: {refused:?}");
            bench.allocator.trim(Some(0), 0).unwrap();
        });
        assert_eq!(bench.machine.count("cuCtxSynchronize"), 0, "{options}");
        // A later request synchronizes.
        let block = bench.get(40 * MIB, None);
        bench.put(block, None);
        bench.put(kept, None);
        bench.finish();
    }
}

/// A free may be the first call after the device was reset. Its events went with the context then, and their handles may be
/// the application's.
#[test]
fn free_after_a_reset_queries_no_event() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let blocks = [(); 2].map(|()| bench.get(64 * MIB, None));
    bench.launch(stream, blocks[0], 64 * MIB);
    // It goes back to the driver, so an event covers it at once.
    bench.put(blocks[0], None);
    bench.app(|machine| {
        machine.primary_reset(0).unwrap();
        // The application continues to use the device, on another thread.
        machine.primary_retain(0).unwrap();
        machine.context_pop().unwrap();
    });
    let before = bench.machine.count("cuEventQuery");
    bench.allocator.deallocate(blocks[1], None).unwrap();
    assert_eq!(bench.machine.count("cuEventQuery"), before);
    assert!(bench.request(MIB, 0, None).is_err());
    bench.allocator.close();
    assert_eq!(bench.machine.faults(), Vec::<String>::new());
}
