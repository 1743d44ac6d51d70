//! Makes a history consistent with the state at its end.
//!
//! A viewer replays a history backwards from the final segments. It fails on an event that cannot have happened, as a
//! free of a block that is not live, or a block outside every segment. A history can contain such events: a ring
//! forgets its oldest events and may lose one in the middle, a thread may not yet have recorded what it has done, and
//! recording may have been off. So this module follows each address through the history, adds the events that must
//! have happened, and leaves out those that cannot have.

use std::collections::{BTreeMap, HashSet};

use super::super::event::{Action, Event};
use super::super::state::{DeviceState, Piece, PieceState};
use super::replay::{inferred_events, replay};

/// A history as far as it has been followed.
#[derive(Default)]
struct ConsistentHistory {
    events: Vec<Event>,
    /// The live and pending blocks by address: the index in `events` of the block's last event. That is
    /// [`Action::Alloc`], or [`Action::FreeRequested`] where a block is pending.
    blocks: BTreeMap<u64, u64>,
    /// Counts the events that cannot have happened.
    left_out: u64,
}

/// The events of `device` in order, changed so that a viewer can replay them to the device's state. [`Action::Freed`]
/// becomes its two parts. The second value counts the events that were left out.
pub(in crate::history::snapshot) fn replayable(device: &DeviceState, events: &[Event]) -> (Vec<Event>, u64) {
    let own = || events.iter().filter(|event| event.device == device.device);
    let mut history = ConsistentHistory {
        events: Vec::with_capacity(own().count() * 3 / 2),
        ..ConsistentHistory::default()
    };
    for event in own() {
        let parts: &[Action] = match event.action {
            Action::Freed => &[Action::FreeRequested, Action::FreeCompleted],
            _ => std::slice::from_ref(&event.action),
        };
        for action in parts {
            history.follow(Event {
                action: *action,
                ..*event
            });
        }
    }
    history.reach_state(device);
    let ConsistentHistory {
        mut events, left_out, ..
    } = history;
    let left_out = left_out + replay(device, &mut events);
    (events, left_out)
}

impl ConsistentHistory {
    /// The last event of the block at `address`; `None` where there is no block.
    fn last_event(&self, address: u64) -> Option<Event> {
        let index = self.blocks.get(&address)?;
        Some(self.events[*index as usize])
    }

    /// Records an event after which its block is live or pending.
    fn record_live(&mut self, event: Event) {
        self.blocks.insert(event.address, self.events.len() as u64);
        self.events.push(event);
    }

    /// Records the missing events, at `time`, until the block with the last event `last` is free.
    fn record_freed(&mut self, last: Event, time: u64) {
        let parts = [Action::FreeRequested, Action::FreeCompleted];
        let from = usize::from(last.action == Action::FreeRequested);
        self.events.extend(parts[from..].iter().map(|action| Event {
            action: *action,
            time,
            stack: 0,
            thread: 0,
            resized: false,
            ..last
        }));
        self.blocks.remove(&last.address);
    }

    /// Records as free, before `event`, every block in the range of `event`; pending blocks only if `pending_only`.
    fn clear(&mut self, event: &Event, pending_only: bool) {
        let end = event.address.saturating_add(event.size);
        while let Some((_, index)) = self.blocks.range(..end).next_back() {
            let last = self.events[*index as usize];
            if last.address + last.size <= event.address || pending_only && last.action == Action::Alloc {
                break;
            }
            self.record_freed(last, event.time);
        }
    }

    /// Adds one event of the history.
    fn follow(&mut self, event: Event) {
        let before = self.last_event(event.address);
        // A block is freed with the size of its allocation, whatever it was resized to since.
        let freed = Event {
            size: before.map_or(event.size, |last| last.size),
            ..event
        };
        let of_block = matches!(event.action, Action::FreeRequested | Action::FreeCompleted);
        if event.action == Action::Alloc || of_block && before.is_none() {
            // Blocks that overlap a new block, or one allocated before the history, must be gone.
            self.clear(&event, false);
        }
        match (event.action, before) {
            (Action::RangeCompleted, _) => self.clear(&event, true),
            (Action::Alloc, _) => self.record_live(event),
            (Action::FreeRequested, Some(last)) if last.action == Action::FreeRequested => self.left_out += 1,
            (Action::FreeRequested, _) => self.record_live(freed),
            (Action::FreeCompleted, _) => {
                if before.is_some_and(|last| last.action == Action::Alloc) {
                    self.events.push(Event {
                        action: Action::FreeRequested,
                        stack: 0,
                        thread: 0,
                        ..freed
                    });
                }
                self.blocks.remove(&event.address);
                self.events.push(freed);
            }
            _ => self.events.push(event),
        }
    }

    /// Adds the events between the history's end and the device's state: frees of blocks that are gone, then
    /// allocations of blocks that are there, where the history contains events of their address.
    fn reach_state(&mut self, device: &DeviceState) {
        let Some(time) = self.events.last().map(|event| event.time) else {
            return;
        };
        let completed = self.events.iter().filter(|event| event.action == Action::FreeCompleted);
        let mut freed_addresses: HashSet<u64> = completed.map(|event| event.address).collect();
        let pieces = device.segments.iter().flat_map(|segment| &segment.pieces);
        let there: Vec<&Piece> = pieces.filter(|piece| piece.state != PieceState::Inactive).collect();
        let stayed = |last: &Event, piece: &Piece| {
            let possible = last.action == Action::Alloc || piece.state == PieceState::Pending;
            possible && piece.requested == last.size
        };
        let indices: Vec<u64> = self.blocks.values().copied().collect();
        for index in indices {
            let last = self.events[index as usize];
            let piece = there.binary_search_by_key(&last.address, |piece| piece.address);
            if !piece.is_ok_and(|at| stayed(&last, there[at])) {
                self.record_freed(last, time);
                freed_addresses.insert(last.address);
            }
        }
        for piece in there {
            let last = self.last_event(piece.address);
            let [alloc, freed] = inferred_events(device.device, piece, time);
            if last.is_none() {
                if !freed_addresses.contains(&piece.address) {
                    // It was allocated before the history began.
                    continue;
                }
                self.events.push(alloc);
            }
            if piece.state == PieceState::Pending && last.is_none_or(|last| last.action == Action::Alloc) {
                self.events.push(freed);
            }
        }
    }
}
