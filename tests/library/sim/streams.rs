use std::time::{Duration, Instant};

use trtalloc::driver::sim::model::code::*;
use trtalloc::driver::sim::{Latencies, SimConfig};

use crate::sim::{MIB, aborts, in_child, machine, machine_with};

#[test]
fn work_completes_after_its_duration() {
    let m = machine();
    let s = m.stream_create(true).unwrap();
    let event = m.event_create().unwrap();
    assert!(m.event_query(event).unwrap(), "never recorded");
    let start = m.now();
    m.launch(s, 1_000_000, &[]).unwrap();
    m.launch(s, 1_000_000, &[]).unwrap();
    m.event_record(event, s).unwrap();
    assert!(!m.event_query(event).unwrap());
    assert!(!m.stream_query(s).unwrap());
    m.advance(1_500_000);
    assert!(!m.event_query(event).unwrap());
    m.advance(600_000);
    assert!(m.event_query(event).unwrap());
    assert!(m.stream_query(s).unwrap());
    assert!(m.now() < start + 2_200_000);
    m.launch(s, 5_000_000, &[]).unwrap();
    m.stream_synchronize(s).unwrap();
    assert!(m.now() >= start + 7_100_000, "a wait moves the clock");
}

#[test]
fn a_loop_of_queries_ends() {
    let m = machine();
    let s = m.stream_create(true).unwrap();
    let event = m.event_create().unwrap();
    m.launch(s, 100_000, &[]).unwrap();
    m.event_record(event, s).unwrap();
    let mut asked = 0;
    while !m.event_query(event).unwrap() {
        asked += 1;
        assert!(asked < 10_000);
    }
    assert!(asked > 10);
}

#[test]
fn latency_is_settable() {
    let m = machine();
    assert!(!m.set_latency("cuNothing", 1));
    assert!(m.set_latency("cuMemCreate", 193_000));
    let before = m.now();
    m.memory_create(0, 2 * MIB).unwrap();
    assert_eq!(m.now() - before, 193_000);
    let s = m.stream_create(true).unwrap();
    let before = m.now();
    m.stream_id(s).unwrap();
    assert_eq!(m.now(), before, "queries cost nothing at first");
    assert!(m.set_latency("cuStreamGetId", 70));
    m.stream_id(s).unwrap();
    assert_eq!(m.now(), before + 70);
}

#[test]
fn latency_passes_on_the_host_if_it_is_wanted() {
    let m = machine();
    let time = Duration::from_millis(3);
    for call in ["cuMemCreate", "cuStreamGetId"] {
        assert!(m.set_latency(call, time.as_nanos() as u64));
    }
    m.spend_host_time(true);
    let s = m.stream_create(true).unwrap();
    let (begun, before) = (Instant::now(), m.now());
    m.memory_create(0, 2 * MIB).unwrap();
    assert!(begun.elapsed() >= time);
    m.stream_id(s).unwrap();
    assert!(begun.elapsed() >= 2 * time);
    assert_eq!(m.now() - before, 2 * time.as_nanos() as u64);
    // Half a minute passes on the machine's clock alone.
    m.spend_host_time(false);
    assert!(m.set_latency("cuMemCreate", 30_000_000_000));
    let begun = Instant::now();
    m.memory_create(0, 2 * MIB).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn memory_calls_take_as_long_as_published_for_an_a100() {
    let m = machine_with(SimConfig {
        latencies: Latencies::A100,
        ..SimConfig::default()
    });
    let time = |call: &dyn Fn() -> u64| {
        let before = m.now();
        let result = call();
        (result, m.now() - before)
    };
    let address = m.memory_reserve(2 * MIB, 0).unwrap();
    let (handle, created) = time(&|| m.memory_create(0, 2 * MIB).unwrap());
    let steps: [(&dyn Fn() -> u64, u64); 6] = [
        (&|| m.memory_map(address, 2 * MIB, 0, handle).map_or(1, |()| 0), 1_500),
        (
            &|| m.memory_set_access(address, 2 * MIB, &[0], true).map_or(1, |()| 0),
            36_000,
        ),
        (&|| m.memory_unmap(address, 2 * MIB).map_or(1, |()| 0), 26_000),
        (&|| m.memory_release(handle).map_or(1, |()| 0), 10_000),
        (
            &|| m.memory_malloc(512).map_or(1, |at| m.memory_free(at).map_or(1, |()| 0)),
            270_000,
        ),
        (&|| m.stream_create(true).map_or(1, |_| 0), 200),
    ];
    assert_eq!(created, 30_000);
    for (at, (call, expected)) in steps.into_iter().enumerate() {
        assert_eq!(time(call), (0, expected), "step {at}");
    }
}

#[test]
fn work_ends_is_known_without_a_wait() {
    let m = machine();
    let s = m.stream_create(true).unwrap();
    assert_eq!(m.work_ends(s).unwrap(), m.now());
    m.launch(s, 1_000_000, &[]).unwrap();
    let begun = m.now();
    m.launch(s, 500, &[]).unwrap();
    assert_eq!(m.work_ends(s).unwrap(), begun + 1_000_500);
    assert!(!m.stream_query(s).unwrap());
    let waits = m.launch_persistent(s, &[]).unwrap();
    assert_eq!(m.work_ends(s).unwrap(), u64::MAX);
    assert!(m.release_persistent(waits));
}

#[test]
fn memory_used_counts_handles_and_allocations() {
    let m = machine();
    assert_eq!(m.memory_used(0).unwrap(), 0);
    let handle = m.memory_create(0, 2 * MIB).unwrap();
    let block = m.memory_malloc(512).unwrap();
    m.others_hold(0, MIB).unwrap();
    assert_eq!(m.memory_used(0).unwrap(), 2 * MIB + 512);
    m.memory_release(handle).unwrap();
    m.memory_free(block).unwrap();
    assert_eq!(m.memory_used(0).unwrap(), 0);
}

#[test]
fn waits_order_streams() {
    let m = machine();
    let (a, b) = (m.stream_create(true).unwrap(), m.stream_create(true).unwrap());
    let event = m.event_create().unwrap();
    m.launch(a, 1_000_000, &[]).unwrap();
    m.event_record(event, a).unwrap();
    m.stream_wait_event(b, event).unwrap();
    m.launch(b, 10, &[]).unwrap();
    assert!(!m.stream_query(b).unwrap());
    let before = m.now();
    m.stream_synchronize(b).unwrap();
    assert!(m.now() - before > 900_000);
    // A later record does not change an earlier wait.
    m.launch(a, 1_000_000, &[]).unwrap();
    m.event_record(event, a).unwrap();
    assert!(m.stream_query(b).unwrap());
}

#[test]
fn persistent_kernel_ends_when_released() {
    let m = machine();
    let (a, b) = (m.stream_create(true).unwrap(), m.stream_create(true).unwrap());
    let (first, second) = (m.event_create().unwrap(), m.event_create().unwrap());
    let kernel = m.launch_persistent(a, &[]).unwrap();
    m.launch(a, 1_000, &[]).unwrap();
    m.event_record(first, a).unwrap();
    m.stream_wait_event(b, first).unwrap();
    m.launch(b, 1_000, &[]).unwrap();
    m.event_record(second, b).unwrap();
    m.advance(1 << 40);
    assert!(!m.event_query(second).unwrap());
    let before = m.now();
    assert!(!m.event_wait(second, 1_000_000).unwrap());
    assert!(m.now() - before >= 1_000_000, "the wait lasts the whole limit");
    assert!(m.release_persistent(kernel));
    assert!(!m.release_persistent(kernel));
    assert!(!m.stream_query(b).unwrap(), "the waiting work still has to run");
    m.advance(3_000);
    assert!(m.event_query(second).unwrap());

    let kernel = m.launch_persistent(a, &[]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            m.release_persistent(kernel);
        });
        m.stream_synchronize(a).unwrap();
    });
    assert!(m.stream_query(a).unwrap());
}

#[test]
fn legacy_stream_is_ordered_with_blocking_streams() {
    let m = machine();
    let (blocking, free) = (m.stream_create(false).unwrap(), m.stream_create(true).unwrap());
    m.launch(blocking, 1_000_000, &[]).unwrap();
    m.launch(free, 9_000_000, &[]).unwrap();
    m.launch(0, 1_000_000, &[]).unwrap();
    m.launch(blocking, 1_000_000, &[]).unwrap();
    let before = m.now();
    m.stream_synchronize(blocking).unwrap();
    let took = m.now() - before;
    assert!((2_990_000..3_010_000).contains(&took), "{took}");
    assert!(!m.stream_query(free).unwrap());
    assert!(m.stream_query(1).unwrap(), "CU_STREAM_LEGACY is the same");
    // The thread's own stream is a blocking stream.
    m.launch(2, 1_000_000, &[]).unwrap();
    assert!(!m.stream_query(0).unwrap());
}

#[test]
fn default_streams_belong_to_contexts_and_threads() {
    let m = machine();
    let (legacy, own) = (m.stream_id(0).unwrap(), m.stream_id(2).unwrap());
    assert_eq!(m.stream_id(1), Ok(legacy));
    assert_ne!(legacy, own);
    let context = m.context_current().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(m.stream_id(0), Err(INVALID_CONTEXT), "no context here");
            assert_eq!(m.launch(2, 1, &[]), Err(INVALID_CONTEXT));
            m.context_push(context).unwrap();
            assert_eq!(m.stream_id(0), Ok(legacy));
            m.launch(2, 1_000_000, &[]).unwrap();
            assert!(!m.stream_query(2).unwrap());
            assert_eq!(m.stream_id(2), Ok(own), "the id is the handle's");
        });
    });
    assert!(m.stream_query(2).unwrap(), "the other thread's stream is another one");
    let other = m.context_create(0).unwrap();
    m.launch(0, 1_000_000, &[]).unwrap();
    assert_eq!((m.stream_id(0), m.stream_id(2)), (Ok(legacy), Ok(own)));
    assert_eq!(m.stream_context(0), Ok(other));
    assert!(!m.stream_query(0).unwrap());
    assert_eq!(m.context_pop(), Ok(other));
    assert!(m.stream_query(2).unwrap());
    assert_eq!(m.stream_destroy(0), Err(INVALID_HANDLE));
}

#[test]
fn stream_handle_is_reused_while_its_work_is_pending() {
    let m = machine();
    let old = m.stream_create(true).unwrap();
    let id = m.stream_id(old).unwrap();
    let event = m.event_create().unwrap();
    m.launch(old, 1_000_000, &[]).unwrap();
    m.event_record(event, old).unwrap();
    m.stream_destroy(old).unwrap();
    let new = m.stream_create(true).unwrap();
    assert_eq!(new, old);
    assert_ne!(m.stream_id(new), Ok(id));
    assert!(m.stream_query(new).unwrap(), "the new stream has no work");
    assert!(!m.event_query(event).unwrap(), "the old stream's work continues");
    let all = m.event_create().unwrap();
    let context = m.context_current().unwrap();
    m.context_record_event(context, all).unwrap();
    assert!(!m.event_query(all).unwrap(), "a context event covers it");
    m.advance(1_000_000);
    assert!(m.event_query(event).unwrap());
    assert!(m.event_query(all).unwrap());
}

#[test]
fn context_synchronize_covers_all_streams_of_the_context() {
    let m = machine();
    let a = m.stream_create(true).unwrap();
    m.launch(a, 1_000_000, &[]).unwrap();
    m.stream_destroy(a).unwrap();
    let before = m.now();
    m.context_synchronize().unwrap();
    assert!(m.now() - before > 900_000);
    let b = m.stream_create(true).unwrap();
    m.launch(b, 1_000_000, &[]).unwrap();
    m.context_create(0).unwrap();
    let before = m.now();
    m.context_synchronize().unwrap();
    assert!(m.now() - before < 10_000, "it does not wait for another context");
}

macro_rules! dead_stream {
    ($($name:ident: $call:expr;)*) => {$(
        #[test]
        fn $name() {
            if in_child() {
                let m = machine();
                let s = m.stream_create(true).unwrap();
                let event = m.event_create().unwrap();
                m.stream_destroy(s).unwrap();
                let call: fn(&trtalloc::driver::sim::Machine, usize, usize) = $call;
                call(&m, s, event);
                return;
            }
            aborts(concat!("streams::", stringify!($name)), "was destroyed");
        }
    )*};
}

dead_stream! {
    dead_id: |m, s, _| { let _ = m.stream_id(s); };
    dead_context: |m, s, _| { let _ = m.stream_context(s); };
    dead_capturing: |m, s, _| { let _ = m.stream_is_capturing(s); };
    dead_info: |m, s, _| { let _ = m.stream_capture_info(s); };
    dead_query: |m, s, _| { let _ = m.stream_query(s); };
    dead_launch: |m, s, _| { let _ = m.launch(s, 1, &[]); };
    dead_record: |m, s, event| { let _ = m.event_record(event, s); };
    dead_wait: |m, s, event| { let _ = m.stream_wait_event(s, event); };
    dead_destroy: |m, s, _| { let _ = m.stream_destroy(s); };
}

#[test]
fn invalid_stream_handle_aborts() {
    if in_child() {
        let _ = machine().stream_id(0x1234_5678);
        return;
    }
    aborts("streams::invalid_stream_handle_aborts", "never a stream");
}

#[test]
fn reset_destroys_the_contexts_streams() {
    if in_child() {
        let m = machine();
        let s = m.stream_create(true).unwrap();
        m.primary_reset(0).unwrap();
        let _ = m.stream_id(s);
        return;
    }
    aborts("streams::reset_destroys_the_contexts_streams", "was destroyed");
}

#[test]
fn reset_frees_everything_and_keeps_the_handle() {
    let m = machine();
    let context = m.context_current().unwrap();
    let id = m.context_id(context).unwrap();
    let event = m.event_create().unwrap();
    let plain = m.memory_malloc(MIB).unwrap();
    let (_, handle) = crate::sim::mapped(&m, 2 * MIB);
    m.launch_persistent(0, &[]).unwrap();
    m.primary_reset(0).unwrap();
    assert!(!m.primary_active(0).unwrap());
    assert_eq!(m.context_current(), Ok(context), "the stack keeps it");
    assert_eq!(m.context_id(context), Err(CONTEXT_IS_DESTROYED));
    assert_eq!(m.stream_id(0), Err(CONTEXT_IS_DESTROYED));
    assert_eq!(m.event_create(), Err(CONTEXT_IS_DESTROYED));
    assert_eq!(m.context_push(context), Err(CONTEXT_IS_DESTROYED));
    assert_eq!(m.memory_info(0), Ok((24 << 30, 24 << 30)));
    assert_eq!(m.primary_retain(0), Ok(context));
    assert_ne!(m.context_id(context), Ok(id));
    assert!(m.stream_query(0).unwrap(), "its work is gone");
    assert_eq!(m.event_query(event), Err(INVALID_HANDLE));
    assert_eq!(m.memory_free(plain), Err(INVALID_VALUE));
    assert_eq!(m.memory_release(handle), Err(INVALID_VALUE));
    m.context_synchronize().unwrap();
    m.primary_release(0).unwrap();
    assert!(m.primary_active(0).unwrap());
    m.primary_release(0).unwrap();
    assert!(!m.primary_active(0).unwrap());
    assert_eq!(m.primary_release(0), Err(INVALID_CONTEXT));
}

#[test]
fn other_contexts_are_independent_of_the_primary() {
    let m = machine_with(SimConfig {
        devices: 2,
        ..SimConfig::default()
    });
    let primary = m.context_current().unwrap();
    let other = m.context_create(1).unwrap();
    assert_eq!(m.context_current(), Ok(other));
    assert_eq!(m.context_current_device(), Ok(1));
    assert_ne!(m.context_id(primary), m.context_id(other));
    let s = m.stream_create(true).unwrap();
    assert_eq!(m.stream_context(s), Ok(other));
    let event = m.event_create().unwrap();
    m.context_pop().unwrap();
    let mine = m.stream_create(true).unwrap();
    assert_eq!(
        m.event_record(event, mine),
        Err(INVALID_HANDLE),
        "another context's event"
    );
    assert_eq!(m.context_record_event(primary, event), Err(INVALID_HANDLE));
    m.event_record(event, s).unwrap();
    m.stream_wait_event(mine, event).unwrap();
    assert_eq!(m.context_destroy(primary), Err(INVALID_CONTEXT));
    m.context_destroy(other).unwrap();
    assert_eq!(m.context_push(other), Err(INVALID_CONTEXT));
    assert_eq!(m.context_destroy(other), Err(INVALID_CONTEXT));
    assert_eq!(m.event_query(event), Err(INVALID_HANDLE));
    m.context_set_current(0).unwrap();
    assert_eq!(m.context_current(), Ok(0));
    assert_eq!(m.context_current_device(), Err(INVALID_CONTEXT));
    assert_eq!(m.context_pop(), Err(INVALID_CONTEXT));
    assert_eq!(m.context_push(0x77), Err(INVALID_CONTEXT));
}

#[test]
fn destroyed_events_are_refused() {
    let m = machine();
    let event = m.event_create().unwrap();
    m.event_destroy(event).unwrap();
    assert_eq!(m.event_destroy(event), Err(INVALID_HANDLE));
    assert_eq!(m.event_query(event), Err(INVALID_HANDLE));
    assert_eq!(m.event_record(event, 0), Err(INVALID_HANDLE));
    assert_eq!(m.stream_wait_event(0, event), Err(INVALID_HANDLE));
    assert_eq!(m.event_create(), Ok(event), "the handle is reused");
    assert_eq!(m.event_query(event), Ok(true));
}

#[test]
fn context_handle_is_reused_once_on_no_stack() {
    let m = machine_with(SimConfig {
        devices: 2,
        ..SimConfig::default()
    });
    let first = m.context_create(0).unwrap();
    let id = m.context_id(first).unwrap();
    let event = m.event_create().unwrap();
    // Below the top of this thread's stack.
    m.context_push(first).unwrap();
    m.context_destroy(first).unwrap();
    let second = m.context_create(0).unwrap();
    assert_ne!(second, first, "the context is on a stack");
    assert_eq!((m.context_pop(), m.context_pop()), (Ok(second), Ok(first)));
    let third = m.context_create(1).unwrap();
    assert_eq!(third, first);
    assert_ne!(m.context_id(third), Ok(id));
    assert_eq!(m.context_device(third), Ok(1));
    assert_eq!(m.event_query(event), Err(INVALID_HANDLE));
    let born = m.stream_create(true).unwrap();
    assert_eq!(m.stream_context(born), Ok(third));
    assert_eq!(m.event_create(), Ok(event));
    m.event_record(event, born).unwrap();
    m.event_synchronize(event).unwrap();
}

#[test]
fn older_drivers_lack_functions() {
    let m = machine_with(SimConfig {
        version: 11_020,
        ..SimConfig::default()
    });
    let context = m.context_current().unwrap();
    let event = m.event_create().unwrap();
    assert_eq!(m.stream_id(0), Err(NOT_SUPPORTED));
    assert_eq!(m.context_id(context), Err(NOT_SUPPORTED));
    assert_eq!(m.context_record_event(context, event), Err(NOT_SUPPORTED));
}

#[test]
fn full_queue_makes_launches_wait() {
    let m = machine();
    let s = m.stream_create(true).unwrap();
    let before = m.now();
    for _ in 0..3000 {
        m.launch(s, 1_000_000, &[]).unwrap();
    }
    assert!(m.now() - before > 1_900_000_000);
    assert!(!m.stream_query(s).unwrap());
}
