//! The order checker: finds memory that is handed out before its earlier uses have ended.
//!
//! It uses vector clocks. A use of a byte by operation k of stream s precedes the next work of stream t if t is s, if
//! events or the legacy stream order (s, k) before that work, or if the host has *observed* that (s, k) completed.
//! Simulated time alone is not enough. Bytes are physical: two mappings of one handle are the same bytes. Work in a
//! capture precedes no work outside it until the graph and its executables are destroyed. A launch of an executable is
//! a use like any other.

use super::memory::Mapping;
use super::queue::{Position, QueueKind};
use super::ranges::{Past, TrackedRanges, Use};
use super::state::{MachineState, NumberMap};

#[derive(Debug, Clone, Copy)]
pub(super) struct CheckedBlock {
    pub(super) serial: u64,
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) on: u64,
    pub(super) at: u64,
    pub(super) device: Option<u32>,
    /// Its last resize; 0: none.
    pub(super) resize: u64,
}

#[derive(Debug)]
pub(super) struct CheckerState {
    pub(super) on: bool,
    pub(super) ranges: TrackedRanges,
    pub(super) blocks: NumberMap<u64, CheckedBlock>,
    pub(super) serials: u64,
    pub(super) resizes: u64,
    pub(super) violations: Vec<String>,
}

impl CheckerState {
    pub(super) fn new(on: bool) -> CheckerState {
        CheckerState {
            on,
            ranges: TrackedRanges::default(),
            blocks: NumberMap::default(),
            serials: 0,
            resizes: 0,
            violations: Vec::new(),
        }
    }

    pub(super) fn violation(&mut self, what: String) {
        if self.violations.len() < 1000 {
            self.violations.push(what);
        }
    }
}

/// The caller that a block is handed out to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taker {
    /// `None` for a caller without a stream.
    pub(super) slot: Option<u32>,
    pub(super) queue: u32,
    pub(super) stream_id: u64,
}

pub(super) fn name(stream_id: u64) -> String {
    if stream_id == 0 {
        "no stream".into()
    } else {
        format!("stream {stream_id}")
    }
}

fn history(past: &Past) -> String {
    if past.serial == 0 {
        return "never handed out before".into();
    }
    let Past {
        serial,
        address,
        size,
        out_on,
        out_at,
        back_on,
        back_at,
        ..
    } = *past;
    let mut text = format!(
        "block {serial} ({address:#x} + {size:#x}), handed out on {} at {out_at}",
        name(out_on)
    );
    if back_at > 0 {
        text += &format!(", given back on {} at {back_at}", name(back_on));
    }
    text
}

impl MachineState {
    /// A position in a queue, in words.
    pub(super) fn describe(&self, (queue, count): Position) -> String {
        match self.queues.get(queue) {
            None => format!("a finished stream, operation {count}"),
            Some(q) => {
                let dead = if q.dead { " (destroyed)" } else { "" };
                let capture = match q.kind {
                    QueueKind::Virtual(capture) => format!(" in capture {capture}"),
                    _ => String::new(),
                };
                let context_id = self.contexts.get(q.context).map_or(0, |context| context.id);
                format!(
                    "stream {}{dead} of context {context_id}{capture}, operation {count}",
                    q.stream_id
                )
            }
        }
    }

    fn ordered(&self, taker: Taker, position: Position) -> bool {
        if self.queues.observed(position) {
            return true;
        }
        let Some(slot) = taker.slot else { return false };
        let behind =
            |queue: u32| queue == position.0 || self.queues.get(queue).is_some_and(|q| q.clock.covers(position));
        if behind(taker.queue) {
            return true;
        }
        let stream = &self.streams[slot as usize];
        stream.alive && stream.capture.is_none() && self.implied(slot).iter().any(|&queue| behind(queue))
    }

    /// Records that work at `position` uses a range.
    pub(super) fn note_use(&mut self, address: u64, bytes: u64, position: Position, what: &'static str) {
        if !self.checker.on || bytes == 0 {
            return;
        }
        let MachineState {
            memory,
            checker,
            queues,
            tables,
            ..
        } = self;
        let at = tables.now();
        memory.physical(address, bytes, |start, length, alias| {
            checker.ranges.cover(start, start + length, |_, segment| {
                let by = segment.past.serial;
                segment.used(
                    queues,
                    Use {
                        position,
                        alias,
                        what,
                        at,
                        by,
                    },
                );
            });
        });
    }

    /// Reports pending work on memory that loses its address, and blocks that are handed out there.
    pub(super) fn check_unmap(&mut self, call: &str, address: u64, mapping: &Mapping) {
        if !self.checker.on {
            return;
        }
        let (start, end) = (mapping.offset, mapping.offset + mapping.size);
        let mut pending = None;
        let mut owned = None;
        let CheckerState { ranges, blocks, .. } = &mut self.checker;
        let queues = &self.queues;
        // A block is at this address only if it was handed out there, not through another mapping of the same memory.
        let here = |past: &Past| {
            let block = blocks.get(&past.address).filter(|b| b.serial == past.serial);
            block.is_some_and(|b| b.address < address + mapping.size && b.address + b.size > address)
        };
        ranges.within(start, end, |from, segment| {
            let late = |u: &&Use| u.alias == mapping.alias && !queues.observed(u.position);
            let used = segment.uses.iter().find(late);
            pending = pending.or(used.map(|u| (from, *u, segment.past)));
            if segment.owner != 0 && owned.is_none() {
                owned = Some(segment.past).filter(here);
            }
        });
        let range = format!("{address:#x} + {:#x}", mapping.size);
        if let Some((from, last, past)) = pending {
            let over = match self.queues.complete(&[last.position], self.tables.now()) {
                true => "which has completed, but was not observed",
                false => "which is pending",
            };
            let (what, at) = (last.what, last.at);
            let on = self.describe(last.position);
            let from = address + (from - start);
            let past = history(&past);
            self.fault(format!(
                "{call} of {range} under a {what} at {at} on {on}, {over}; the bytes from {from:#x} on were {past}"
            ));
        }
        if let Some(past) = owned {
            self.fault(format!("{call} of {range} takes memory from {}", history(&past)));
        }
    }

    /// Forgets the history of physical memory that was freed.
    pub(super) fn forget_memory(&mut self, offset: u64, size: u64) {
        if self.checker.on {
            self.checker.ranges.forget(offset, offset + size);
        }
    }

    /// Checks a range that `taker` is to have. A block that is resized keeps the bytes that it has. Of those that it grows by,
    /// some may be its own: bytes that it gave up when it shrank. Its own work on them is no violation, but that of blocks
    /// before it is.
    pub(super) fn check_range(
        &mut self,
        taker: Taker,
        what: &str,
        start: u64,
        length: u64,
        resized: Option<&CheckedBlock>,
    ) {
        let (keep, resize) = resized.map_or((0, 0), |block| (block.serial, block.resize));
        let mut overlap: Option<Past> = None;
        let mut unordered: Option<(Use, Past)> = None;
        let mut ranges = std::mem::take(&mut self.checker.ranges);
        ranges.within(start, start + length, |_, segment| {
            if segment.owner != 0 {
                if segment.owner != keep {
                    overlap = overlap.or(Some(segment.past));
                }
                return;
            }
            let kept = keep != 0 && segment.past.serial == keep && segment.past.resize == resize;
            if unordered.is_none() && !kept {
                let own = |last: &Use| keep != 0 && last.by == keep;
                let mut uses = segment.uses.iter();
                let found = uses.find(|last| !own(last) && !self.ordered(taker, last.position));
                unordered = found.map(|last| (*last, segment.past));
            }
        });
        self.checker.ranges = ranges;
        if let Some(past) = overlap {
            self.checker
                .violation(format!("{what} overlaps a live block: {}", history(&past)));
        }
        if let Some((last, past)) = unordered {
            let message = format!(
                "{what}: a {} at {} on {} is not known to be over by then; the bytes were {}",
                last.what,
                last.at,
                self.describe(last.position),
                history(&past),
            );
            self.checker.violation(message);
        }
    }
}
