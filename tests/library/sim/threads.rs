//! Many threads with calls that fail: no thread hangs, and no memory is lost.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use trtalloc::driver::sim::Machine;
use trtalloc::driver::sim::model::capture::MODE_RELAXED;
use trtalloc::driver::sim::model::code::Result;

use crate::sim::{MIB, machine};

unsafe extern "C" fn destroyed(counter: *mut c_void) {
    // SAFETY: every test passes a counter that outlives its machine.
    unsafe { &*(counter as *const AtomicU32) }.fetch_add(1, SeqCst);
}

/// Repeats a call until no injected failure makes it fail.
fn retry<T>(mut call: impl FnMut() -> Result<T>) -> T {
    loop {
        match call() {
            Ok(value) => return value,
            Err(777) => continue,
            Err(error) => panic!("error {error}"),
        }
    }
}

/// Captures a graph with a user object, launches it, and destroys it.
fn graph(m: &Machine, s: usize, counter: &AtomicU32) {
    let data = std::ptr::from_ref(counter) as *mut c_void;
    retry(|| m.stream_begin_capture(s, MODE_RELAXED));
    let (_, graph) = retry(|| m.stream_capture_info(s)).unwrap();
    // SAFETY: the counter outlives the machine.
    retry(|| unsafe { m.graph_retain_user_object(graph, destroyed, data) });
    retry(|| m.launch(s, 100, &[]));
    let graph = retry(|| m.stream_end_capture(s));
    let exec = retry(|| m.graph_instantiate(graph));
    retry(|| m.graph_launch(exec, s));
    retry(|| m.graph_destroy(graph));
    retry(|| m.graph_exec_destroy(exec));
}

fn work(m: &Machine, context: usize, rounds: u64, counter: &AtomicU32) {
    retry(|| m.context_push(context));
    retry(|| m.exchange_capture_mode(MODE_RELAXED));
    let event = retry(|| m.event_create());
    for round in 0..rounds {
        let s = retry(|| m.stream_create(round % 2 == 0));
        let size = 2 * MIB * (1 + round % 3);
        let at = retry(|| m.memory_reserve(size, 0));
        let handle = retry(|| m.memory_create(0, size));
        retry(|| m.memory_map(at, size, 0, handle));
        retry(|| m.memory_set_access(at, size, &[0], true));
        retry(|| m.memory_release(handle));
        m.checker().hand_out(at, size, Some(s));
        retry(|| m.launch(s, 1_000, &[(at, size)]));
        retry(|| m.launch(2, 1_000, &[(at, 512)]));
        m.checker().used(at, 2);
        m.checker().give_back(at, Some(s));
        if round % 8 == 0 {
            graph(m, s, counter);
        }
        retry(|| m.event_record(event, 2));
        retry(|| m.stream_wait_event(s, event));
        retry(|| m.event_record(event, s));
        retry(|| m.stream_destroy(s));
        retry(|| m.event_synchronize(event));
        retry(|| m.memory_unmap(at, size));
        retry(|| m.memory_unreserve(at, size));
    }
}

#[test]
fn failing_calls_on_many_threads_lose_nothing() {
    let counter = AtomicU32::new(0);
    let m = machine();
    let context = m.context_current().unwrap();
    m.fail_every(None, 17, 777);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| work(&m, context, 400, &counter));
        }
    });
    m.clear_failures();
    assert!(m.failures_struck() > 1000);
    m.context_synchronize().unwrap();
    m.drain_user_objects();
    assert_eq!(counter.load(SeqCst), 200);
    assert_eq!(m.checker().violations(), Vec::<String>::new());
    assert_eq!(m.faults(), Vec::<String>::new());
    assert_eq!(m.memory_info(0), Ok((24 << 30, 24 << 30)));
    assert_eq!((m.checker().live_blocks(), m.checker().tracked_ranges()), (0, 0));
}

#[test]
fn failed_call_changes_nothing() {
    let counter = AtomicU32::new(0);
    let m = machine();
    let context = m.context_current().unwrap();
    let before = m.calls_made();
    work(&m, context, 1, &counter);
    let calls = m.calls_made() - before;
    assert!(calls > 15);
    for n in 1..=calls {
        let struck = m.failures_struck();
        m.fail_nth(None, n, 777);
        work(&m, context, 1, &counter);
        assert_eq!(m.failures_struck(), struck + 1, "call {n}");
    }
    assert_eq!(m.memory_info(0), Ok((24 << 30, 24 << 30)));
}
