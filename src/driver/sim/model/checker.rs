//! The order checker: whether memory is ever handed out to whom it may not be.
//!
//! It follows vector clocks. A use of a byte by operation k of stream s is behind us for stream t when t is s, when what
//! t does next is ordered behind (s, k) by events or by the legacy stream, or when the host has *seen* that it is over;
//! that the clock says so is not enough. Bytes are physical: two mappings of one handle are the same bytes. Work in a
//! capture lies before nothing outside it while the graph or an executable of it is there; a launch of an executable is
//! a use like any other.

use super::Machine;
use super::memory::Mapping;
use super::queue::{Position, QueueKind};
use super::ranges::{Past, Ranges, Segment, Use};
use super::state::{NumberMap, State};

#[derive(Debug, Clone, Copy)]
struct Block {
    serial: u64,
    address: u64,
    size: u64,
    on: u64,
    at: u64,
    device: Option<u32>,
}

#[derive(Debug)]
pub(super) struct CheckerState {
    on: bool,
    ranges: Ranges,
    blocks: NumberMap<u64, Block>,
    serials: u64,
    violations: Vec<String>,
}

impl CheckerState {
    pub(super) fn new(on: bool) -> CheckerState {
        CheckerState {
            on,
            ranges: Ranges::default(),
            blocks: NumberMap::default(),
            serials: 0,
            violations: Vec::new(),
        }
    }

    fn violation(&mut self, what: String) {
        if self.violations.len() < 1000 {
            self.violations.push(what);
        }
    }
}

/// For whom memory must be safe.
#[derive(Debug, Clone, Copy)]
struct Taker {
    /// None: a caller without a stream.
    slot: Option<u32>,
    queue: u32,
    stream_id: u64,
}

fn name(stream_id: u64) -> String {
    if stream_id == 0 {
        "no stream".into()
    } else {
        format!("stream {stream_id}")
    }
}

fn tell(past: &Past) -> String {
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
    } = *past;
    let mut told = format!(
        "block {serial} ({address:#x} + {size:#x}), handed out on {} at {out_at}",
        name(out_on)
    );
    if back_at > 0 {
        told += &format!(", given back on {} at {back_at}", name(back_on));
    }
    told
}

impl State {
    /// A place in a queue, in words.
    pub(super) fn describe(&self, (queue, count): Position) -> String {
        match self.queues.get(queue) {
            None => format!("a stream that is gone, operation {count}"),
            Some(q) => {
                let dead = if q.dead { " (destroyed)" } else { "" };
                let capture = match q.kind {
                    QueueKind::Virtual(capture) => format!(" in capture {capture}"),
                    _ => String::new(),
                };
                let tell_context = self.contexts.get(q.context).map_or(0, |context| context.id);
                format!(
                    "stream {}{dead} of context {tell_context}{capture}, operation {count}",
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

    /// Remembers that work at `position` uses a range.
    pub(super) fn note_use(&mut self, address: u64, bytes: u64, position: Position, what: &'static str) {
        if !self.checker.on || bytes == 0 {
            return;
        }
        let State {
            memory,
            checker,
            queues,
            hot,
            ..
        } = self;
        let at = hot.now();
        memory.physical(address, bytes, |start, length, alias| {
            let new = Use {
                position,
                alias,
                what,
                at,
            };
            checker
                .ranges
                .cover(start, start + length, |_, segment| segment.used(queues, new));
        });
    }

    /// Reports work still to come on memory that loses its address, and blocks that are handed out there.
    pub(super) fn check_unmap(&mut self, call: &str, address: u64, mapping: &Mapping) {
        if !self.checker.on {
            return;
        }
        let mut found: Option<String> = None;
        let (start, end) = (mapping.offset, mapping.offset + mapping.size);
        let mut pending = None;
        let mut owned = None;
        let State { checker, queues, .. } = self;
        let CheckerState { ranges, blocks, .. } = checker;
        ranges.within(start, end, |from, segment| {
            let used = segment
                .uses
                .iter()
                .find(|u| u.alias == mapping.alias && !queues.observed(u.position));
            pending = pending.or(used.map(|u| (from, *u, segment.past)));
            if segment.owner != 0 {
                owned = owned.or(Some(segment.past));
            }
        });
        // A block is at this address only if it was handed out under it: another mapping of the same memory is not.
        let here = |past: &Past| {
            let block = blocks.get(&past.address).filter(|block| block.serial == past.serial);
            block.is_some_and(|b| b.address < address + mapping.size && b.address + b.size > address)
        };
        let owned = owned.filter(here);
        if let Some((from, last, past)) = pending {
            let late = if queues.complete(&[last.position], self.hot.now()) {
                "which is over, but nobody has looked"
            } else {
                "which is not over"
            };
            found = Some(format!(
                "{call} of {address:#x} + {:#x} under a {} at {} on {}, {late}; the bytes from {:#x} on were {}",
                mapping.size,
                last.what,
                last.at,
                self.describe(last.position),
                address + (from - start),
                tell(&past),
            ));
        }
        if let Some(past) = owned {
            let size = mapping.size;
            self.fault(format!(
                "{call} of {address:#x} + {size:#x} takes memory from {}",
                tell(&past)
            ));
        }
        if let Some(found) = found {
            self.fault(found);
        }
    }

    /// Physical memory that is gone has no history.
    pub(super) fn forget_memory(&mut self, offset: u64, size: u64) {
        if self.checker.on {
            self.checker.ranges.forget(offset, offset + size);
        }
    }

    /// Checks one range that `taker` is to have, except for bytes that block `keep` has already.
    fn check_range(&mut self, taker: Taker, what: &str, start: u64, length: u64, keep: u64) {
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
            if unordered.is_none() {
                let found = segment.uses.iter().find(|last| !self.ordered(taker, last.position));
                unordered = found.map(|last| (*last, segment.past));
            }
        });
        self.checker.ranges = ranges;
        if let Some(past) = overlap {
            self.checker
                .violation(format!("{what} overlaps what is out: {}", tell(&past)));
        }
        if let Some((last, past)) = unordered {
            let message = format!(
                "{what}: a {} at {} on {} is not known to be over by then; the bytes were {}",
                last.what,
                last.at,
                self.describe(last.position),
                tell(&past),
            );
            self.checker.violation(message);
        }
    }

    fn taker(&self, slot: Option<u32>) -> Taker {
        let queue = slot.map_or(u32::MAX, |slot| self.queue_of(slot));
        Taker {
            slot,
            queue,
            stream_id: self.queues.get(queue).map_or(0, |q| q.stream_id),
        }
    }

    fn physical_ranges(&self, address: u64, size: u64) -> (bool, Vec<(u64, u64, u32)>) {
        let mut found = Vec::new();
        let whole = self
            .memory
            .physical(address, size, |start, length, alias| found.push((start, length, alias)));
        (whole, found)
    }

    fn device_of(&self, address: u64) -> Option<u32> {
        let (start, mapping) = self.memory.mappings.range(..=address).next_back()?;
        (address - start < mapping.size).then_some(mapping.device)
    }

    fn hand_out(&mut self, address: u64, size: u64, slot: Option<u32>) {
        let taker = self.taker(slot);
        let now = self.hot.now();
        let what = format!(
            "{address:#x} + {size:#x} handed out on {} at {now}",
            name(taker.stream_id)
        );
        let (whole, ranges) = self.physical_ranges(address, size);
        let device = self.device_of(address);
        let reachable = device.is_none_or(|device| {
            self.memory
                .usable(address, size, super::memory::Access::Device(device))
                .is_ok()
        });
        if !whole || !reachable {
            self.checker.violation(format!("{what} is not all mapped with access"));
        }
        self.checker.serials += 1;
        let serial = self.checker.serials;
        let past = Past {
            serial,
            address,
            size,
            out_on: taker.stream_id,
            out_at: now,
            ..Past::default()
        };
        let mut first = None;
        if slot.is_some_and(|slot| self.streams[slot as usize].capture.is_some()) {
            first = Some(self.queues.submit_virtual(taker.queue, None, false));
        }
        for (start, length, alias) in ranges {
            self.check_range(taker, &what, start, length, 0);
            let State { checker, queues, .. } = self;
            let mut joined = Segment {
                end: start + length,
                owner: serial,
                uses: Vec::new(),
                past,
            };
            checker.ranges.within(start, start + length, |_, segment| {
                for &last in &segment.uses {
                    let newer = |u: &Use| u.position.0 == last.position.0 && u.alias == last.alias;
                    match joined.uses.iter_mut().find(|u| newer(u)) {
                        Some(known) if known.position.1 >= last.position.1 => {}
                        Some(known) => *known = last,
                        None if queues.observed(last.position) => {}
                        None => joined.uses.push(last),
                    }
                }
            });
            if let Some(position) = first {
                joined.used(
                    queues,
                    Use {
                        position,
                        alias,
                        what: "hand-out",
                        at: now,
                    },
                );
            }
            checker.ranges.replace(start, joined);
        }
        let block = Block {
            serial,
            address,
            size,
            on: taker.stream_id,
            at: now,
            device,
        };
        self.checker.blocks.insert(address, block);
    }

    /// Where each stream stands that may still use a device's memory.
    fn tails(&self, device: Option<u32>) -> Vec<Position> {
        let mut tails = Vec::new();
        for context in self
            .contexts
            .iter()
            .filter(|context| device.is_none_or(|device| device == context.device))
        {
            let all = context.queues.iter().map(|&queue| self.queues.tail(queue));
            tails.extend(all.filter(|&tail| !self.queues.observed(tail)));
        }
        tails
    }

    fn last_uses(&mut self, block: &Block, slot: Option<u32>) -> Vec<Position> {
        match slot {
            None => self.tails(block.device),
            Some(slot) => match self.streams[slot as usize].capture {
                Some((_, queue)) => vec![self.queues.submit_virtual(queue, None, false)],
                None => vec![self.queues.tail(self.streams[slot as usize].queue)],
            },
        }
    }

    fn give_back(&mut self, address: u64, slot: Option<u32>) {
        let Some(block) = self.checker.blocks.remove(&address) else {
            let now = self.hot.now();
            return self
                .checker
                .violation(format!("{address:#x} given back at {now} is not out"));
        };
        let uses = self.last_uses(&block, slot);
        let on = self.taker(slot).stream_id;
        let (_, ranges) = self.physical_ranges(block.address, block.size);
        self.leave(&block, &ranges, &uses, on);
    }

    /// Ends a block's hold on what it still has of `ranges`.
    fn leave(&mut self, block: &Block, ranges: &[(u64, u64, u32)], uses: &[Position], on: u64) {
        let State {
            checker, queues, hot, ..
        } = self;
        let at = hot.now();
        for &(start, length, alias) in ranges {
            checker.ranges.within(start, start + length, |_, segment| {
                if segment.owner != block.serial {
                    return;
                }
                segment.owner = 0;
                segment.past.back_on = on;
                segment.past.back_at = at;
                for &position in uses {
                    segment.used(
                        queues,
                        Use {
                            position,
                            alias,
                            what: "give-back",
                            at,
                        },
                    );
                }
            });
        }
    }

    fn resize(&mut self, old: u64, new: u64, size: u64) {
        let Some(block) = self.checker.blocks.remove(&old) else {
            let now = self.hot.now();
            return self.checker.violation(format!("{old:#x} resized at {now} is not out"));
        };
        let now = self.hot.now();
        let taker = Taker {
            slot: None,
            queue: u32::MAX,
            stream_id: 0,
        };
        let what = format!("{old:#x} + {:#x} resized to {new:#x} + {size:#x} at {now}", block.size);
        let (_, before) = self.physical_ranges(block.address, block.size);
        let (whole, after) = self.physical_ranges(new, size);
        if !whole {
            self.checker.violation(format!("{what} is not all mapped"));
        }
        self.checker.serials += 1;
        let serial = self.checker.serials;
        let past = Past {
            serial,
            address: new,
            size,
            out_on: block.on,
            out_at: block.at,
            ..Past::default()
        };
        for (start, length, _) in after {
            self.check_range(taker, &what, start, length, block.serial);
            self.checker.ranges.cover(start, start + length, |_, segment| {
                segment.owner = serial;
                segment.past = past;
            });
        }
        let uses = self.last_uses(&block, None);
        self.leave(&block, &before, &uses, 0);
        self.checker.blocks.insert(
            new,
            Block {
                serial,
                address: new,
                size,
                ..block
            },
        );
    }
}

/// The order checker of a machine. Tell it what an allocator hands out, right after, and takes back, right before.
#[derive(Debug, Clone, Copy)]
pub struct Checker<'a>(&'a Machine);

impl Checker<'_> {
    /// Whether it is on. Off, it knows nothing and costs nothing.
    pub fn is_on(&self) -> bool {
        self.0.state.lock().checker.on
    }

    /// Switches it on or off; either way it forgets everything.
    pub fn switch(&self, on: bool) {
        self.0.state.lock().checker = CheckerState::new(on);
    }

    /// `size` bytes at `address` now belong to somebody who will use them next on `stream`; none: anywhere, at once.
    pub fn hand_out(&self, address: u64, size: u64, stream: Option<usize>) {
        let thread = self.0.threads.here();
        let mut state = self.0.state.lock();
        if state.checker.on && size > 0 {
            let slot = stream.and_then(|stream| self.0.any_slot(&state, thread, stream));
            state.hand_out(address, size, slot);
        }
    }

    /// The block's owner gives it back: work queued so far on `stream`, which may be dead, may still use it; none: work
    /// queued so far on any stream of the device.
    pub fn give_back(&self, address: u64, stream: Option<usize>) {
        let thread = self.0.threads.here();
        let mut state = self.0.state.lock();
        if state.checker.on {
            let slot = stream.and_then(|stream| self.0.any_slot(&state, thread, stream));
            state.give_back(address, slot);
        }
    }

    /// The block's owner also uses it on `stream`, with work queued so far.
    pub fn used(&self, address: u64, stream: usize) {
        let thread = self.0.threads.here();
        let mut state = self.0.state.lock();
        if let Some(block) = state.checker.blocks.get(&address).copied()
            && let Some(slot) = self.0.any_slot(&state, thread, stream)
        {
            for position in state.last_uses(&block, Some(slot)) {
                state.note_use(address, block.size, position, "declared use");
            }
        }
    }

    /// The block at `old` is now `size` bytes at `new`: bytes it had stay its own, new ones must be safe for anybody.
    pub fn resize(&self, old: u64, new: u64, size: u64) {
        let mut state = self.0.state.lock();
        if state.checker.on {
            state.resize(old, new, size);
        }
    }

    /// Hand-outs that must not have been, with the history of both sides; the first thousand.
    pub fn violations(&self) -> Vec<String> {
        self.0.state.lock().checker.violations.clone()
    }

    /// Forgets the violations so far.
    pub fn clear_violations(&self) {
        self.0.state.lock().checker.violations.clear();
    }

    /// Blocks that are out.
    pub fn live_blocks(&self) -> usize {
        self.0.state.lock().checker.blocks.len()
    }

    /// Ranges it keeps something of: shows that history does not pile up.
    pub fn ranges_kept(&self) -> usize {
        self.0.state.lock().checker.ranges.len()
    }
}

impl Machine {
    /// The order checker.
    pub fn checker(&self) -> Checker<'_> {
        Checker(self)
    }
}
