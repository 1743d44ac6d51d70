//! Disjoint ranges of numbers. Ranges that adjoin are one, so what grew by small steps has few.

use std::collections::BTreeMap;

/// The first number of a range and its length.
pub(super) type Range = (u64, u64);

#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// The first number of each range, and the number behind its last one.
    ends: BTreeMap<u64, u64>,
    total: u64,
}

impl Ranges {
    /// How many numbers there are.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// How many ranges there are.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn clear(&mut self) {
        *self = Ranges::default();
    }

    /// Adds a range that has no number of another one.
    pub(super) fn add(&mut self, (start, length): Range) {
        if length == 0 {
            return;
        }
        let end = self.ends.remove(&(start + length)).unwrap_or(start + length);
        let before = self
            .ends
            .range(..start)
            .next_back()
            .filter(|(_, reach)| **reach == start);
        let start = before.map_or(start, |(before, _)| *before);
        self.ends.insert(start, end);
        self.total += length;
    }

    /// Removes a range. It is part of one that is there.
    pub(super) fn remove(&mut self, (start, length): Range) {
        let Some((from, to)) = self.ends.range(..=start).next_back().map(|(from, to)| (*from, *to)) else {
            return;
        };
        let end = start + length;
        if length == 0 || end > to {
            return;
        }
        self.ends.remove(&from);
        if from < start {
            self.ends.insert(from, start);
        }
        if end < to {
            self.ends.insert(end, to);
        }
        self.total -= length;
    }

    /// The first gap from `at` to `end`: its first number, and the one behind its last.
    pub(super) fn gap(&self, at: u64, end: u64) -> Option<(u64, u64)> {
        let before = self.ends.range(..=at).next_back();
        let start = before.map_or(at, |(_, reach)| at.max(*reach));
        let next = self.ends.range(start..).next();
        let until = next.map_or(end, |(next, _)| end.min(*next));
        (start < until).then_some((start, until))
    }

    /// All gaps from `at` to `end`.
    pub(super) fn gaps(&self, at: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut at = at;
        std::iter::from_fn(move || {
            let gap = self.gap(at, end)?;
            at = gap.1;
            Some(gap)
        })
    }
}
