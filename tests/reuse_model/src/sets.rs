//! The table of memory that waits. Each way on of a set is one function, named as in the source:
//!
//! ```text
//!  insert                    cover                complete_batch
//! ────────► Filed ─────────────────► Batch ────────────────────► common
//!               ▲
//!               ├── event_lost ── Event ── complete_event ─────────► common
//!               │
//!               ├── graph_gone ── Graph ── graph_gone ─┐
//!               │                                      ▼
//!                          insert ─────────────────► Streams ──────► common
//!                                                complete_stream, complete_batch
//! ```

use crate::state::*;

impl Place {
    /// The place of memory that waits.
    pub fn waits(asker: Asker, wait: Wait) -> Place {
        Place::Waits(Set { asker, wait })
    }

    /// The place of memory that was freed without a stream, or that the contexts have to finish with: no event covers it.
    pub fn uncovered() -> Place {
        Place::waits(Asker::NoOne, Wait::Filed)
    }

    /// What it waits for, where it waits.
    pub fn wait(&self) -> Option<&Wait> {
        match self {
            Place::Waits(set) => Some(&set.wait),
            _ => None,
        }
    }

    /// The completion events that it waits for: owners and numbers.
    pub fn streams(&self) -> &[(u8, u8)] {
        match self.wait() {
            Some(Wait::Streams(streams)) => streams,
            _ => &[],
        }
    }

    /// As [`Place::streams`].
    pub fn streams_mut(&mut self) -> &mut [(u8, u8)] {
        match self {
            Place::Waits(Set {
                wait: Wait::Streams(streams),
                ..
            }) => streams,
            _ => &mut [],
        }
    }

    /// The event of its own that it waits for, and that event's context.
    pub fn event_mut(&mut self) -> Option<(u8, &mut Option<u8>)> {
        match self {
            Place::Waits(Set {
                wait: Wait::Event(context, event),
                ..
            }) => Some((*context, event)),
            _ => None,
        }
    }
}

impl Sets {
    /// `Sets::insert`: from now on the piece waits.
    pub fn insert(&mut self, piece: u8, asker: Asker, wait: Wait) {
        self.pieces[piece as usize] = Place::waits(asker, wait);
    }

    /// `Sets::cover`: what no event covers waits for the batch. The batch also covers the frees of owners, up to a number
    /// of each.
    pub fn cover(&mut self, batch: Batch) {
        let index = self.batches.len() as u8;
        self.batches.push(batch);
        for place in &mut self.pieces {
            if *place == Place::uncovered() {
                *place = Place::waits(Asker::NoOne, Wait::Batch(index));
            }
        }
    }

    /// `Sets::complete_stream`: the owner's frees up to that number are complete. A set that waits for several owners goes on
    /// to the next one that is not complete.
    pub fn complete_stream(&mut self, owner: u8, number: u8) {
        if let Some(ledger) = &mut self.ledgers[owner as usize] {
            ledger.complete = ledger.complete.max(number);
        }
        let ledgers = &self.ledgers;
        let is_complete = |(owner, number): &(u8, u8)| {
            let ledger = &ledgers[*owner as usize];
            ledger.as_ref().is_none_or(|ledger| ledger.complete >= *number)
        };
        for place in &mut self.pieces {
            if let Place::Waits(Set {
                wait: Wait::Streams(streams),
                ..
            }) = place
            {
                let complete = streams.iter().take_while(|of| is_complete(of)).count();
                streams.drain(..complete);
                if streams.is_empty() {
                    *place = Place::Common;
                }
            }
        }
    }

    /// `Sets::complete_batch`: the oldest batch is complete.
    pub fn complete_batch(&mut self) {
        let batch = self.batches.remove(0);
        for (owner, number) in batch.covers.into_iter().enumerate() {
            self.complete_stream(owner as u8, number);
        }
        self.forget_batch(0);
    }

    /// What waits for the batch with that index, which was removed, is common. Later batches move up.
    pub fn forget_batch(&mut self, at: u8) {
        for place in &mut self.pieces {
            if let Place::Waits(Set {
                wait: Wait::Batch(index),
                ..
            }) = place
            {
                match (*index).cmp(&at) {
                    std::cmp::Ordering::Less => {}
                    std::cmp::Ordering::Equal => *place = Place::Common,
                    std::cmp::Ordering::Greater => *index -= 1,
                }
            }
        }
    }

    /// `Sets::graph_gone`: the graph was destroyed. Memory of the capture goes to `inside`, what was freed elsewhere to
    /// `outside`, and blocks that are handed out are ordinary blocks from now on.
    pub fn graph_gone(&mut self, inside: &Place, outside: &Place) {
        for place in &mut self.pieces {
            match place {
                Place::Waits(Set {
                    asker,
                    wait: Wait::Graph,
                }) => *place = if *asker == Asker::Capture { inside } else { outside }.clone(),
                Place::Live(block) => block.graph = false,
                _ => {}
            }
        }
    }

    /// `Sets::complete_event`: the event of its own that the piece waits for is complete.
    pub fn complete_event(&mut self, piece: u8) {
        self.pieces[piece as usize] = Place::Common;
    }

    /// `Sets::event_lost`: the event of its own that the piece waits for was destroyed, or does not answer.
    pub fn event_lost(&mut self, piece: u8) {
        self.pieces[piece as usize] = Place::uncovered();
    }

    /// `Sets::forget_owner`: an orphan that no set waits for. Its number may become another owner's, whose completion events
    /// are counted from the beginning again.
    pub fn forget_owner(&mut self, owner: u8, outlives: OwnerOutlives) {
        let at = owner as usize;
        let idle = |ledger: &Ledger| ledger.orphan && ledger.recorded.is_empty();
        let covered = outlives.batches && self.batches.iter().any(|batch| batch.covers[at] != 0);
        let named = self.pieces.iter().any(|place| {
            let streams = place.streams();
            // A set is found by the first owner that it waits for, and waits for the others as well.
            let found = if outlives.sets {
                streams
            } else {
                &streams[..streams.len().min(1)]
            };
            found.iter().any(|(of, _)| *of == owner)
        });
        if self.ledgers[at].as_ref().is_some_and(idle) && !covered && !named {
            self.ledgers[at] = None;
        }
    }

    /// The number of an owner's last completion event that was recorded or has completed.
    pub fn last_recorded(&self, owner: u8) -> u8 {
        let ledger = self.ledgers[owner as usize].as_ref();
        ledger.map_or(0, |of| of.recorded.last().map_or(of.complete, |(number, _)| *number))
    }

    /// Whether a piece of the owner waits for an event.
    pub fn waits_for(&self, owner: u8) -> bool {
        let last = self.last_recorded(owner);
        self.pieces.iter().any(|place| match place {
            Place::Waits(set) if set.asker == Asker::Stream(owner) => true,
            _ => place
                .streams()
                .iter()
                .any(|(of, number)| *of == owner && *number > last),
        })
    }
}

/// What an orphan's number stays the orphan's for.
#[derive(Debug, Clone, Copy)]
pub struct OwnerOutlives {
    /// Batches that cover its frees.
    pub batches: bool,
    /// Sets that wait for it after another owner.
    pub sets: bool,
}
