//! The order checker as tests and tools use it. `checker_state` has its rules.

use super::Machine;
use super::checker_state::{CheckedBlock, CheckerState};
use super::memory::Mapping;
use super::queue::QueueKind;
use super::ranges::{Past, Use};
use super::state::MachineState;
use super::vector_clock::Position;

/// The order checker of a machine. Call it right after an allocator hands memory out, and right before the allocator
/// frees it. The methods call that handing out and giving back, to distinguish it from the driver's own allocations.
#[derive(Debug, Clone, Copy)]
pub struct Checker<'a>(&'a Machine);

/// A block between [`Checker::begin_resize`] and [`Checker::end_resize`].
#[derive(Debug)]
#[must_use]
pub struct Resizing(CheckedBlock);

impl Checker<'_> {
    /// Whether it is on. While off, it records nothing and costs nothing.
    pub fn is_on(&self) -> bool {
        self.0.state.lock().checker.on
    }

    /// Switches it on or off. Either way it forgets everything.
    pub fn switch(&self, on: bool) {
        self.0.state.lock().checker = CheckerState::new(on);
    }

    /// Hands out `size` bytes at `address`. The next use is on `stream`; without one, it may be anywhere, at once.
    pub fn hand_out(&self, address: u64, size: u64, stream: Option<usize>) {
        let thread = self.0.threads.here();
        let mut state = self.0.state.lock();
        if state.checker.on && size > 0 {
            let slot = stream.and_then(|stream| self.0.any_slot(&mut state, thread, stream));
            state.hand_out(address, size, slot);
        }
    }

    /// The block's owner frees it. Work queued so far on `stream`, which may be destroyed, may still use it; without a
    /// stream, work queued so far on any stream of the device.
    pub fn give_back(&self, address: u64, stream: Option<usize>) {
        let thread = self.0.threads.here();
        let mut state = self.0.state.lock();
        if state.checker.on {
            let slot = stream.and_then(|stream| self.0.any_slot(&mut state, thread, stream));
            state.give_back(address, slot);
        }
    }

    /// The block's owner also uses it on `stream`, with work queued so far.
    pub fn used(&self, address: u64, stream: usize) {
        let thread = self.0.threads.here();
        let mut state = self.0.state.lock();
        if let Some(block) = state.checker.blocks.get(&address).copied()
            && let Some(slot) = self.0.any_slot(&mut state, thread, stream)
        {
            for position in state.last_uses(&block, Some(slot)) {
                state.note_use(address, block.size, position, "declared use");
            }
        }
    }

    /// The block at `old` is now `size` bytes at `new`. It keeps the bytes that it had; new bytes must be safe on any
    /// stream.
    pub fn resize(&self, old: u64, new: u64, size: u64) {
        let mut state = self.0.state.lock();
        if state.checker.on
            && let Some(block) = state.begin_resize(old)
        {
            state.end_resize(block, new, size);
        }
    }

    /// The block at `address` is about to be resized by a copy, after which its old memory may be handed out again.
    /// Does nothing where the checker is off.
    pub fn begin_resize(&self, address: u64) -> Option<Resizing> {
        let mut state = self.0.state.lock();
        if !state.checker.on {
            return None;
        }
        state.begin_resize(address).map(Resizing)
    }

    /// A resized block is now `size` bytes at `new`. After a failed resize, these are its old place and size.
    pub fn end_resize(&self, resizing: Option<Resizing>, new: u64, size: u64) {
        if let Some(Resizing(block)) = resizing {
            self.0.state.lock().end_resize(block, new, size);
        }
    }

    /// Hand-outs that break the order, with the history of both sides; the first thousand.
    pub fn violations(&self) -> Vec<String> {
        self.0.state.lock().checker.violations.clone()
    }

    /// Forgets the violations so far.
    pub fn clear_violations(&self) {
        self.0.state.lock().checker.violations.clear();
    }

    /// How many blocks are handed out.
    pub fn live_blocks(&self) -> usize {
        self.0.state.lock().checker.blocks.len()
    }

    /// How many ranges the checker has records of. Tests see by it that old records are removed.
    pub fn tracked_ranges(&self) -> usize {
        self.0.state.lock().checker.ranges.len()
    }
}

impl Machine {
    /// The order checker.
    pub fn checker(&self) -> Checker<'_> {
        Checker(self)
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
