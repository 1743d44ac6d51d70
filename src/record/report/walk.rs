//! A device's memory, moment by moment.

use std::collections::{BTreeMap, HashMap};

use super::course::{Course, NEVER};

/// What changes at a moment, in the order in which it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Freed,
    LifeEnds,
    RangeEnds,
    RangeBegins,
    LifeBegins,
}

/// Goes from moment to moment, beginning before the first event.
#[derive(Debug)]
pub struct Walk<'a> {
    course: &'a Course,
    /// When what happens to which life or range.
    changes: Vec<(u32, Change, u32)>,
    next: usize,
    moment: u32,
    /// Blocks by their address.
    live: BTreeMap<u64, u32>,
    /// Ranges by their address.
    mapped: BTreeMap<u64, u32>,
    /// Which stream freed a range last: by its beginning, its end and the stream. Ranges do not overlap.
    freed_on: BTreeMap<u64, (u64, u64)>,
    /// Bytes of blocks that are handed out.
    pub allocated: u64,
    /// Bytes of blocks that are freed and not free.
    pub pending: u64,
    /// Bytes with memory behind them.
    pub reserved: u64,
}

/// Free memory at a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Free {
    /// Bytes.
    pub bytes: u64,
    /// In how many ranges.
    pub ranges: u64,
    /// Bytes of the largest.
    pub largest: u64,
    /// Of the bytes, those that each stream freed last.
    pub by_stream: HashMap<u64, u64>,
}

impl<'a> Walk<'a> {
    /// Before the first event.
    pub fn new(course: &'a Course) -> Walk<'a> {
        let mut changes = Vec::with_capacity(course.lives.len() * 3 + course.ranges.len() * 2);
        for (number, life) in (0..).zip(&course.lives) {
            changes.push((life.start, Change::LifeBegins, number));
            // What is pending from its beginning is so just after it.
            if life.freed < life.end && life.freed > life.start {
                changes.push((life.freed, Change::Freed, number));
            }
            if life.end != NEVER {
                changes.push((life.end, Change::LifeEnds, number));
            }
        }
        for (number, range) in (0..).zip(&course.ranges) {
            changes.push((range.start, Change::RangeBegins, number));
            if range.end != NEVER {
                changes.push((range.end, Change::RangeEnds, number));
            }
        }
        changes.sort_unstable();
        let mut walk = Walk {
            course,
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
        walk.to(0);
        walk
    }

    /// Goes on to a later moment; false where nothing has changed since.
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

    /// The numbers of the lives that are there, by address.
    pub fn live(&self) -> impl Iterator<Item = u32> + '_ {
        self.live.values().copied()
    }

    fn range(&mut self, change: Change, number: u32) {
        let range = &self.course.ranges[number as usize];
        if change == Change::RangeBegins {
            self.mapped.insert(range.address, number);
            self.reserved = self.reserved.saturating_add(range.size);
            return;
        }
        self.mapped.remove(&range.address);
        self.reserved = self.reserved.saturating_sub(range.size);
        self.forget(range.address, range.address + range.size);
    }

    fn life(&mut self, change: Change, number: u32) {
        let life = &self.course.lives[number as usize];
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
        self.forget(life.address, end);
        self.freed_on.insert(life.address, (end, life.stream));
    }

    /// Nobody is known to have freed the range.
    fn forget(&mut self, start: u64, end: u64) {
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

    /// Calls `each` with the beginning and the end of every free range.
    pub fn gaps(&self, mut each: impl FnMut(u64, u64)) {
        let mut blocks = self
            .live
            .values()
            .map(|number| &self.course.lives[*number as usize])
            .peekable();
        let mut ranges = self
            .mapped
            .values()
            .map(|number| &self.course.ranges[*number as usize])
            .peekable();
        while let Some(first) = ranges.next() {
            let mut end = first.address + first.size;
            let grows = |next: &&super::Range, end: u64| first.expandable && next.expandable && next.address == end;
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

    /// What is free now.
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
