//! Replays a history as a viewer does: backwards from the state at its end.

use std::collections::{BTreeMap, HashSet};

use super::super::event::{Action, Event};
use super::super::state::{DeviceState, Piece, PieceState};
use super::segments::{Segments, Source};

/// The live and pending blocks by address, at one point of the replay.
struct Replay {
    segments: Segments,
    live: BTreeMap<u64, Piece>,
    /// The events that stay, last first.
    history: Vec<Event>,
}

/// Leaves out the events that a viewer cannot replay, going backwards from the device's state: blocks outside every
/// segment at their time, and segments that cannot have been mapped or unmapped then. Returns how many events were
/// left out.
pub(in crate::history::snapshot) fn replay(device: &DeviceState, events: &mut Vec<Event>) -> u64 {
    let mut replay = Replay {
        segments: Segments::default(),
        live: BTreeMap::new(),
        history: Vec::with_capacity(events.len()),
    };
    for segment in &device.segments {
        replay
            .segments
            .add(segment.address, segment.size, segment.expandable, Source::State);
        let active = segment
            .pieces
            .iter()
            .filter(|piece| piece.state != PieceState::Inactive);
        replay.live.extend(active.map(|piece| (piece.address, *piece)));
    }
    let first_time = events.first().map(|event| event.time);
    let mut left_out = 0;
    for event in events.drain(..).rev() {
        left_out += u64::from(!replay.undo(&event));
    }
    replay.allocate_pending(device, first_time);
    replay.history.reverse();
    *events = replay.history;
    left_out
}

impl Replay {
    /// Undoes `event` and keeps it in the history; returns false where it cannot have happened.
    fn undo(&mut self, event: &Event) -> bool {
        let (address, size) = (event.address, event.size);
        let expandable = matches!(event.action, Action::SegmentMap | Action::SegmentUnmap);
        let fits = match event.action {
            Action::Oom | Action::Snapshot => true,
            Action::SegmentFree | Action::SegmentUnmap => self.segments.add(address, size, expandable, Source::Event),
            Action::SegmentAlloc | Action::SegmentMap => {
                let Some(parts) = self.segments.remove(address, size, expandable) else {
                    return false;
                };
                self.allocate_after(event);
                let parts = parts.into_iter().rev();
                self.history.extend(parts.map(|(address, size)| Event {
                    address,
                    size,
                    ..*event
                }));
                return true;
            }
            // A block of another size follows, and the free of this one was not recorded in time.
            Action::Alloc => {
                let it = self.live.get(&address);
                let fits = it.is_some_and(|it| it.state == PieceState::Allocated && it.requested == size);
                fits && self.live.remove(&address).is_some()
            }
            Action::FreeRequested => match self.live.get_mut(&address) {
                Some(it) if it.state == PieceState::Pending => {
                    it.state = PieceState::Allocated;
                    true
                }
                _ => false,
            },
            Action::FreeCompleted | Action::Freed | Action::RangeCompleted => {
                if !self.segments.cover(address, size) {
                    return false;
                }
                self.allocate_after(event);
                self.live.insert(
                    address,
                    Piece {
                        address,
                        size,
                        requested: size,
                        state: PieceState::Pending,
                        stack: 0,
                        tag: event.tag,
                    },
                );
                true
            }
        };
        if fits {
            self.history.push(*event);
        }
        fits
    }

    /// Adds allocations at the beginning of the history for pending blocks that were allocated before it. A viewer
    /// draws every live block, but of pending blocks only those whose allocation it saw.
    fn allocate_pending(&mut self, device: &DeviceState, time: Option<u64>) {
        let Some(time) = time else { return };
        let seen = self.history.iter().filter(|event| event.action == Action::Alloc);
        let seen: HashSet<u64> = seen.map(|event| event.address).collect();
        let pieces = device.segments.iter().flat_map(|segment| &segment.pieces);
        for piece in pieces.filter(|piece| piece.state == PieceState::Pending && !seen.contains(&piece.address)) {
            let [alloc, freed] = inferred_events(device.device, piece, time);
            // Whether the history has the block's free.
            if self
                .live
                .remove(&piece.address)
                .is_some_and(|was| was.state == PieceState::Pending)
            {
                self.history.push(freed);
            }
            self.history.push(alloc);
        }
    }

    /// Adds the allocation, after `event`, of the blocks in its range. The thread had not recorded it yet, or
    /// recording was off.
    fn allocate_after(&mut self, event: &Event) {
        let end = event.address + event.size;
        // Live blocks do not overlap, so only the last block that begins before the range can reach into it.
        let before = self.live.range(..event.address).next_back();
        let reaches = before.filter(|(start, piece)| **start + piece.requested > event.address);
        let inside = self.live.range(event.address..end);
        let overlapping: Vec<u64> = reaches.into_iter().chain(inside).map(|(address, _)| *address).collect();
        for address in overlapping {
            let Some(piece) = self.live.remove(&address) else {
                continue;
            };
            let [alloc, freed] = inferred_events(event.device, &piece, event.time);
            if piece.state == PieceState::Pending {
                self.history.push(freed);
            }
            self.history.push(alloc);
        }
    }
}

/// The events that a block must have had: its allocation, and its free for a pending block.
pub(in crate::history::snapshot) fn inferred_events(device: i32, piece: &Piece, time: u64) -> [Event; 2] {
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
