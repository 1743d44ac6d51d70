//! Makes a history fit the state at its end.
//!
//! A viewer replays a history backwards from the final segments, and breaks on an event that cannot have happened: a free of
//! what is not live, a block outside of every segment. A ring forgets its oldest events, and may lose one in the middle; a
//! thread may be between taking a block and saying so; recording may have been off. So each address is followed through the
//! history, what must have happened is filled in, and what cannot have is left out.

use std::collections::{BTreeMap, HashSet};

use super::super::event::{Action, Event};
use super::super::state::{Device, Piece, PieceState};
use super::replay::replay;

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Is {
    Live,
    Pending,
}

/// The blocks that are there as far as the history has been followed, by address, with the event that said so.
type Known = BTreeMap<u64, (Is, Event)>;

/// The events of `device`, in order, as a viewer can replay them to the device's state; [`Action::Freed`] as its two parts.
/// With them, how many had to be left out.
pub(super) fn replayable(device: &Device, events: &[Event]) -> (Vec<Event>, u64) {
    let mut known = Known::new();
    let mut told = Vec::with_capacity(events.len() * 3 / 2);
    let mut left_out = 0;
    for event in events.iter().filter(|event| event.device == device.device) {
        let parts: &[Action] = match event.action {
            Action::Freed => &[Action::FreeRequested, Action::FreeCompleted],
            _ => std::slice::from_ref(&event.action),
        };
        for action in parts {
            let event = Event {
                action: *action,
                ..*event
            };
            left_out += u64::from(!follow(&mut known, &mut told, event));
        }
    }
    arrive(device, &known, &mut told);
    left_out += replay(device, &mut told);
    (told, left_out)
}

/// An event at the time of `at` that nobody told of, of the block that `by` told of last.
fn missing(by: Event, action: Action, at: &Event) -> Event {
    Event {
        action,
        time: at.time,
        stack: 0,
        ..by
    }
}

/// What of `kinds` lies in the range of `event` was free by then.
fn clear(known: &mut Known, told: &mut Vec<Event>, event: &Event, kinds: &[Is]) {
    let end = event.address.saturating_add(event.size);
    while let Some((address, (is, by))) = known.range(..end).next_back().map(|(address, of)| (*address, *of))
        && address + by.size > event.address
        && kinds.contains(&is)
    {
        if is == Is::Live {
            told.push(missing(by, Action::FreeRequested, event));
        }
        told.push(missing(by, Action::FreeCompleted, event));
        known.remove(&address);
    }
}

/// Follows one event; false where it cannot have happened.
fn follow(known: &mut Known, told: &mut Vec<Event>, event: Event) -> bool {
    let before = known.get(&event.address).copied();
    // A block gives back what was asked for, whatever it was resized to meanwhile.
    let freed = Event {
        size: before.map_or(event.size, |(_, by)| by.size),
        ..event
    };
    // What lies in the place of a block is gone, whoever told of it: of one that is new here, or was there before the history.
    let comes = event.action == Action::Alloc;
    if comes || before.is_none() && matches!(event.action, Action::FreeRequested | Action::FreeCompleted) {
        clear(known, told, &event, &[Is::Live, Is::Pending]);
    }
    match (event.action, before) {
        (Action::Settled, _) => clear(known, told, &event, &[Is::Pending]),
        (Action::Alloc, _) => {
            known.insert(event.address, (Is::Live, event));
            told.push(event);
        }
        (Action::FreeRequested, Some((Is::Pending, _))) => return false,
        (Action::FreeRequested, _) => {
            known.insert(event.address, (Is::Pending, freed));
            told.push(freed);
        }
        (Action::FreeCompleted, _) => {
            if let Some((Is::Live, by)) = known.remove(&event.address) {
                told.push(missing(by, Action::FreeRequested, &event));
            }
            told.push(freed);
        }
        _ => told.push(event),
    }
    true
}

/// What must have happened since for the state to be what it is: what is gone was freed, and then what is there handed out,
/// where the history knows its place.
fn arrive(device: &Device, known: &Known, told: &mut Vec<Event>) {
    let Some(last) = told.last().copied() else { return };
    let completed = told.iter().filter(|event| event.action == Action::FreeCompleted);
    let places: HashSet<u64> = completed.map(|event| event.address).collect();
    let pieces = device.segments.iter().flat_map(|segment| &segment.pieces);
    let there: BTreeMap<u64, &Piece> = pieces
        .filter(|piece| piece.state != PieceState::Inactive)
        .map(|piece| (piece.address, piece))
        .collect();
    let stayed = |was: &(Is, Event), piece: &Piece| {
        let possible = was.0 == Is::Live || piece.state == PieceState::Pending;
        possible && piece.requested == was.1.size
    };
    for (address, was) in known {
        if !there.get(address).is_some_and(|piece| stayed(was, piece)) {
            if was.0 == Is::Live {
                told.push(missing(was.1, Action::FreeRequested, &last));
            }
            told.push(missing(was.1, Action::FreeCompleted, &last));
        }
    }
    for (address, piece) in there {
        let was = known.get(&address).filter(|was| stayed(was, piece));
        let [alloc, freed] = begun(device.device, piece, last.time);
        if was.is_none() {
            // Else it was there before the history.
            if !known.contains_key(&address) && !places.contains(&address) {
                continue;
            }
            told.push(alloc);
        }
        if piece.state == PieceState::Pending && was.is_none_or(|was| was.0 == Is::Live) {
            told.push(freed);
        }
    }
}

/// The events of a block that is there, and how is not known: it was handed out, and freed where it is pending.
pub(super) fn begun(device: i32, piece: &Piece, time: u64) -> [Event; 2] {
    let alloc = Event {
        stack: piece.stack,
        tag: piece.tag,
        time,
        ..Event::new(Action::Alloc, device, piece.address, piece.requested)
    };
    let freed = Event {
        action: Action::FreeRequested,
        ..alloc
    };
    [alloc, freed]
}
