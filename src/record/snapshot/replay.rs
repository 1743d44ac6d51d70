//! Goes through a history as a viewer does: backwards from the state at its end.

use std::collections::{BTreeMap, HashSet};

use super::super::event::{Action, Event};
use super::super::state::{Device, Piece, PieceState};
use super::consistent::begun;
use super::segments::{Of, Segments};

/// What is live or pending, by address, on the way back from a device's state.
struct Replay {
    segments: Segments,
    live: BTreeMap<u64, Piece>,
    /// The events so far, last first.
    kept: Vec<Event>,
}

/// Leaves out what cannot be replayed to the device's state, from the end to the beginning as a viewer goes: blocks outside
/// of every segment at their time, segments that cannot have come or gone then. Returns how many events that were.
pub(super) fn replay(device: &Device, told: &mut Vec<Event>) -> u64 {
    let mut replay = Replay {
        segments: Segments::default(),
        live: BTreeMap::new(),
        kept: Vec::with_capacity(told.len()),
    };
    for segment in &device.segments {
        replay
            .segments
            .add(segment.address, segment.size, segment.expandable, Of::State);
        let active = segment
            .pieces
            .iter()
            .filter(|piece| piece.state != PieceState::Inactive);
        replay.live.extend(active.map(|piece| (piece.address, *piece)));
    }
    let told_first = told.first().map(|event| event.time);
    let mut left_out = 0;
    for event in told.drain(..).rev() {
        left_out += u64::from(!replay.undo(&event));
    }
    replay.begin_pending(device, told_first);
    replay.kept.reverse();
    *told = replay.kept;
    left_out
}

impl Replay {
    /// Goes back before `event`, and keeps it; false where it cannot have happened.
    fn undo(&mut self, event: &Event) -> bool {
        let (address, size) = (event.address, event.size);
        let expandable = matches!(event.action, Action::SegmentMap | Action::SegmentUnmap);
        let fits = match event.action {
            Action::Oom => true,
            Action::SegmentFree | Action::SegmentUnmap => self.segments.add(address, size, expandable, Of::Event),
            Action::SegmentAlloc | Action::SegmentMap => {
                let Some(parts) = self.segments.remove(address, size, expandable) else {
                    return false;
                };
                self.begin_after(event);
                let parts = parts.into_iter().rev();
                self.kept.extend(parts.map(|(address, size)| Event {
                    address,
                    size,
                    ..*event
                }));
                return true;
            }
            // One of another size came later: of what was there before it, nobody told in time that it went.
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
            Action::FreeCompleted | Action::Freed | Action::Settled => {
                if !self.segments.cover(address, size) {
                    return false;
                }
                self.begin_after(event);
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
            self.kept.push(*event);
        }
        fits
    }

    /// What is pending and was handed out before the history, is handed out at its beginning: a viewer draws what is live
    /// whether it was told of or not, but of what is pending only what it saw handed out.
    fn begin_pending(&mut self, device: &Device, time: Option<u64>) {
        let Some(time) = time else { return };
        let seen = self.kept.iter().filter(|event| event.action == Action::Alloc);
        let seen: HashSet<u64> = seen.map(|event| event.address).collect();
        let pieces = device.segments.iter().flat_map(|segment| &segment.pieces);
        for piece in pieces.filter(|piece| piece.state == PieceState::Pending && !seen.contains(&piece.address)) {
            let [alloc, freed] = begun(device.device, piece, time);
            // Whether its free was told of.
            if self
                .live
                .remove(&piece.address)
                .is_some_and(|was| was.state == PieceState::Pending)
            {
                self.kept.push(freed);
            }
            self.kept.push(alloc);
        }
    }

    /// What lies where `event` needs the place was handed out after it, by a thread that has not said so, or while nothing was
    /// recorded.
    fn begin_after(&mut self, event: &Event) {
        let end = event.address + event.size;
        // Live blocks do not overlap, so that only the last of those that begin before can reach in.
        let before = self.live.range(..event.address).next_back();
        let reaches = before.filter(|(start, piece)| **start + piece.requested > event.address);
        let inside = self.live.range(event.address..end);
        let meant: Vec<u64> = reaches.into_iter().chain(inside).map(|(address, _)| *address).collect();
        for address in meant {
            let Some(piece) = self.live.remove(&address) else {
                continue;
            };
            let [alloc, freed] = begun(event.device, &piece, event.time);
            if piece.state == PieceState::Pending {
                self.kept.push(freed);
            }
            self.kept.push(alloc);
        }
    }
}
