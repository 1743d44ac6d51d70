//! `retry_ms`: a request that cannot be met waits for other threads to free blocks.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::{Bench, MIB};

#[test]
fn request_waits_for_another_thread_to_free_a_block() {
    let bench = Bench::new("limit=64MiB,wait_ms=0,retry_ms=60000");
    let block = bench.get(60 * MIB, None);
    let (requested, begun) = mpsc::channel();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            requested.send(()).unwrap();
            bench.request(60 * MIB, 0, None)
        });
        begun.recv().unwrap();
        thread::sleep(Duration::from_millis(30));
        bench.put(block, None);
        let block = waiting.join().unwrap().unwrap();
        bench.put(block, None);
    });
    assert!(bench.allocator.stats(Some(0)).unwrap().out_of_memory <= 1);
    bench.finish();
}

#[test]
fn request_is_refused_once_the_time_is_over() {
    let bench = Bench::new("limit=64MiB,wait_ms=0,retry_ms=50");
    let block = bench.get(60 * MIB, None);
    let begun = Instant::now();
    assert!(bench.request(60 * MIB, 0, None).is_err());
    assert!(begun.elapsed() >= Duration::from_millis(50));
    assert_eq!(
        bench.allocator.stats(Some(0)).unwrap().out_of_memory,
        1,
        "one request was refused"
    );
    bench.put(block, None);
    bench.finish();
}

#[test]
fn request_beyond_the_limit_or_the_device_does_not_wait() {
    let bench = Bench::new("limit=64MiB,wait_ms=0,retry_ms=600000");
    assert!(bench.request(65 * MIB, 0, None).is_err());
    bench.finish();
    let bench = Bench::new("wait_ms=0,retry_ms=600000");
    assert!(bench.request(2 << 30, 0, None).is_err(), "the device has 1 GiB");
    bench.finish();
}
