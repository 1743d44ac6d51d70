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

/// A history as far as it has been followed.
#[derive(Default)]
struct Course {
    told: Vec<Event>,
    /// The blocks that are there, by address: the place in `told` of the event that said so last, which is
    /// [`Action::Alloc`], or [`Action::FreeRequested`] where a block is pending.
    known: BTreeMap<u64, u64>,
    /// Events that cannot have happened.
    left_out: u64,
}

/// The events of `device`, in order, as a viewer can replay them to the device's state; [`Action::Freed`] as its two parts.
/// With them, how many had to be left out.
pub(super) fn replayable(device: &Device, events: &[Event]) -> (Vec<Event>, u64) {
    let mut course = Course {
        told: Vec::with_capacity(events.len() * 3 / 2),
        ..Course::default()
    };
    for event in events.iter().filter(|event| event.device == device.device) {
        let parts: &[Action] = match event.action {
            Action::Freed => &[Action::FreeRequested, Action::FreeCompleted],
            _ => std::slice::from_ref(&event.action),
        };
        for action in parts {
            course.follow(Event {
                action: *action,
                ..*event
            });
        }
    }
    course.arrive(device);
    let Course { mut told, left_out, .. } = course;
    let left_out = left_out + replay(device, &mut told);
    (told, left_out)
}

impl Course {
    /// What the block at `address` was told of last; none where none is there.
    fn at(&self, address: u64) -> Option<Event> {
        let place = self.known.get(&address)?;
        Some(self.told[*place as usize])
    }

    /// Tells what makes a block one that is there.
    fn tell_there(&mut self, event: Event) {
        self.known.insert(event.address, self.told.len() as u64);
        self.told.push(event);
    }

    /// Tells what nobody told of by `time`: the rest of the way of the block that `by` told of last.
    fn tell_gone(&mut self, by: Event, time: u64) {
        let parts = [Action::FreeRequested, Action::FreeCompleted];
        let from = usize::from(by.action == Action::FreeRequested);
        self.told.extend(parts[from..].iter().map(|action| Event {
            action: *action,
            time,
            stack: 0,
            ..by
        }));
        self.known.remove(&by.address);
    }

    /// What lies in the range of `event` was free by then.
    fn clear(&mut self, event: &Event, pending_only: bool) {
        let end = event.address.saturating_add(event.size);
        while let Some((_, place)) = self.known.range(..end).next_back() {
            let by = self.told[*place as usize];
            if by.address + by.size <= event.address || pending_only && by.action == Action::Alloc {
                break;
            }
            self.tell_gone(by, event.time);
        }
    }

    /// Follows one event.
    fn follow(&mut self, event: Event) {
        let before = self.at(event.address);
        // A block gives back what was asked for, whatever it was resized to meanwhile.
        let freed = Event {
            size: before.map_or(event.size, |by| by.size),
            ..event
        };
        let of_block = matches!(event.action, Action::FreeRequested | Action::FreeCompleted);
        if event.action == Action::Alloc || of_block && before.is_none() {
            // Of one that is new here, or was there before the history: what lies in its place is gone, whoever told of it.
            self.clear(&event, false);
        }
        match (event.action, before) {
            (Action::Settled, _) => self.clear(&event, true),
            (Action::Alloc, _) => self.tell_there(event),
            (Action::FreeRequested, Some(by)) if by.action == Action::FreeRequested => self.left_out += 1,
            (Action::FreeRequested, _) => self.tell_there(freed),
            (Action::FreeCompleted, _) => {
                if before.is_some_and(|by| by.action == Action::Alloc) {
                    self.told.push(Event {
                        action: Action::FreeRequested,
                        stack: 0,
                        ..freed
                    });
                }
                self.known.remove(&event.address);
                self.told.push(freed);
            }
            _ => self.told.push(event),
        }
    }

    /// What must have happened since for the state to be what it is: what is gone was freed, and then what is there handed
    /// out, where the history knows its place.
    fn arrive(&mut self, device: &Device) {
        let Some(time) = self.told.last().map(|event| event.time) else {
            return;
        };
        let completed = self.told.iter().filter(|event| event.action == Action::FreeCompleted);
        let mut places: HashSet<u64> = completed.map(|event| event.address).collect();
        let pieces = device.segments.iter().flat_map(|segment| &segment.pieces);
        let there: Vec<&Piece> = pieces.filter(|piece| piece.state != PieceState::Inactive).collect();
        let stayed = |by: &Event, piece: &Piece| {
            let possible = by.action == Action::Alloc || piece.state == PieceState::Pending;
            possible && piece.requested == by.size
        };
        let known: Vec<u64> = self.known.values().copied().collect();
        for place in known {
            let by = self.told[place as usize];
            let piece = there.binary_search_by_key(&by.address, |piece| piece.address);
            if !piece.is_ok_and(|at| stayed(&by, there[at])) {
                self.tell_gone(by, time);
                places.insert(by.address);
            }
        }
        for piece in there {
            let by = self.at(piece.address);
            let [alloc, freed] = begun(device.device, piece, time);
            if by.is_none() {
                if !places.contains(&piece.address) {
                    // It was there before the history.
                    continue;
                }
                self.told.push(alloc);
            }
            if piece.state == PieceState::Pending && by.is_none_or(|by| by.action == Action::Alloc) {
                self.told.push(freed);
            }
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
