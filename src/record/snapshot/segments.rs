//! Which addresses are backed, at one moment of a history.

use std::collections::BTreeMap;

/// The segments of one moment. What is mapped page by page grows and shrinks; an allocation of the driver's is there as a
/// whole or not at all.
#[derive(Default)]
pub(super) struct Segments {
    mapped: Ranges,
    whole: BTreeMap<u64, u64>,
}

impl Segments {
    /// Whether memory backs all of a range.
    pub(super) fn cover(&self, start: u64, size: u64) -> bool {
        let whole = self.whole.range(..=start).next_back();
        self.mapped.covers(start, size)
            || whole.is_some_and(|(at, length)| start - at < *length && size <= at + length - start)
    }

    /// Adds memory; false where a part of it is there.
    pub(super) fn add(&mut self, start: u64, size: u64, expandable: bool) -> bool {
        let Some(end) = start.checked_add(size).filter(|end| *end > start) else {
            return false;
        };
        let before = self.whole.range(..end).next_back();
        if before.is_some_and(|(at, length)| at + length > start) || self.mapped.touch(start, end) {
            return false;
        }
        if expandable {
            self.mapped.add(start, end);
        } else {
            self.whole.insert(start, size);
        }
        true
    }

    /// Takes memory away; false where not all of it is there.
    pub(super) fn remove(&mut self, start: u64, size: u64, expandable: bool) -> bool {
        if expandable {
            return self.mapped.remove(start, size);
        }
        let there = self.whole.get(&start) == Some(&size);
        if there {
            self.whole.remove(&start);
        }
        there
    }
}

/// Disjoint ranges, by their start; neighbours are one.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (start, end) = self.0.range(..=address).next_back()?;
        (address < *end).then_some((*start, *end))
    }

    fn covers(&self, start: u64, size: u64) -> bool {
        self.around(start).is_some_and(|(_, end)| size <= end - start)
    }

    /// Whether a part of `start..end` is there.
    fn touch(&self, start: u64, end: u64) -> bool {
        self.around(start).is_some() || self.0.range(start..end).next().is_some()
    }

    /// Adds a range of which no part is there.
    fn add(&mut self, start: u64, end: u64) {
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
    }

    /// Takes a range out; false where not all of it is there.
    fn remove(&mut self, start: u64, size: u64) -> bool {
        let Some((from, to)) = self.around(start).filter(|(_, to)| size > 0 && size <= to - start) else {
            return false;
        };
        let end = start + size;
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
