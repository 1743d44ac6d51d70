//! Histories that do not fit, as a viewer is told of them.

use super::consistent::replayable;
use crate::record::event::{Action, Event};
use crate::record::state::{Device, Piece, PieceState, Segment};

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

fn told(pieces: &[Piece], events: &[Event]) -> Vec<(Action, u64, u64)> {
    let device = Device {
        segments: vec![Segment {
            address: 100,
            size: 100,
            expandable: true,
            pieces: pieces.to_vec(),
        }],
        ..Device::default()
    };
    let (events, left_out) = replayable(&device, events);
    assert_eq!(left_out, 0);
    events
        .iter()
        .map(|event| (event.action, event.address, event.size))
        .collect()
}

#[test]
fn a_block_that_nobody_told_of_came_after_its_memory() {
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
        // Reaches into both; what lies in neither, at 190, was there before.
        (Action::Alloc, 140, 50),
        (Action::FreeRequested, 140, 50),
        (Action::Alloc, 100, 40),
    ];
    assert_eq!(told(&pieces, &events), expected);
}

#[test]
fn what_is_pending_is_handed_out_in_the_history_or_at_its_beginning() {
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
    assert_eq!(told(&pieces, &events), expected);
    assert_eq!(told(&pieces, &[]), []);
}

#[test]
fn a_block_that_nobody_told_of_came_after_what_lay_in_its_place() {
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
    assert_eq!(told(&pieces, &events), expected);
}

#[test]
fn a_block_whose_beginning_nobody_told_came_after_what_lay_in_its_place() {
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
    assert_eq!(told(&nothing, &events), expected);
}

#[test]
fn pending_blocks_that_became_one_were_freed_and_are_one() {
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
    assert_eq!(told(&pieces, &events)[4..], since);
}

#[test]
fn memory_that_was_unmapped_is_mapped_apart_from_what_is_there() {
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
    assert_eq!(told(&nothing, &events), expected);
}

#[test]
fn what_a_graph_leaves_is_free_from_then_on() {
    let nothing = [piece(100, 100, PieceState::Inactive)];
    let events = [
        Event::new(Action::Alloc, 0, 100, 10),
        Event::new(Action::FreeRequested, 0, 100, 10),
        Event::new(Action::FreeRequested, 0, 110, 20),
        Event::new(Action::FreeRequested, 0, 150, 20),
        Event::new(Action::Settled, 0, 100, 50),
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
        // What nobody told of is over at the end.
        (Action::FreeCompleted, 150, 20),
    ];
    assert_eq!(told(&nothing, &events), expected);
}

/// Inside a capture, what it freed serves again, however it was cut before.
#[test]
fn what_is_handed_out_lies_where_nothing_else_is() {
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
        // What of it is left.
        (Action::Alloc, 100, 5),
        (Action::FreeRequested, 100, 5),
    ];
    assert_eq!(told(&pieces, &events), expected);
}
