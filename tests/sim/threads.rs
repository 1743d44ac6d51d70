//! Many threads at once, with calls that fail: nothing hangs, nothing is lost.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use trtalloc::driver::sim::Machine;
use trtalloc::driver::sim::model::capture::MODE_RELAXED;
use trtalloc::driver::sim::model::code::Result;

use crate::{MIB, machine};

unsafe extern "C" fn destroyed(counter: *mut c_void) {
    // SAFETY: every test passes a counter that outlives its machine.
    unsafe { &*(counter as *const AtomicU32) }.fetch_add(1, SeqCst);
}

/// Tries until an injected failure does not strike.
fn insist<T>(mut call: impl FnMut() -> Result<T>) -> T {
    loop {
        match call() {
            Ok(value) => return value,
            Err(777) => continue,
            Err(error) => panic!("error {error}"),
        }
    }
}

/// One capture with a user object, launched, and gone again.
fn graph(m: &Machine, s: usize, counter: &AtomicU32) {
    let data = std::ptr::from_ref(counter) as *mut c_void;
    insist(|| m.stream_begin_capture(s, MODE_RELAXED));
    let (_, graph) = insist(|| m.stream_capture_info(s)).unwrap();
    // SAFETY: the counter outlives the machine.
    insist(|| unsafe { m.graph_retain_user_object(graph, destroyed, data) });
    insist(|| m.launch(s, 100, &[]));
    let graph = insist(|| m.stream_end_capture(s));
    let exec = insist(|| m.graph_instantiate(graph));
    insist(|| m.graph_launch(exec, s));
    insist(|| m.graph_destroy(graph));
    insist(|| m.graph_exec_destroy(exec));
}

fn work(m: &Machine, context: usize, rounds: u64, counter: &AtomicU32) {
    insist(|| m.context_push(context));
    insist(|| m.exchange_capture_mode(MODE_RELAXED));
    let event = insist(|| m.event_create());
    for round in 0..rounds {
        let s = insist(|| m.stream_create(round % 2 == 0));
        let size = 2 * MIB * (1 + round % 3);
        let at = insist(|| m.memory_reserve(size, 0));
        let handle = insist(|| m.memory_create(0, size));
        insist(|| m.memory_map(at, size, 0, handle));
        insist(|| m.memory_set_access(at, size, &[0], true));
        insist(|| m.memory_release(handle));
        m.checker().hand_out(at, size, Some(s));
        insist(|| m.launch(s, 1_000, &[(at, size)]));
        insist(|| m.launch(2, 1_000, &[(at, 512)]));
        m.checker().used(at, 2);
        m.checker().give_back(at, Some(s));
        if round % 8 == 0 {
            graph(m, s, counter);
        }
        insist(|| m.event_record(event, 2));
        insist(|| m.stream_wait_event(s, event));
        insist(|| m.event_record(event, s));
        insist(|| m.stream_destroy(s));
        insist(|| m.event_synchronize(event));
        insist(|| m.memory_unmap(at, size));
        insist(|| m.memory_unreserve(at, size));
    }
}

#[test]
fn many_threads_at_once() {
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
    assert_eq!((m.checker().live_blocks(), m.checker().ranges_kept()), (0, 0));
}

#[test]
fn a_failure_before_each_call_in_turn_changes_nothing() {
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
