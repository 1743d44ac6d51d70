//! Inconsistent histories, and what a viewer gets of them.

use super::consistent::replayable;
use crate::history::event::{Action, Event};
use crate::history::state::{DeviceState, Piece, PieceState, Segment};

#[test]
fn every_suffix_of_the_options_has_a_format() {
    for suffix in crate::support::config::SNAPSHOT_SUFFIXES {
        assert!(super::Format::of_suffix(suffix).is_some(), "{suffix}");
    }
}

fn piece(address: u64, size: u64, state: PieceState) -> Piece {
    Piece {
        address,
        size,
        requested: size,
        state,
        stack: 0,
        tag: 0,
    }
}

fn replayed(pieces: &[Piece], events: &[Event]) -> Vec<(Action, u64, u64)> {
    let device = DeviceState {
        segments: vec![Segment {
            address: 100,
            size: 100,
            expandable: true,
            pieces: pieces.to_vec(),
        }],
        ..DeviceState::default()
    };
    let (events, left_out) = replayable(&device, events);
    assert_eq!(left_out, 0);
    events
        .iter()
        .map(|event| (event.action, event.address, event.size))
        .collect()
}

#[test]
fn an_unrecorded_allocation_comes_after_its_memory_is_mapped() {
    let pieces = [
        piece(100, 40, PieceState::Allocated),
        piece(140, 50, PieceState::Pending),
        piece(190, 10, PieceState::Allocated),
    ];
    let events = [
        Event::new(Action::SegmentMap, 0, 100, 50),
        Event::new(Action::Alloc, 0, 100, 20),
        Event::new(Action::Freed, 0, 100, 20),
        Event::new(Action::SegmentMap, 0, 150, 40),
    ];
    let expected = [
        (Action::SegmentMap, 100, 50),
        (Action::Alloc, 100, 20),
        (Action::FreeRequested, 100, 20),
        (Action::FreeCompleted, 100, 20),
        (Action::SegmentMap, 150, 40),
        // It reaches into both segments. The block at 190 is in neither: it was there before the history.
        (Action::Alloc, 140, 50),
        (Action::FreeRequested, 140, 50),
        (Action::Alloc, 100, 40),
    ];
    assert_eq!(replayed(&pieces, &events), expected);
}

#[test]
fn a_pending_block_is_allocated_in_the_history_or_at_its_beginning() {
    let pieces = [
        piece(100, 10, PieceState::Pending),
        piece(110, 20, PieceState::Pending),
        piece(130, 30, PieceState::Pending),
        piece(160, 40, PieceState::Allocated),
    ];
    let events = [
        Event::new(Action::FreeCompleted, 0, 130, 5),
        Event::new(Action::Alloc, 0, 130, 30),
        Event::new(Action::FreeRequested, 0, 110, 20),
        Event::new(Action::FreeRequested, 0, 130, 30),
    ];
    let expected = [
        (Action::Alloc, 110, 20),
        (Action::Alloc, 100, 10),
        (Action::FreeRequested, 100, 10),
        (Action::FreeCompleted, 130, 5),
        (Action::Alloc, 130, 30),
        (Action::FreeRequested, 110, 20),
        (Action::FreeRequested, 130, 30),
    ];
    assert_eq!(replayed(&pieces, &events), expected);
    assert_eq!(replayed(&pieces, &[]), []);
}

#[test]
fn an_unrecorded_allocation_comes_after_frees_of_its_range() {
    let pieces = [
        piece(100, 60, PieceState::Allocated),
        piece(160, 40, PieceState::Inactive),
    ];
    let events = [
        Event::new(Action::Alloc, 0, 120, 10),
        Event::new(Action::Freed, 0, 120, 10),
        Event::new(Action::Alloc, 0, 140, 30),
    ];
    let expected = [
        (Action::Alloc, 120, 10),
        (Action::FreeRequested, 120, 10),
        (Action::FreeCompleted, 120, 10),
        (Action::Alloc, 140, 30),
        (Action::FreeRequested, 140, 30),
        (Action::FreeCompleted, 140, 30),
        (Action::Alloc, 100, 60),
    ];
    assert_eq!(replayed(&pieces, &events), expected);
}

#[test]
fn a_freed_block_without_allocation_is_allocated_after_frees_of_its_range() {
    let nothing = [piece(100, 100, PieceState::Inactive)];
    let events = [
        Event::new(Action::Freed, 0, 140, 10),
        Event::new(Action::Freed, 0, 130, 40),
    ];
    let expected = [
        (Action::FreeRequested, 140, 10),
        (Action::FreeCompleted, 140, 10),
        (Action::Alloc, 130, 40),
        (Action::FreeRequested, 130, 40),
        (Action::FreeCompleted, 130, 40),
    ];
    assert_eq!(replayed(&nothing, &events), expected);
}

#[test]
fn merged_pending_blocks_are_freed_and_allocated_as_one() {
    let pieces = [
        piece(100, 30, PieceState::Pending),
        piece(130, 70, PieceState::Inactive),
    ];
    let events = [
        Event::new(Action::Alloc, 0, 100, 10),
        Event::new(Action::Alloc, 0, 110, 20),
        Event::new(Action::FreeRequested, 0, 100, 10),
        Event::new(Action::FreeRequested, 0, 110, 20),
    ];
    let since = [
        (Action::FreeCompleted, 100, 10),
        (Action::FreeCompleted, 110, 20),
        (Action::Alloc, 100, 30),
        (Action::FreeRequested, 100, 30),
    ];
    assert_eq!(replayed(&pieces, &events)[4..], since);
}

#[test]
fn memory_unmapped_later_is_mapped_by_an_event_of_its_own() {
    let nothing = [piece(100, 100, PieceState::Inactive)];
    let events = [
        Event::new(Action::SegmentMap, 0, 100, 120),
        Event::new(Action::SegmentUnmap, 0, 200, 20),
    ];
    let expected = [
        (Action::SegmentMap, 100, 100),
        (Action::SegmentMap, 200, 20),
        (Action::SegmentUnmap, 200, 20),
    ];
    assert_eq!(replayed(&nothing, &events), expected);
}

#[test]
fn a_completed_range_frees_its_pending_blocks() {
    let nothing = [piece(100, 100, PieceState::Inactive)];
    let events = [
        Event::new(Action::Alloc, 0, 100, 10),
        Event::new(Action::FreeRequested, 0, 100, 10),
        Event::new(Action::FreeRequested, 0, 110, 20),
        Event::new(Action::FreeRequested, 0, 150, 20),
        Event::new(Action::RangeCompleted, 0, 100, 50),
        Event::new(Action::Alloc, 0, 120, 10),
        Event::new(Action::Freed, 0, 120, 10),
    ];
    let expected = [
        (Action::Alloc, 100, 10),
        (Action::FreeRequested, 100, 10),
        (Action::FreeRequested, 110, 20),
        (Action::FreeRequested, 150, 20),
        (Action::FreeCompleted, 110, 20),
        (Action::FreeCompleted, 100, 10),
        (Action::Alloc, 120, 10),
        (Action::FreeRequested, 120, 10),
        (Action::FreeCompleted, 120, 10),
        // The history ends before this free completes, and the state has it free.
        (Action::FreeCompleted, 150, 20),
    ];
    assert_eq!(replayed(&nothing, &events), expected);
}

/// A capture reuses what it freed, cut differently.
#[test]
fn an_allocation_frees_overlapping_pending_blocks_first() {
    let pieces = [
        piece(100, 5, PieceState::Pending),
        piece(105, 35, PieceState::Allocated),
        piece(140, 60, PieceState::Inactive),
    ];
    let events = [
        Event::new(Action::Alloc, 0, 100, 10),
        Event::new(Action::FreeRequested, 0, 100, 10),
        Event::new(Action::Alloc, 0, 120, 20),
        Event::new(Action::Alloc, 0, 105, 35),
    ];
    let expected = [
        (Action::Alloc, 100, 10),
        (Action::FreeRequested, 100, 10),
        (Action::Alloc, 120, 20),
        (Action::FreeRequested, 120, 20),
        (Action::FreeCompleted, 120, 20),
        (Action::FreeCompleted, 100, 10),
        (Action::Alloc, 105, 35),
        // The rest of the pending block.
        (Action::Alloc, 100, 5),
        (Action::FreeRequested, 100, 5),
    ];
    assert_eq!(replayed(&pieces, &events), expected);
}
