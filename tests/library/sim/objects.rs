use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use trtalloc::driver::sim::Machine;
use trtalloc::driver::sim::model::capture::MODE_GLOBAL;
use trtalloc::driver::sim::model::code::*;

use crate::sim::{aborts, in_child, machine};

unsafe extern "C" fn count(data: *mut c_void) {
    // SAFETY: every test passes a counter that outlives its machine.
    unsafe { &*(data as *const AtomicU32) }.fetch_add(1, SeqCst);
}

fn retain(m: &Machine, graph: usize, counter: &AtomicU32) {
    let data = std::ptr::from_ref(counter) as *mut c_void;
    // SAFETY: the counter outlives the machine in every test.
    unsafe { m.graph_retain_user_object(graph, count, data) }.unwrap();
}

/// A graph captured with a counter tied to it.
fn graph_with(m: &Machine, s: usize, counter: &AtomicU32) -> usize {
    m.stream_begin_capture(s, MODE_GLOBAL).unwrap();
    let (_, graph) = m.stream_capture_info(s).unwrap().unwrap();
    retain(m, graph, counter);
    m.launch(s, 1_000_000, &[]).unwrap();
    m.stream_end_capture(s).unwrap()
}

#[test]
fn destructor_waits_for_graph_executables_and_launches() {
    let counter = AtomicU32::new(0);
    let m = machine();
    let s = m.stream_create(true).unwrap();
    let graph = graph_with(&m, s, &counter);
    let exec = m.graph_instantiate(graph).unwrap();
    m.graph_destroy(graph).unwrap();
    m.drain_user_objects();
    assert_eq!(counter.load(SeqCst), 0, "an executable exists");
    m.graph_launch(exec, s).unwrap();
    m.graph_exec_destroy(exec).unwrap();
    m.drain_user_objects();
    assert_eq!(counter.load(SeqCst), 0, "a launch is running");
    m.stream_synchronize(s).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(counter.load(SeqCst), 0, "it runs after the delay");
    m.drain_user_objects();
    assert_eq!(counter.load(SeqCst), 1);
    m.drain_user_objects();
    assert_eq!(counter.load(SeqCst), 1, "once");
}

#[test]
fn destructor_runs_after_the_delay() {
    let counter = AtomicU32::new(0);
    let m = machine();
    let s = m.stream_create(true).unwrap();
    let graph = graph_with(&m, s, &counter);
    m.graph_destroy(graph).unwrap();
    m.advance(1_000_000);
    for _ in 0..1000 {
        if counter.load(SeqCst) == 1 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("it never ran");
}

#[test]
fn failed_capture_releases_its_objects() {
    let counter = AtomicU32::new(0);
    let m = machine();
    let s = m.stream_create(true).unwrap();
    m.stream_begin_capture(s, MODE_GLOBAL).unwrap();
    let (_, graph) = m.stream_capture_info(s).unwrap().unwrap();
    retain(&m, graph, &counter);
    assert!(m.memory_malloc(1).is_err());
    assert_eq!(m.stream_end_capture(s), Err(CAPTURE_INVALIDATED));
    m.drain_user_objects();
    assert_eq!(counter.load(SeqCst), 1);
    let data = std::ptr::from_ref(&counter) as *mut c_void;
    // SAFETY: as in `retain`.
    assert_eq!(
        unsafe { m.graph_retain_user_object(graph, count, data) },
        Err(INVALID_VALUE)
    );
}

#[test]
fn machine_drops_with_objects_left() {
    let counter = AtomicU32::new(0);
    let m = machine();
    let s = m.stream_create(true).unwrap();
    graph_with(&m, s, &counter);
    drop(m);
    assert_eq!(counter.load(SeqCst), 0);
}

unsafe extern "C" fn call_the_driver(data: *mut c_void) {
    // SAFETY: the only test that uses this passes its machine.
    let _ = unsafe { &*(data as *const Machine) }.stream_id(0);
}

#[test]
fn driver_call_in_a_destructor_aborts() {
    if in_child() {
        let m = machine();
        let s = m.stream_create(true).unwrap();
        m.stream_begin_capture(s, MODE_GLOBAL).unwrap();
        let (_, graph) = m.stream_capture_info(s).unwrap().unwrap();
        let data = std::sync::Arc::as_ptr(&m) as *mut c_void;
        // SAFETY: the machine outlives the callback, which ends the process.
        unsafe { m.graph_retain_user_object(graph, call_the_driver, data) }.unwrap();
        let graph = m.stream_end_capture(s).unwrap();
        m.graph_destroy(graph).unwrap();
        m.drain_user_objects();
        return;
    }
    aborts(
        "objects::driver_call_in_a_destructor_aborts",
        "inside a user object's destructor",
    );
}

/// A captured launch embeds the graph. The embedded graph retains the user objects of the first.
#[test]
fn embedded_graph_retains_user_objects() {
    let counter = AtomicU32::new(0);
    let m = machine();
    let s = m.stream_create(true).unwrap();
    let inner = graph_with(&m, s, &counter);
    let exec = m.graph_instantiate(inner).unwrap();
    m.stream_begin_capture(s, MODE_GLOBAL).unwrap();
    m.graph_launch(exec, s).unwrap();
    let outer = m.stream_end_capture(s).unwrap();
    m.graph_destroy(inner).unwrap();
    m.graph_exec_destroy(exec).unwrap();
    m.drain_user_objects();
    assert_eq!(counter.load(SeqCst), 0, "the outer graph exists");
    let exec = m.graph_instantiate(outer).unwrap();
    m.graph_destroy(outer).unwrap();
    m.graph_launch(exec, s).unwrap();
    m.drain_user_objects();
    assert_eq!(counter.load(SeqCst), 0, "its executable exists");
    m.graph_exec_destroy(exec).unwrap();
    m.stream_synchronize(s).unwrap();
    m.drain_user_objects();
    assert_eq!(counter.load(SeqCst), 1);
}
