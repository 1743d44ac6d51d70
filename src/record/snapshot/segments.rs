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
        self.mapped.parts(start, size).is_some()
            || whole.is_some_and(|(at, length)| start - at < *length && size <= at + length - start)
    }

    /// Adds memory, which an event tells of or which is there at the end; false where a part of it is there.
    pub(super) fn add(&mut self, start: u64, size: u64, expandable: bool, of: Of) -> bool {
        let Some(end) = start.checked_add(size).filter(|end| *end > start) else {
            return false;
        };
        let before = self.whole.range(..end).next_back();
        if before.is_some_and(|(at, length)| at + length > start) || self.mapped.touch(start, end) {
            return false;
        }
        if expandable {
            self.mapped.add(start, end, of);
        } else {
            self.whole.insert(start, size);
        }
        true
    }

    /// Takes memory away, in the parts that a viewer has it in; none where not all of it is there.
    pub(super) fn remove(&mut self, start: u64, size: u64, expandable: bool) -> Option<Vec<(u64, u64)>> {
        if expandable {
            return self.mapped.remove(start, size);
        }
        self.whole.remove(&start).map(|length| vec![(start, length)])
    }
}

/// Where a mapped range is known from. PyTorch's viewer does not make one range of two kinds where no event has a stream, and
/// then breaks on an event that reaches from one into the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// It is there at the end.
    State,
    /// An event tells that it was unmapped.
    Event,
}

/// Disjoint ranges, by their start, with their end; neighbours of a kind are one.
#[derive(Default)]
struct Ranges(BTreeMap<u64, (u64, Of)>);

impl Ranges {
    /// The ranges that `start..start + size` lies in, cut to it; none where not all of it is there.
    fn parts(&self, start: u64, size: u64) -> Option<Vec<(u64, u64)>> {
        let end = start.checked_add(size).filter(|end| *end > start)?;
        let mut parts = Vec::new();
        let mut at = start;
        while at < end {
            let (_, (reach, _)) = self.0.range(..=at).next_back().filter(|(_, (reach, _))| *reach > at)?;
            let part = end.min(*reach) - at;
            parts.push((at, part));
            at += part;
        }
        Some(parts)
    }

    /// Whether a part of `start..end` is there.
    fn touch(&self, start: u64, end: u64) -> bool {
        self.0
            .range(..end)
            .next_back()
            .is_some_and(|(_, (reach, _))| *reach > start)
    }

    /// Adds a range of which no part is there.
    fn add(&mut self, start: u64, end: u64, of: Of) {
        let (mut from, mut to) = (start, end);
        if let Some((before, reach)) = self.0.range(..start).next_back()
            && *reach == (start, of)
        {
            from = *before;
        }
        if let Some((reach, _)) = self.0.get(&end).filter(|(_, kind)| *kind == of).copied() {
            self.0.remove(&end);
            to = reach;
        }
        self.0.insert(from, (to, of));
    }

    /// Takes a range out; see [`Ranges::parts`].
    fn remove(&mut self, start: u64, size: u64) -> Option<Vec<(u64, u64)>> {
        let parts = self.parts(start, size)?;
        for (at, length) in &parts {
            if let Some((from, (to, of))) = self.0.range(..=at).next_back().map(|(from, to)| (*from, *to)) {
                self.0.remove(&from);
                if from < *at {
                    self.0.insert(from, (*at, of));
                }
                if at + length < to {
                    self.0.insert(at + length, (to, of));
                }
            }
        }
        Some(parts)
    }
}
