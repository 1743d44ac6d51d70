//! Which addresses are backed, at one moment of a history.

use std::collections::BTreeMap;

/// The segments of one moment. What is mapped page by page grows and shrinks; an allocation of the driver's is there as a
/// whole or not at all.
#[derive(Default)]
pub(super) struct Segments {
    /// What is mapped at the end, and what events tell of that it was: PyTorch's viewer does not make one range of the two
    /// where no event has a stream, and then breaks on an event that reaches from one into the other.
    mapped: [Ranges; 2],
    whole: BTreeMap<u64, u64>,
}

/// Where a range is known from, as an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// It is there at the end.
    State = 0,
    /// An event tells that it was unmapped.
    Event = 1,
}

impl Segments {
    /// Whether memory backs all of a range.
    pub(super) fn cover(&self, start: u64, size: u64) -> bool {
        let whole = self.whole.range(..=start).next_back();
        self.parts(start, size).is_some()
            || whole.is_some_and(|(at, length)| start - at < *length && size <= at + length - start)
    }

    /// Adds memory; false where a part of it is there.
    pub(super) fn add(&mut self, start: u64, size: u64, expandable: bool, of: Of) -> bool {
        let Some(end) = start.checked_add(size).filter(|end| *end > start) else {
            return false;
        };
        let before = self.whole.range(..end).next_back();
        let touched = self.mapped.iter().any(|ranges| ranges.touch(start, end));
        if touched || before.is_some_and(|(at, length)| at + length > start) {
            return false;
        }
        if expandable {
            self.mapped[of as usize].add(start, end);
        } else {
            self.whole.insert(start, size);
        }
        true
    }

    /// Takes memory away, in the parts that a viewer has it in; none where not all of it is there.
    pub(super) fn remove(&mut self, start: u64, size: u64, expandable: bool) -> Option<Vec<(u64, u64)>> {
        if !expandable {
            return self.whole.remove(&start).map(|length| vec![(start, length)]);
        }
        let parts = self.parts(start, size)?;
        for (at, length) in &parts {
            self.mapped
                .iter_mut()
                .for_each(|ranges| ranges.remove(*at, at + length));
        }
        Some(parts)
    }

    /// The mapped ranges that `start..start + size` lies in, cut to it; none where not all of it is there.
    fn parts(&self, start: u64, size: u64) -> Option<Vec<(u64, u64)>> {
        let end = start.checked_add(size).filter(|end| *end > start)?;
        let mut parts = Vec::new();
        let mut at = start;
        while at < end {
            let (_, reach) = self.mapped.iter().find_map(|ranges| ranges.around(at))?;
            let part = end.min(reach) - at;
            parts.push((at, part));
            at += part;
        }
        Some(parts)
    }
}

/// Disjoint ranges, by their start, with their end; neighbours are one.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (start, end) = self.0.range(..=address).next_back()?;
        (address < *end).then_some((*start, *end))
    }

    /// Whether a part of `start..end` is there.
    fn touch(&self, start: u64, end: u64) -> bool {
        self.0.range(..end).next_back().is_some_and(|(_, reach)| *reach > start)
    }

    /// Adds a range of which no part is there.
    fn add(&mut self, start: u64, end: u64) {
        let before = self.0.range(..start).next_back().filter(|(_, reach)| **reach == start);
        let from = before.map_or(start, |(before, _)| *before);
        let to = self.0.remove(&end).unwrap_or(end);
        self.0.insert(from, to);
    }

    /// Takes out what lies within one range; nothing where it does not.
    fn remove(&mut self, start: u64, end: u64) {
        let Some((from, to)) = self.around(start) else { return };
        self.0.remove(&from);
        if from < start {
            self.0.insert(from, start);
        }
        if end < to {
            self.0.insert(end, to);
        }
    }
}
