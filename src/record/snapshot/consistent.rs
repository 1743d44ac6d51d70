//! Makes a history fit the state at its end.
//!
//! A viewer replays a history backwards from the final segments, and breaks on an event that cannot have happened: a free of
//! what is not live, a block outside of every segment. A ring forgets its oldest events, and may lose one in the middle; a
//! thread may be between taking a block and saying so; recording may have been off. So each address is followed through the
//! history, what must have happened is filled in, and what cannot have is left out.

use std::collections::HashMap;

use super::super::event::{Action, Event};
use super::super::state::{Device, Piece, PieceState};
use super::replay::replay;

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Is {
    Live,
    Pending,
    Gone,
}

/// Where one address is, as far as the history has been followed, with the event that said so.
pub(super) type Known = HashMap<u64, (Is, Event)>;

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

/// Follows one event; false where it cannot have happened.
fn follow(known: &mut Known, told: &mut Vec<Event>, event: Event) -> bool {
    let before = known.get(&event.address).map(|(is, by)| (*is, *by));
    let missing = |by: Event, action| Event {
        action,
        time: event.time,
        stack: 0,
        ..by
    };
    let is = match (event.action, before) {
        (Action::Alloc, before) => {
            match before {
                Some((Is::Live, by)) => {
                    told.push(missing(by, Action::FreeRequested));
                    told.push(missing(by, Action::FreeCompleted));
                }
                Some((Is::Pending, by)) => told.push(missing(by, Action::FreeCompleted)),
                _ => {}
            }
            Is::Live
        }
        // What the history has not seen yet was there before it.
        (Action::FreeRequested, None | Some((Is::Live, _))) => Is::Pending,
        (Action::FreeCompleted, None | Some((Is::Pending, _))) => Is::Gone,
        (Action::FreeCompleted, Some((Is::Live, by))) => {
            told.push(missing(by, Action::FreeRequested));
            Is::Gone
        }
        (Action::FreeRequested | Action::FreeCompleted, _) => return false,
        _ => {
            told.push(event);
            return true;
        }
    };
    // A block gives back what was asked for, whatever it was resized to meanwhile.
    let size = match before {
        Some((Is::Live | Is::Pending, by)) if event.action != Action::Alloc => by.size,
        _ => event.size,
    };
    let event = Event { size, ..event };
    known.insert(event.address, (is, event));
    told.push(event);
    true
}

/// What must have happened since for the state to be what it is: what is gone was freed, and then what is there handed out.
fn arrive(device: &Device, known: &Known, told: &mut Vec<Event>) {
    let pieces = device.segments.iter().flat_map(|segment| &segment.pieces);
    let last: HashMap<u64, &Piece> = pieces
        .filter(|piece| piece.state != PieceState::Inactive)
        .map(|piece| (piece.address, piece))
        .collect();
    let time = told.last().map_or(0, |event| event.time);
    let mut addresses: Vec<u64> = known.keys().copied().collect();
    addresses.sort_unstable();
    let mut after = Vec::new();
    for address in addresses {
        let (was, by) = known[&address];
        let piece = last.get(&address);
        let is = piece.map(|piece| piece.state);
        let possible = match was {
            Is::Live => is.is_some(),
            Is::Pending => is == Some(PieceState::Pending),
            Is::Gone => false,
        };
        let same = possible && piece.is_some_and(|piece| piece.requested == by.size);
        if !same {
            let freed = |action| Event {
                action,
                time,
                stack: 0,
                ..by
            };
            if was == Is::Live {
                told.push(freed(Action::FreeRequested));
            }
            if was != Is::Gone {
                told.push(freed(Action::FreeCompleted));
            }
        }
        let Some(piece) = piece else { continue };
        let [alloc, freed] = begun(device.device, piece, time);
        if !same {
            after.push(alloc);
        }
        if piece.state == PieceState::Pending && !(same && was == Is::Pending) {
            after.push(freed);
        }
    }
    told.append(&mut after);
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
