//! Makes a history fit the state at its end.
//!
//! A viewer replays a history backwards from the final segments, and breaks on an event that cannot have happened: a free of
//! what is not live, a block outside of every segment. A ring forgets its oldest events, and may lose one in the middle; a
//! thread may be between taking a block and saying so. So each address is followed through the history, what must have
//! happened is filled in, and what cannot have is left out.

use std::collections::{BTreeMap, HashMap};

use super::super::event::{Action, Event};
use super::super::state::{Device, PieceState};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Is {
    Live,
    Pending,
    Gone,
}

/// Where one address is, as far as the history has been followed, with the event that said so.
type Known = HashMap<u64, (Is, Event)>;

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
    arrive(device, known, &mut told);
    left_out += inside_segments(device, &mut told);
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

/// What must have happened since for the state to be what it is.
fn arrive(device: &Device, known: Known, told: &mut Vec<Event>) {
    let mut last: HashMap<u64, (Is, u64, u32)> = HashMap::new();
    for piece in device.segments.iter().flat_map(|segment| &segment.pieces) {
        let is = match piece.state {
            PieceState::Allocated => Is::Live,
            PieceState::Pending => Is::Pending,
            PieceState::Inactive => continue,
        };
        last.insert(piece.address, (is, piece.requested, piece.stack));
    }
    let time = told.last().map_or(0, |event| event.time);
    let mut known: Vec<(u64, (Is, Event))> = known.into_iter().collect();
    known.sort_unstable_by_key(|(address, _)| *address);
    for (address, (was, by)) in known {
        let (is, requested, stack) = last.get(&address).copied().unwrap_or((Is::Gone, 0, 0));
        let freed = |action| Event {
            action,
            time,
            stack: 0,
            ..by
        };
        let alloc = Event {
            action: Action::Alloc,
            size: requested,
            stack,
            stream: 0,
            time,
            ..by
        };
        let steps: &[Event] = match (was, is) {
            (Is::Live, Is::Live) if by.size == requested => &[],
            (Is::Live, Is::Live) => &[freed(Action::FreeRequested), freed(Action::FreeCompleted), alloc],
            (Is::Live, Is::Pending) => &[freed(Action::FreeRequested)],
            (Is::Live, Is::Gone) => &[freed(Action::FreeRequested), freed(Action::FreeCompleted)],
            (Is::Pending, Is::Gone) => &[freed(Action::FreeCompleted)],
            (Is::Pending, Is::Live) => &[freed(Action::FreeCompleted), alloc],
            (Is::Gone, Is::Live) => &[alloc],
            (Is::Gone, Is::Pending) => &[
                alloc,
                Event {
                    action: Action::FreeRequested,
                    ..alloc
                },
            ],
            (Is::Pending, Is::Pending) | (Is::Gone, Is::Gone) => &[],
        };
        told.extend_from_slice(steps);
    }
}

/// Leaves out what lies outside of every segment at its time, and segments that cannot have come or gone then. From the end
/// to the beginning, as a viewer goes. Returns how many that were.
fn inside_segments(device: &Device, told: &mut Vec<Event>) -> u64 {
    let mut mapped = Ranges::default();
    for segment in &device.segments {
        mapped.add(segment.address, segment.size);
    }
    let count = told.len();
    let mut kept = Vec::with_capacity(count);
    for event in told.drain(..).rev() {
        let (address, size) = (event.address, event.size);
        let possible = match event.action {
            Action::SegmentAlloc | Action::SegmentMap => mapped.remove(address, size),
            Action::SegmentFree | Action::SegmentUnmap => mapped.add(address, size),
            Action::Oom => true,
            _ => mapped.contains(address),
        };
        if possible {
            kept.push(event);
        }
    }
    kept.reverse();
    *told = kept;
    (count - told.len()) as u64
}

/// Disjoint ranges, by their start; neighbours are one.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (start, end) = self.0.range(..=address).next_back()?;
        (address < *end).then_some((*start, *end))
    }

    fn contains(&self, address: u64) -> bool {
        self.around(address).is_some()
    }

    /// Adds a range; false where a part of it is there.
    fn add(&mut self, start: u64, size: u64) -> bool {
        let Some(end) = start.checked_add(size).filter(|end| *end > start) else {
            return false;
        };
        if self.contains(start) || self.0.range(start..end).next().is_some() {
            return false;
        }
        let (mut from, mut to) = (start, end);
        if let Some((before, reach)) = self.0.range(..start).next_back()
            && *reach == start
        {
            from = *before;
        }
        if let Some(after) = self.0.remove(&end) {
            to = after;
        }
        self.0.insert(from, to);
        true
    }

    /// Takes a range out; false where not all of it is there.
    fn remove(&mut self, start: u64, size: u64) -> bool {
        let Some((from, to)) = self.around(start) else {
            return false;
        };
        let Some(end) = start.checked_add(size).filter(|end| *end <= to && *end > start) else {
            return false;
        };
        self.0.remove(&from);
        if from < start {
            self.0.insert(from, start);
        }
        if end < to {
            self.0.insert(end, to);
        }
        true
    }
}
