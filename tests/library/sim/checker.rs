use trtalloc::driver::sim::model::capture::MODE_GLOBAL;
use trtalloc::driver::sim::{Machine, SimConfig};

use crate::sim::{MIB, machine, machine_with, mapped};

pub const SIZE: u64 = 64 * 1024;

/// The only violation. Checks that there is one, and no fault.
pub fn violation(m: &Machine) -> String {
    let found = m.checker().violations();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(m.faults().is_empty(), "{:?}", m.faults());
    found[0].clone()
}

pub fn clean(m: &Machine) {
    assert_eq!(m.checker().violations(), Vec::<String>::new());
    assert_eq!(m.faults(), Vec::<String>::new());
}

/// A machine, some memory, and three streams.
pub fn scene() -> (std::sync::Arc<Machine>, u64, [usize; 3]) {
    let m = machine();
    let (at, _) = mapped(&m, 8 * MIB);
    let streams = std::array::from_fn(|_| m.stream_create(true).unwrap());
    (m, at, streams)
}

/// Hands out a block, uses it in a kernel on `s`, and gives it back there.
pub fn used_on(m: &Machine, at: u64, s: usize) {
    m.checker().hand_out(at, SIZE, Some(s));
    m.launch(s, 1_000_000, &[(at, SIZE)]).unwrap();
    m.checker().give_back(at, Some(s));
}

#[test]
fn reuse_on_the_same_stream_is_allowed() {
    let (m, at, [s, ..]) = scene();
    for _ in 0..10 {
        used_on(&m, at, s);
    }
    m.checker().hand_out(at + 512, SIZE, Some(s));
    clean(&m);
    assert_eq!(m.checker().live_blocks(), 1);
}

#[test]
fn reuse_on_another_stream_is_a_violation() {
    let (m, at, [s, t, _]) = scene();
    used_on(&m, at, s);
    m.checker().hand_out(at + SIZE - 256, SIZE, Some(t));
    let text = violation(&m);
    for part in [
        format!("handed out on stream {}", m.stream_id(t).unwrap()),
        format!("on stream {}", m.stream_id(s).unwrap()),
        "operation 1".into(),
        "block 1".into(),
        "given back on".into(),
    ] {
        assert!(text.contains(&part), "{part} in {text}");
    }
}

#[test]
fn neighbouring_bytes_are_independent() {
    let (m, at, [s, t, _]) = scene();
    used_on(&m, at, s);
    m.checker().hand_out(at + SIZE, SIZE, Some(t));
    clean(&m);
}

#[test]
fn completed_but_unobserved_work_is_a_violation() {
    let (m, at, [s, t, _]) = scene();
    used_on(&m, at, s);
    m.advance(1 << 30);
    m.checker().hand_out(at, SIZE, Some(t));
    violation(&m);
}

#[test]
fn reuse_after_observed_completion_is_allowed() {
    for way in 0..5 {
        let (m, at, [s, t, u]) = scene();
        let (event, later) = (m.event_create().unwrap(), m.event_create().unwrap());
        used_on(&m, at, s);
        m.event_record(event, s).unwrap();
        m.stream_wait_event(u, event).unwrap();
        m.event_record(later, u).unwrap();
        match way {
            0 => m.stream_synchronize(s).unwrap(),
            1 => m.event_synchronize(event).unwrap(),
            2 => {
                m.advance(1 << 30);
                assert!(m.event_query(event).unwrap());
            }
            3 => m.context_synchronize().unwrap(),
            // Work that precedes completed work has completed.
            _ => assert!(m.event_wait(later, 1 << 30).unwrap()),
        }
        m.checker().hand_out(at, SIZE, Some(t));
        m.checker().give_back(at, Some(t));
        m.checker().hand_out(at, SIZE, None);
        clean(&m);
    }
}

#[test]
fn query_of_pending_work_observes_nothing() {
    let (m, at, [s, t, _]) = scene();
    let event = m.event_create().unwrap();
    used_on(&m, at, s);
    m.event_record(event, s).unwrap();
    assert!(!m.event_query(event).unwrap());
    m.advance(1 << 30);
    m.checker().hand_out(at, SIZE, Some(t));
    violation(&m);
}

#[test]
fn event_from_before_the_use_orders_nothing() {
    let (m, at, [s, t, _]) = scene();
    let event = m.event_create().unwrap();
    m.event_record(event, s).unwrap();
    used_on(&m, at, s);
    m.stream_wait_event(t, event).unwrap();
    m.event_synchronize(event).unwrap();
    m.checker().hand_out(at, SIZE, Some(t));
    violation(&m);
}

#[test]
fn waits_order_through_a_third_stream() {
    let (m, at, [s, t, u]) = scene();
    let event = m.event_create().unwrap();
    used_on(&m, at, s);
    m.event_record(event, s).unwrap();
    m.stream_wait_event(u, event).unwrap();
    m.event_record(event, u).unwrap();
    m.stream_wait_event(t, event).unwrap();
    m.checker().hand_out(at, SIZE, Some(t));
    m.launch(t, 10, &[(at, SIZE)]).unwrap();
    m.checker().give_back(at, Some(t));
    clean(&m);
    // But not for a caller without a stream, nor in the other direction.
    m.checker().hand_out(at, SIZE, Some(s));
    violation(&m);
}

#[test]
fn hand_out_without_stream_needs_observed_completion() {
    let (m, at, [s, ..]) = scene();
    used_on(&m, at, s);
    m.checker().hand_out(at, SIZE, None);
    violation(&m);
}

#[test]
fn free_without_stream_covers_all_streams() {
    let (m, at, [s, t, _]) = scene();
    m.checker().hand_out(at, SIZE, None);
    m.launch(s, 1_000_000, &[]).unwrap();
    m.checker().give_back(at, None);
    m.checker().hand_out(at, SIZE, Some(t));
    violation(&m);
    m.checker().clear_violations();
    m.checker().give_back(at, Some(t));
    let event = m.event_create().unwrap();
    m.context_record_event(m.context_current().unwrap(), event).unwrap();
    m.event_synchronize(event).unwrap();
    m.checker().hand_out(at, SIZE, None);
    clean(&m);
}

/// A thread's own stream that was never used has no queued work.
#[test]
fn unused_default_stream_has_no_pending_work() {
    let (m, at, [s, ..]) = scene();
    m.launch(s, 1_000_000, &[]).unwrap();
    m.checker().hand_out(at, SIZE, None);
    m.checker().give_back(at, Some(2));
    m.checker().hand_out(at, SIZE, None);
    clean(&m);
}

#[test]
fn free_without_stream_covers_other_contexts() {
    let (m, at, [_, t, _]) = scene();
    m.checker().hand_out(at, SIZE, None);
    m.context_create(0).unwrap();
    let far = m.stream_create(true).unwrap();
    m.launch(far, 1_000_000, &[]).unwrap();
    m.context_pop().unwrap();
    m.checker().give_back(at, None);
    m.context_synchronize().unwrap();
    m.checker().hand_out(at, SIZE, Some(t));
    violation(&m);
}

#[test]
fn legacy_stream_orders_blocking_streams() {
    let (m, at, [free, ..]) = scene();
    let (a, b) = (m.stream_create(false).unwrap(), m.stream_create(false).unwrap());
    used_on(&m, at, a);
    m.checker().hand_out(at, SIZE, Some(0));
    m.launch(0, 1_000, &[(at, SIZE)]).unwrap();
    m.checker().give_back(at, Some(0));
    m.checker().hand_out(at, SIZE, Some(b));
    m.launch(b, 1_000, &[(at, SIZE)]).unwrap();
    m.checker().give_back(at, Some(b));
    clean(&m);
    m.checker().hand_out(at, SIZE, Some(a));
    violation(&m);
    m.checker().clear_violations();
    m.checker().give_back(at, Some(a));
    m.checker().hand_out(at, SIZE, Some(free));
    violation(&m);
}

#[test]
fn reused_stream_handle_is_another_stream() {
    let (m, at, [s, ..]) = scene();
    used_on(&m, at, s);
    m.stream_destroy(s).unwrap();
    let new = m.stream_create(true).unwrap();
    assert_eq!(new, s);
    m.checker().hand_out(at, SIZE, Some(new));
    let text = violation(&m);
    assert!(text.contains("(destroyed)"), "{text}");
}

#[test]
fn free_on_a_destroyed_stream_counts_for_that_stream() {
    let (m, at, [s, t, _]) = scene();
    m.checker().hand_out(at, SIZE, Some(s));
    m.launch(s, 1_000_000, &[(at, SIZE)]).unwrap();
    m.stream_destroy(s).unwrap();
    m.checker().give_back(at, Some(s));
    m.checker().hand_out(at, SIZE, Some(t));
    violation(&m);
}

#[test]
fn overlapping_blocks_are_a_violation() {
    let (m, at, [s, ..]) = scene();
    m.checker().hand_out(at, SIZE, Some(s));
    m.checker().hand_out(at + SIZE - 1, SIZE, Some(s));
    let text = violation(&m);
    assert!(
        text.contains("overlaps a live block") && text.contains("block 1"),
        "{text}"
    );
}

#[test]
fn overlapping_blocks_at_two_addresses_are_a_violation() {
    let (m, _, [s, ..]) = scene();
    let (one, handle) = mapped(&m, 2 * MIB);
    let two = mapped_at(&m, handle, one);
    m.checker().hand_out(one, SIZE, Some(s));
    m.checker().hand_out(two + 4096, SIZE, Some(s));
    assert!(violation(&m).contains("overlaps a live block"));
}

/// Maps `handle` at an address other than `not`.
pub fn mapped_at(m: &Machine, handle: u64, not: u64) -> u64 {
    let at = m.memory_reserve(2 * MIB, 0).unwrap();
    m.memory_map(at, 2 * MIB, 0, handle).unwrap();
    m.memory_set_access(at, 2 * MIB, &[0], true).unwrap();
    assert_ne!(at, not);
    at
}

#[test]
fn reuse_through_another_mapping_is_checked() {
    let (m, _, [s, t, _]) = scene();
    let (one, handle) = mapped(&m, 2 * MIB);
    used_on(&m, one, s);
    let two = mapped_at(&m, handle, one);
    m.checker().hand_out(two, SIZE, Some(t));
    violation(&m);
}

#[test]
fn hand_out_of_unmapped_memory_is_a_violation() {
    let (m, at, [s, ..]) = scene();
    m.checker().hand_out(at + 8 * MIB - 512, 1024, Some(s));
    assert!(violation(&m).contains("not all mapped"));
}

#[test]
fn double_free_is_a_violation() {
    let (m, at, [s, ..]) = scene();
    m.checker().hand_out(at, SIZE, Some(s));
    m.checker().give_back(at, Some(s));
    m.checker().give_back(at, Some(s));
    assert!(violation(&m).contains("is not handed out"));
}

#[test]
fn declared_use_is_checked() {
    let (m, at, [s, t, u]) = scene();
    m.checker().hand_out(at, SIZE, Some(s));
    m.launch(t, 1_000_000, &[]).unwrap();
    m.checker().used(at, t);
    m.checker().give_back(at, Some(s));
    m.checker().hand_out(at, SIZE, Some(s));
    violation(&m);
    m.checker().clear_violations();
    m.stream_synchronize(t).unwrap();
    m.checker().give_back(at, Some(s));
    m.checker().hand_out(at, SIZE, Some(u));
    clean(&m);
}

#[test]
fn memory_of_a_capture_belongs_to_its_graph() {
    let (m, at, [s, t, _]) = scene();
    m.stream_begin_capture(s, MODE_GLOBAL).unwrap();
    m.checker().hand_out(at, SIZE, Some(s));
    m.launch(s, 1_000, &[(at, SIZE)]).unwrap();
    m.checker().give_back(at, Some(s));
    m.checker().hand_out(at, SIZE, Some(s));
    m.checker().give_back(at, Some(s));
    let graph = m.stream_end_capture(s).unwrap();
    clean(&m);
    let exec = m.graph_instantiate(graph).unwrap();
    m.graph_destroy(graph).unwrap();
    for taker in [Some(s), Some(t), None] {
        m.checker().hand_out(at, SIZE, taker);
        assert!(violation(&m).contains("in capture"));
        m.checker().clear_violations();
        m.checker().give_back(at, taker);
    }
    m.graph_launch(exec, t).unwrap();
    m.graph_exec_destroy(exec).unwrap();
    m.checker().hand_out(at, SIZE, Some(s));
    violation(&m);
    m.checker().clear_violations();
    m.checker().give_back(at, Some(s));
    m.context_synchronize().unwrap();
    m.checker().hand_out(at, SIZE, None);
    clean(&m);
}

#[test]
fn streams_in_a_capture_are_ordered_as_outside() {
    let (m, at, [s, t, _]) = scene();
    let event = m.event_create().unwrap();
    m.stream_begin_capture(s, MODE_GLOBAL).unwrap();
    m.event_record(event, s).unwrap();
    m.stream_wait_event(t, event).unwrap();
    used_on(&m, at, s);
    m.checker().hand_out(at, SIZE, Some(t));
    violation(&m);
    m.checker().clear_violations();
    m.checker().give_back(at, Some(t));
    used_on(&m, at + SIZE, s);
    m.event_record(event, s).unwrap();
    m.stream_wait_event(t, event).unwrap();
    m.checker().hand_out(at + SIZE, SIZE, Some(t));
    clean(&m);
}

#[test]
fn capture_may_reuse_only_completed_memory() {
    let (m, at, [s, ..]) = scene();
    used_on(&m, at, s);
    m.stream_begin_capture(s, MODE_GLOBAL).unwrap();
    m.checker().hand_out(at, SIZE, Some(s));
    violation(&m);
}

#[test]
fn disabled_checker_reports_nothing() {
    let m = machine_with(SimConfig {
        checker: false,
        ..SimConfig::default()
    });
    let (at, _) = mapped(&m, 2 * MIB);
    let (s, t) = (m.stream_create(true).unwrap(), m.stream_create(true).unwrap());
    assert!(!m.checker().is_on());
    used_on(&m, at, s);
    m.checker().hand_out(at, SIZE, Some(t));
    m.memory_unmap(at, 2 * MIB).unwrap();
    clean(&m);
    assert_eq!(m.checker().tracked_ranges(), 0);
    m.checker().switch(true);
    assert!(m.checker().is_on());
}

#[test]
fn history_does_not_pile_up() {
    let (m, at, streams) = scene();
    let event = m.event_create().unwrap();
    let mut seed = 1u64;
    let mut random = |n: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % n
    };
    for round in 0..20_000u64 {
        let s = streams[random(3) as usize];
        let place = at + random(16) * 256 * 1024 + random(4) * 512;
        let size = (1 + random(256)) * 512;
        m.checker().hand_out(place, size, Some(s));
        m.launch(s, random(5_000), &[(place, size)]).unwrap();
        m.checker().give_back(place, Some(s));
        m.event_record(event, s).unwrap();
        // Every stream waits for it, so the next hand-out may be on any of them.
        streams.iter().for_each(|&t| m.stream_wait_event(t, event).unwrap());
        if round % 1000 == 0 {
            m.event_synchronize(event).unwrap();
        }
    }
    clean(&m);
    assert!(m.checker().tracked_ranges() < 5_000, "{}", m.checker().tracked_ranges());
}
