use std::sync::mpsc::channel;

use trtalloc::driver::sim::Machine;
use trtalloc::driver::sim::model::MachineConfig;
use trtalloc::driver::sim::model::capture::*;
use trtalloc::driver::sim::model::code::*;

use crate::sim::{MIB, machine, mapped};

/// Begins a capture on a new non-blocking stream.
fn capturing(m: &Machine, mode: u32) -> usize {
    let s = m.stream_create(true).unwrap();
    m.stream_begin_capture(s, mode).unwrap();
    s
}

/// Ends the capture on `s` and returns whether it was still valid.
fn survives(m: &Machine, s: usize) -> bool {
    match m.stream_end_capture(s) {
        Ok(graph) => {
            m.graph_destroy(graph).unwrap();
            true
        }
        Err(error) => {
            assert_eq!(error, CAPTURE_INVALIDATED);
            assert_eq!(m.stream_is_capturing(s), Ok(0), "the capture has ended");
            false
        }
    }
}

#[test]
fn capture_makes_a_graph_and_runs_nothing() {
    let m = machine();
    let (at, _) = mapped(&m, 2 * MIB);
    let s = m.stream_create(true).unwrap();
    assert_eq!(m.stream_capture_info(s), Ok(None));
    assert_eq!(m.stream_end_capture(s), Err(ILLEGAL_STATE));
    m.stream_begin_capture(s, MODE_GLOBAL).unwrap();
    assert_eq!(m.stream_begin_capture(s, MODE_GLOBAL), Err(ILLEGAL_STATE));
    let (id, graph) = m.stream_capture_info(s).unwrap().unwrap();
    m.fill_async(at, 5, 64, s).unwrap();
    m.launch(s, 1_000_000, &[(at, 64)]).unwrap();
    let mut seen = [0];
    m.read(at, &mut seen).unwrap();
    assert_eq!(seen, [0], "captured, not run");
    assert_eq!(m.graph_instantiate(graph), Err(ILLEGAL_STATE), "under construction");
    assert_eq!(m.stream_end_capture(s), Ok(graph));
    let exec = m.graph_instantiate(graph).unwrap();
    m.graph_launch(exec, s).unwrap();
    m.read(at, &mut seen).unwrap();
    assert_eq!(seen, [5]);
    let before = m.now();
    m.stream_synchronize(s).unwrap();
    assert!(m.now() - before > 900_000, "a launch takes its nodes' time");
    m.graph_destroy(graph).unwrap();
    m.graph_launch(exec, s).unwrap();
    m.graph_exec_destroy(exec).unwrap();
    assert_eq!(m.graph_launch(exec, s), Err(INVALID_VALUE));
    assert_eq!(m.graph_destroy(graph), Err(INVALID_VALUE));
    m.stream_begin_capture(s, MODE_GLOBAL).unwrap();
    assert_ne!(m.stream_capture_info(s).unwrap().unwrap().0, id);
    assert!(survives(&m, s));
    assert_eq!(
        m.stream_begin_capture(0, MODE_GLOBAL),
        Err(CAPTURE_UNSUPPORTED),
        "the legacy stream never"
    );
    m.stream_begin_capture(2, MODE_GLOBAL).unwrap();
    assert!(survives(&m, 2));
}

#[test]
fn streams_join_by_events_and_must_be_joined_back() {
    let m = machine();
    let (s, t) = (capturing(&m, MODE_GLOBAL), m.stream_create(true).unwrap());
    let event = m.event_create().unwrap();
    m.event_record(event, s).unwrap();
    m.stream_wait_event(t, event).unwrap();
    assert_eq!(m.stream_is_capturing(t), Ok(1));
    assert_eq!(m.stream_capture_info(t), m.stream_capture_info(s));
    m.launch(t, 1, &[]).unwrap();
    m.event_record(event, t).unwrap();
    m.stream_wait_event(s, event).unwrap();
    assert!(survives(&m, s));
    assert_eq!(m.stream_is_capturing(t), Ok(0));

    m.stream_begin_capture(s, MODE_GLOBAL).unwrap();
    m.event_record(event, s).unwrap();
    m.stream_wait_event(t, event).unwrap();
    m.launch(t, 1, &[]).unwrap();
    assert_eq!(m.stream_end_capture(t), Err(CAPTURE_UNMATCHED));
    assert!(!survives(&m, s));

    m.stream_begin_capture(s, MODE_GLOBAL).unwrap();
    m.event_record(event, s).unwrap();
    m.stream_wait_event(t, event).unwrap();
    m.launch(t, 1, &[]).unwrap();
    assert_eq!(m.stream_end_capture(s), Err(CAPTURE_UNJOINED));
    assert_eq!(m.stream_is_capturing(t), Ok(0));
}

#[test]
fn captured_events_refuse_queries() {
    let m = machine();
    let s = capturing(&m, MODE_RELAXED);
    let event = m.event_create().unwrap();
    m.event_record(event, s).unwrap();
    assert_eq!(m.event_query(event), Err(CAPTURED_EVENT));
    assert!(!survives(&m, s));
    assert_eq!(m.event_synchronize(event), Err(CAPTURED_EVENT), "also afterwards");
    assert_eq!(m.stream_wait_event(s, event), Err(CAPTURED_EVENT));
    m.event_record(event, s).unwrap();
    m.event_synchronize(event).unwrap();
}

#[test]
fn capture_refuses_to_wait_for_outside_events() {
    let m = machine();
    let t = m.stream_create(true).unwrap();
    let event = m.event_create().unwrap();
    m.event_record(event, t).unwrap();
    let s = capturing(&m, MODE_RELAXED);
    assert_eq!(m.stream_wait_event(s, event), Err(CAPTURE_ISOLATION));
    assert_eq!(m.stream_is_capturing(s), Ok(2));
    assert_eq!(m.stream_capture_info(s), Ok(None));
    assert_eq!(m.launch(s, 1, &[]), Err(CAPTURE_INVALIDATED));
    assert_eq!(m.event_record(event, s), Err(CAPTURE_INVALIDATED));
    assert!(!survives(&m, s));
}

#[test]
fn captures_do_not_merge() {
    let m = machine();
    let (s, t) = (capturing(&m, MODE_RELAXED), capturing(&m, MODE_RELAXED));
    let event = m.event_create().unwrap();
    m.event_record(event, s).unwrap();
    assert_eq!(m.stream_wait_event(t, event), Err(CAPTURE_MERGE));
    assert!(!survives(&m, s));
    assert!(!survives(&m, t));
}

#[test]
fn capturing_stream_refuses_to_synchronize() {
    let m = machine();
    let s = capturing(&m, MODE_RELAXED);
    assert_eq!(m.stream_query(s), Err(CAPTURE_UNSUPPORTED));
    assert!(!survives(&m, s));
    let s = capturing(&m, MODE_RELAXED);
    assert_eq!(m.stream_synchronize(s), Err(CAPTURE_UNSUPPORTED));
    assert!(!survives(&m, s));
}

#[test]
fn legacy_stream_invalidates_captures_of_blocking_streams() {
    let m = machine();
    let s = m.stream_create(false).unwrap();
    let event = m.event_create().unwrap();
    let works: [&dyn Fn() -> Result<()>; 5] = [
        &|| m.launch(0, 1, &[]),
        &|| m.event_record(event, 1),
        &|| m.stream_wait_event(0, event),
        &|| m.stream_query(0).map(drop),
        &|| m.stream_synchronize(0),
    ];
    for work in works {
        m.stream_begin_capture(s, MODE_RELAXED).unwrap();
        assert_eq!(m.stream_is_capturing(0), Err(CAPTURE_IMPLICIT));
        assert_eq!(m.stream_capture_info(0), Err(CAPTURE_IMPLICIT));
        assert_eq!(
            m.stream_is_capturing(s),
            Ok(1),
            "a query does not invalidate the capture"
        );
        assert_eq!(work(), Err(CAPTURE_IMPLICIT));
        assert!(!survives(&m, s));
        assert_eq!(m.stream_is_capturing(0), Ok(0));
    }
    // The legacy stream is not ordered with a non-blocking stream's capture, so neither affects the other.
    let s = capturing(&m, MODE_RELAXED);
    assert_eq!(m.stream_is_capturing(0), Ok(0));
    m.launch(0, 1, &[]).unwrap();
    assert!(survives(&m, s));
}

#[test]
fn context_wide_calls_invalidate_all_captures_on_the_device() {
    let m = machine();
    let context = m.context_current().unwrap();
    let event = m.event_create().unwrap();
    for mode in [MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED] {
        for relaxed in [false, true] {
            let s = capturing(&m, mode);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    m.context_push(context).unwrap();
                    if relaxed {
                        m.exchange_capture_mode(MODE_RELAXED).unwrap();
                    }
                    assert_eq!(m.context_record_event(context, event), Err(CAPTURE_UNSUPPORTED));
                });
            });
            assert!(!survives(&m, s));
            let s = capturing(&m, mode);
            assert_eq!(m.context_synchronize(), Err(CAPTURE_UNSUPPORTED));
            assert!(!survives(&m, s));
        }
    }
    m.context_record_event(context, event).unwrap();
    m.context_synchronize().unwrap();
}

#[test]
fn capture_modes_forbid_unsafe_calls() {
    let m = machine();
    let context = m.context_current().unwrap();
    let event = m.event_create().unwrap();
    let calls: [(&str, &(dyn Fn() -> bool + Sync)); 5] = [
        ("malloc", &|| m.memory_malloc(1).is_ok()),
        ("event query", &|| m.event_query(event).is_ok()),
        ("create", &|| m.memory_create(0, 2 * MIB).is_ok()),
        ("reserve", &|| m.memory_reserve(2 * MIB, 0).is_ok()),
        ("host malloc", &|| m.memory_host_malloc(1).is_ok()),
    ];
    for (name, call) in calls {
        for capture in [MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED] {
            for mode in [MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED] {
                // The capturing thread.
                let s = capturing(&m, capture);
                m.exchange_capture_mode(mode).unwrap();
                let allowed = mode == MODE_RELAXED || capture == MODE_RELAXED;
                assert_eq!(call(), allowed, "{name} in capture mode {capture}, thread mode {mode}");
                m.exchange_capture_mode(MODE_GLOBAL).unwrap();
                assert_eq!(survives(&m, s), allowed);
                // Another thread.
                let s = capturing(&m, capture);
                let allowed = mode != MODE_GLOBAL || capture != MODE_GLOBAL;
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        m.context_push(context).unwrap();
                        assert_eq!(m.exchange_capture_mode(mode), Ok(MODE_GLOBAL));
                        assert_eq!(
                            call(),
                            allowed,
                            "{name} on another thread, capture mode {capture}, thread mode {mode}"
                        );
                    });
                });
                assert_eq!(survives(&m, s), allowed);
            }
        }
    }
}

#[test]
fn safe_calls_invalidate_no_capture() {
    let m = machine();
    let s = capturing(&m, MODE_GLOBAL);
    let t = m.stream_create(true).unwrap();
    let event = m.event_create().unwrap();
    m.stream_capture_info(s).unwrap();
    m.launch(t, 1, &[]).unwrap();
    m.event_record(event, t).unwrap();
    m.event_destroy(event).unwrap();
    m.memory_info(0).unwrap();
    assert!(survives(&m, s));
}

#[test]
fn capture_ends_on_the_thread_that_began_it() {
    let m = machine();
    let context = m.context_current().unwrap();
    for (mode, allowed) in [(MODE_GLOBAL, false), (MODE_THREAD_LOCAL, false), (MODE_RELAXED, true)] {
        let s = capturing(&m, mode);
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                m.context_push(context).unwrap();
                sender.send(m.stream_end_capture(s)).unwrap();
            });
        });
        let ended = receiver.recv().unwrap();
        assert_eq!(ended.is_ok(), allowed);
        if !allowed {
            assert_eq!(ended, Err(CAPTURE_WRONG_THREAD));
            assert!(!survives(&m, s));
        }
    }
}

#[test]
fn destroying_a_capturing_stream_ends_its_capture() {
    let m = machine();
    let (s, t) = (capturing(&m, MODE_GLOBAL), m.stream_create(true).unwrap());
    let event = m.event_create().unwrap();
    m.event_record(event, s).unwrap();
    m.stream_wait_event(t, event).unwrap();
    m.stream_destroy(t).unwrap();
    assert!(!survives(&m, s));
    m.stream_begin_capture(s, MODE_GLOBAL).unwrap();
    m.stream_destroy(s).unwrap();
    m.memory_malloc(1).unwrap();
    let again = m.stream_create(true).unwrap();
    assert_eq!(again, s);
    assert_eq!(m.stream_is_capturing(again), Ok(0));
}

/// A thread's own default stream is a blocking stream, and the legacy stream joins no capture.
#[test]
fn default_streams_capture_like_blocking_streams() {
    let m = machine();
    m.stream_begin_capture(2, MODE_RELAXED).unwrap();
    assert_eq!(m.stream_is_capturing(1), Err(CAPTURE_IMPLICIT));
    assert_eq!(m.launch(0, 1, &[]), Err(CAPTURE_IMPLICIT));
    assert!(!survives(&m, 2));
    let (s, event) = (capturing(&m, MODE_RELAXED), m.event_create().unwrap());
    m.event_record(event, s).unwrap();
    assert_eq!(m.stream_wait_event(0, event), Err(CAPTURE_IMPLICIT));
    assert!(!survives(&m, s));
}

#[test]
fn invalid_capture_refuses_joins() {
    let m = machine();
    let (s, t) = (m.stream_create(true).unwrap(), m.stream_create(true).unwrap());
    m.stream_begin_capture(s, MODE_RELAXED).unwrap();
    let empty = m.stream_end_capture(s).unwrap();
    let exec = m.graph_instantiate(empty).unwrap();
    let event = m.event_create().unwrap();
    m.stream_begin_capture(s, MODE_RELAXED).unwrap();
    m.event_record(event, s).unwrap();
    assert_eq!(m.stream_query(s), Err(CAPTURE_UNSUPPORTED));
    assert_eq!(m.graph_launch(exec, s), Err(CAPTURE_INVALIDATED));
    assert_eq!(m.stream_wait_event(t, event), Err(CAPTURE_INVALIDATED));
    assert_eq!(m.stream_is_capturing(t), Ok(0));
    assert_eq!(m.stream_begin_capture(s, MODE_RELAXED), Err(ILLEGAL_STATE));
    assert!(!survives(&m, s));
    m.stream_begin_capture(s, MODE_RELAXED).unwrap();
    assert!(survives(&m, s));
}

/// The end of a context ends its captures, and invalidates captures that its streams have joined.
#[test]
fn context_destruction_ends_its_captures() {
    let m = machine();
    let s = capturing(&m, MODE_RELAXED);
    let event = m.event_create().unwrap();
    m.event_record(event, s).unwrap();
    let context = m.context_create(0).unwrap();
    let t = m.stream_create(true).unwrap();
    m.stream_wait_event(t, event).unwrap();
    assert_eq!(m.stream_is_capturing(t), Ok(1));
    m.context_destroy(context).unwrap();
    assert!(!survives(&m, s));
    m.context_synchronize().unwrap();
}

/// Ids and contexts: CUDA refuses them for a stream that captures, in every mode, and ends the capture.
#[test]
fn identity_of_a_capturing_stream_is_refused() {
    let m = machine();
    let context = m.context_current().unwrap();
    for mode in [MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED] {
        for relaxed in [false, true] {
            m.exchange_capture_mode(if relaxed { MODE_RELAXED } else { MODE_GLOBAL })
                .unwrap();
            let s = capturing(&m, mode);
            assert_eq!(m.stream_id(s), Err(CAPTURE_UNSUPPORTED));
            assert!(!survives(&m, s));
            let s = capturing(&m, mode);
            assert_eq!(m.stream_context(s), Err(CAPTURE_UNSUPPORTED));
            assert!(!survives(&m, s));
            // Another stream and a context are as other unsafe calls.
            let (s, other) = (capturing(&m, mode), m.stream_create(true).unwrap());
            let allowed = relaxed || mode == MODE_RELAXED;
            assert_eq!(m.stream_id(other).is_ok(), allowed);
            assert_eq!(survives(&m, s), allowed);
            let s = capturing(&m, mode);
            assert_eq!(m.context_id(context).is_ok(), allowed);
            assert_eq!(survives(&m, s), allowed);
        }
    }
    m.exchange_capture_mode(MODE_GLOBAL).unwrap();
    let blocking = m.stream_create(false).unwrap();
    m.stream_begin_capture(blocking, MODE_RELAXED).unwrap();
    assert_eq!(m.stream_id(0), Err(CAPTURE_IMPLICIT));
    assert!(!survives(&m, blocking));
}

/// A driver may as well allow them.
#[test]
fn identity_may_be_allowed() {
    let m = Machine::new(MachineConfig {
        ids_unsafe_in_capture: false,
        ..MachineConfig::default()
    });
    let context = m.primary_retain(0).unwrap();
    m.context_push(context).unwrap();
    let s = capturing(&m, MODE_GLOBAL);
    assert!(m.stream_id(s).is_ok() && m.stream_context(s) == Ok(context) && m.context_id(context).is_ok());
    assert!(survives(&m, s));
}
