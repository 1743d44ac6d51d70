//! The checker and mappings that are made, removed and moved.

use crate::sim::checker::{SIZE, clean, mapped_at, scene, used_on, violation};
use crate::sim::{MIB, mapped};

#[test]
fn unmap_under_pending_work_is_a_fault() {
    let (m, at, [s, ..]) = scene();
    m.launch(s, 1_000_000, &[(at + 4 * MIB, SIZE)]).unwrap();
    m.memory_unmap(at, 8 * MIB).unwrap();
    let faults = m.faults();
    assert_eq!(faults.len(), 1);
    assert!(
        faults[0].contains("cuMemUnmap") && faults[0].contains("which is pending"),
        "{}",
        faults[0]
    );
    assert!(faults[0].contains(&format!("{:#x}", at + 4 * MIB)), "{}", faults[0]);
}

#[test]
fn unmap_under_unobserved_work_is_a_fault() {
    let (m, at, [s, ..]) = scene();
    m.launch(s, 1_000, &[(at, SIZE)]).unwrap();
    m.advance(1 << 30);
    m.memory_unmap(at, 8 * MIB).unwrap();
    assert!(m.faults()[0].contains("but was not observed"));
}

#[test]
fn unmap_after_observed_completion_is_no_fault() {
    let (m, at, [s, ..]) = scene();
    used_on(&m, at, s);
    m.stream_synchronize(s).unwrap();
    m.memory_unmap(at, 8 * MIB).unwrap();
    clean(&m);
}

#[test]
fn unmap_checks_only_the_unmapped_address() {
    let (m, _, [s, ..]) = scene();
    let (one, handle) = mapped(&m, 2 * MIB);
    let two = mapped_at(&m, handle, one);
    m.checker().hand_out(two, SIZE, Some(s));
    m.launch(s, 1_000_000, &[(two, SIZE)]).unwrap();
    m.memory_unmap(one, 2 * MIB).unwrap();
    clean(&m);
    m.memory_unmap(two, 2 * MIB).unwrap();
    assert_eq!(m.faults().len(), 2, "work, and a block that is out: {:?}", m.faults());
}

#[test]
fn growing_block_keeps_its_bytes_and_checks_new_ones() {
    let (m, at, [s, ..]) = scene();
    m.checker().hand_out(at, SIZE, Some(s));
    m.launch(s, 1_000_000, &[(at, SIZE)]).unwrap();
    m.checker().resize(at, at, 2 * SIZE);
    clean(&m);
    used_on(&m, at + 2 * SIZE, s);
    m.checker().resize(at, at, 3 * SIZE);
    violation(&m);
    m.checker().clear_violations();
    m.checker().hand_out(at + 3 * SIZE, SIZE, None);
    m.checker().resize(at, at, 4 * SIZE);
    assert!(violation(&m).contains("overlaps"));
}

/// A block that was handed out behind the work of the block before it, and that shrinks and grows again.
#[test]
fn block_grows_by_its_own_bytes_once_the_work_of_others_is_over() {
    let (m, at, [s, t, _]) = scene();
    let again = |own: bool| {
        m.checker().hand_out(at, 2 * SIZE, Some(s));
        if own {
            m.launch(t, 1_000_000, &[(at, 2 * SIZE)]).unwrap();
        }
        m.checker().resize(at, at, SIZE);
        m.checker().resize(at, at, 2 * SIZE);
        m.checker().give_back(at, Some(s));
    };
    used_on(&m, at, s);
    used_on(&m, at + SIZE, s);
    again(false);
    let wrong = violation(&m);
    assert!(wrong.contains("resized"), "{wrong}");
    m.checker().clear_violations();
    m.stream_synchronize(s).unwrap();
    again(true);
    clean(&m);
}

#[test]
fn moved_block_keeps_its_memory() {
    let (m, _, [s, t, _]) = scene();
    let (one, handle) = mapped(&m, 2 * MIB);
    m.checker().hand_out(one, SIZE, Some(s));
    m.launch(s, 1_000_000, &[(one, SIZE)]).unwrap();
    let two = mapped_at(&m, handle, one);
    m.checker().resize(one, two, 2 * SIZE);
    clean(&m);
    m.checker().give_back(two, Some(s));
    m.checker().hand_out(one, SIZE, Some(s));
    clean(&m);
    m.checker().give_back(one, Some(s));
    m.checker().hand_out(two, SIZE, Some(t));
    violation(&m);
}
