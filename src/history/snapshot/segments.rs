//! The address ranges that memory backs, at one moment of a history.

use std::collections::BTreeMap;

/// The segments of one moment. Mapped segments grow and shrink; an allocation from the driver appears and disappears
/// as a whole.
#[derive(Default)]
pub(in crate::history::snapshot) struct Segments {
    /// Mapped ranges: those of the final state, and those that an unmap event reports. PyTorch's viewer does not
    /// merge a range of one kind with a range of the other where no event has a stream, and fails on an event that
    /// covers both.
    mapped: [MergedRanges; 2],
    whole: BTreeMap<u64, u64>,
}

/// The source of a mapped range, as an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::history::snapshot) enum Source {
    /// The state at the end has it.
    State = 0,
    /// An event says that it was unmapped.
    Event = 1,
}

impl Segments {
    /// Whether memory backs all of a range.
    pub(in crate::history::snapshot) fn cover(&self, start: u64, size: u64) -> bool {
        let whole = self.whole.range(..=start).next_back();
        self.parts(start, size).is_some()
            || whole.is_some_and(|(at, length)| start - at < *length && size <= at + length - start)
    }

    /// Adds memory; returns false where a part of it is there already.
    pub(in crate::history::snapshot) fn add(
        &mut self,
        start: u64,
        size: u64,
        expandable: bool,
        source: Source,
    ) -> bool {
        let Some(end) = start.checked_add(size).filter(|end| *end > start) else {
            return false;
        };
        let before = self.whole.range(..end).next_back();
        let touched = self.mapped.iter().any(|ranges| ranges.touch(start, end));
        if touched || before.is_some_and(|(at, length)| at + length > start) {
            return false;
        }
        if expandable {
            self.mapped[source as usize].add(start, end);
        } else {
            self.whole.insert(start, size);
        }
        true
    }

    /// Removes memory; returns it in the parts that a viewer has. `None` where not all of it is there.
    pub(in crate::history::snapshot) fn remove(
        &mut self,
        start: u64,
        size: u64,
        expandable: bool,
    ) -> Option<Vec<(u64, u64)>> {
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

    /// Cuts `start..start + size` into the mapped ranges that contain it; `None` where not all of it is mapped.
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

/// Disjoint ranges, from start to end; adjacent ranges are merged.
#[derive(Default)]
struct MergedRanges(BTreeMap<u64, u64>);

impl MergedRanges {
    fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (start, end) = self.0.range(..=address).next_back()?;
        (address < *end).then_some((*start, *end))
    }

    /// Whether a part of `start..end` is in a range.
    fn touch(&self, start: u64, end: u64) -> bool {
        self.0.range(..end).next_back().is_some_and(|(_, reach)| *reach > start)
    }

    /// Adds a range that overlaps no other.
    fn add(&mut self, start: u64, end: u64) {
        let before = self.0.range(..start).next_back().filter(|(_, reach)| **reach == start);
        let from = before.map_or(start, |(before, _)| *before);
        let to = self.0.remove(&end).unwrap_or(end);
        self.0.insert(from, to);
    }

    /// Removes `start..end`, which must lie within one range; does nothing otherwise.
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
