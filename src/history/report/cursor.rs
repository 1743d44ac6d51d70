//! A device's memory at one moment of its timeline.

use std::collections::{BTreeMap, HashMap};

use super::timeline::{NEVER, Timeline};
use crate::support::sort;

/// A kind of change. Changes at one moment happen in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Freed,
    LifeEnds,
    RangeEnds,
    RangeBegins,
    LifeBegins,
}

/// The memory at one moment. It begins before the first event and can only move forward.
#[derive(Debug)]
pub struct Cursor<'a> {
    timeline: &'a Timeline,
    /// All changes: the moment, the kind, and the number of the block or range.
    changes: Vec<(u32, Change, u32)>,
    next: usize,
    moment: u32,
    /// The blocks at this moment, by address.
    live: BTreeMap<u64, u32>,
    /// The mapped ranges at this moment, by address.
    mapped: BTreeMap<u64, u32>,
    /// The stream that last freed each range: start, then end and stream. Ranges do not overlap.
    freed_on: BTreeMap<u64, (u64, u64)>,
    /// Bytes of allocated blocks.
    pub allocated: u64,
    /// Bytes of blocks freed but not yet reusable.
    pub pending: u64,
    /// Bytes of mapped ranges.
    pub reserved: u64,
}

/// Free memory at a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Free {
    /// Bytes.
    pub bytes: u64,
    /// The number of ranges.
    pub ranges: u64,
    /// Bytes of the largest range.
    pub largest: u64,
    /// Of the bytes, those that each stream freed last.
    pub by_stream: HashMap<u64, u64>,
}

impl<'a> Cursor<'a> {
    /// The memory before the first event.
    pub fn new(timeline: &'a Timeline) -> Cursor<'a> {
        let mut changes = Vec::with_capacity(timeline.lives.len() * 3 + timeline.ranges.len() * 2);
        for (number, life) in (0..).zip(&timeline.lives) {
            changes.push((life.start, Change::LifeBegins, number));
            // A block that is pending from its beginning has no separate change.
            if life.freed < life.end && life.freed > life.start {
                changes.push((life.freed, Change::Freed, number));
            }
            if life.end != NEVER {
                changes.push((life.end, Change::LifeEnds, number));
            }
        }
        for (number, range) in (0..).zip(&timeline.ranges) {
            changes.push((range.start, Change::RangeBegins, number));
            if range.end != NEVER {
                changes.push((range.end, Change::RangeEnds, number));
            }
        }
        let kind = |(moment, change, number): &(u32, Change, u32)| {
            (u64::from(*moment) << 8 | *change as u64, (*number).into())
        };
        sort::by_key(&mut changes, kind);
        let mut cursor = Cursor {
            timeline,
            changes,
            next: 0,
            moment: 0,
            live: BTreeMap::new(),
            mapped: BTreeMap::new(),
            freed_on: BTreeMap::new(),
            allocated: 0,
            pending: 0,
            reserved: 0,
        };
        cursor.to(0);
        cursor
    }

    /// Moves to a later moment; returns false where nothing has changed since.
    pub fn to(&mut self, moment: u32) -> bool {
        let before = self.next;
        self.moment = moment.max(self.moment);
        while let Some((at, change, number)) = self.changes.get(self.next).copied() {
            if at > self.moment {
                break;
            }
            self.next += 1;
            match change {
                Change::RangeBegins | Change::RangeEnds => self.range(change, number),
                _ => self.life(change, number),
            }
        }
        self.next != before
    }

    /// The numbers of the blocks at this moment, by address.
    pub fn live(&self) -> impl Iterator<Item = u32> + '_ {
        self.live.values().copied()
    }

    fn range(&mut self, change: Change, number: u32) {
        let range = &self.timeline.ranges[number as usize];
        if change == Change::RangeBegins {
            self.mapped.insert(range.address, number);
            self.reserved = self.reserved.saturating_add(range.size);
            return;
        }
        self.mapped.remove(&range.address);
        self.reserved = self.reserved.saturating_sub(range.size);
        self.forget_freed(range.address, range.address + range.size);
    }

    fn life(&mut self, change: Change, number: u32) {
        let life = &self.timeline.lives[number as usize];
        let pending = life.freed <= life.start;
        let (from, to) = match change {
            Change::LifeBegins => {
                self.live.insert(life.address, number);
                let to = if pending {
                    &mut self.pending
                } else {
                    &mut self.allocated
                };
                *to = to.saturating_add(life.size);
                return;
            }
            Change::Freed => (&mut self.allocated, Some(&mut self.pending)),
            _ if pending || life.freed < life.end => (&mut self.pending, None),
            _ => (&mut self.allocated, None),
        };
        *from = from.saturating_sub(life.size);
        if let Some(to) = to {
            *to = to.saturating_add(life.size);
            return;
        }
        if self.live.get(&life.address) == Some(&number) {
            self.live.remove(&life.address);
        }
        let end = life.address.saturating_add(life.size);
        self.forget_freed(life.address, end);
        self.freed_on.insert(life.address, (end, life.stream));
    }

    /// Forgets which streams freed the range.
    fn forget_freed(&mut self, start: u64, end: u64) {
        let before = self.freed_on.range(..start).next_back();
        if let Some((from, (reach, stream))) = before.map(|(from, to)| (*from, *to))
            && reach > start
        {
            self.freed_on.insert(from, (start, stream));
            if reach > end {
                self.freed_on.insert(end, (reach, stream));
            }
        }
        while let Some((from, (reach, stream))) = self.freed_on.range(start..end).next().map(|(from, to)| (*from, *to))
        {
            self.freed_on.remove(&from);
            if reach > end {
                self.freed_on.insert(end, (reach, stream));
            }
        }
    }

    /// How many blocks and ranges a pass over the memory looks at.
    pub(in crate::history::report) fn parts(&self) -> usize {
        self.live.len() + self.mapped.len() + self.freed_on.len()
    }

    /// Calls `each` with the start and the end of every free range.
    pub fn gaps(&self, mut each: impl FnMut(u64, u64)) {
        let mut blocks = self
            .live
            .values()
            .map(|number| &self.timeline.lives[*number as usize])
            .peekable();
        let mut ranges = self
            .mapped
            .values()
            .map(|number| &self.timeline.ranges[*number as usize])
            .peekable();
        while let Some(first) = ranges.next() {
            let mut end = first.address + first.size;
            let grows =
                |next: &&super::MappedRange, end: u64| first.expandable && next.expandable && next.address == end;
            while let Some(next) = ranges.next_if(|next| grows(next, end)) {
                end = next.address + next.size;
            }
            let mut at = first.address;
            while let Some(block) = blocks.next_if(|block| block.address < end) {
                if block.address > at {
                    each(at, block.address);
                }
                at = at.max(block.address.saturating_add(block.size));
            }
            if at < end {
                each(at, end);
            }
        }
    }

    /// The free memory at this moment.
    pub fn free(&self) -> Free {
        let mut free = Free::default();
        self.gaps(|start, end| {
            free.bytes += end - start;
            free.ranges += 1;
            free.largest = free.largest.max(end - start);
            let before = self.freed_on.range(..start).next_back();
            let parts = before.into_iter().chain(self.freed_on.range(start..end));
            for (from, (reach, stream)) in parts {
                let bytes = end.min(*reach).saturating_sub(start.max(*from));
                if bytes > 0 {
                    *free.by_stream.entry(*stream).or_default() += bytes;
                }
            }
        });
        free
    }
}
