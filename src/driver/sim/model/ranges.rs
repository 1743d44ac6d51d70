//! The checker's data on each byte of physical memory: the block that owns it, and its last uses.

use std::collections::BTreeMap;

use super::queue::Queues;
use super::vector_clock::Position;

/// A use whose end the host has not observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) position: Position,
    /// The mapping through which it is used.
    pub(super) alias: u32,
    pub(super) what: &'static str,
    pub(super) at: u64,
    /// The serial of the block that had the bytes then, or last before; 0: none. A graph also uses what its block gave up.
    pub(super) by: u64,
}

/// The block that bytes belong to, or belonged to last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Past {
    /// 0: none.
    pub(super) serial: u64,
    pub(super) address: u64,
    pub(super) size: u64,
    /// Ids of streams; 0: none.
    pub(super) out_on: u64,
    pub(super) out_at: u64,
    pub(super) back_on: u64,
    pub(super) back_at: u64,
    /// The last resize that began while the block had the bytes; 0: none.
    pub(super) resize: u64,
}

#[derive(Debug, Clone, Default)]
pub(super) struct TrackedRange {
    pub(super) end: u64,
    /// The serial of the block that is handed out; 0: none.
    pub(super) owner: u64,
    pub(super) uses: Vec<Use>,
    pub(super) past: Past,
}

impl TrackedRange {
    fn same(&self, other: &TrackedRange) -> bool {
        self.owner == other.owner && self.past == other.past && self.uses == other.uses
    }

    /// Records a use, and removes uses that it makes redundant: those that have ended, and those that precede it.
    pub(super) fn used(&mut self, queues: &Queues, new: Use) {
        if queues.observed(new.position) {
            return;
        }
        let order = queues.get(new.position.0).map(|queue| &queue.clock);
        self.uses.retain(|old| {
            let before = old.position.0 == new.position.0 || order.is_some_and(|clock| clock.covers(old.position));
            !(queues.observed(old.position) || before && old.alias == new.alias)
        });
        self.uses.push(new);
    }
}

/// Segments by their start. They do not overlap.
#[derive(Debug, Default)]
pub(super) struct TrackedRanges(BTreeMap<u64, TrackedRange>);

impl TrackedRanges {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Splits the segment that covers `at`, so that one begins there.
    fn cut(&mut self, at: u64) {
        if let Some((&start, segment)) = self.0.range_mut(..at).next_back()
            && segment.end > at
        {
            debug_assert!(start < at);
            let rest = segment.clone();
            segment.end = at;
            self.0.insert(at, rest);
        }
    }

    /// Calls `f` for each segment within a range, cut to it.
    pub(super) fn within(&mut self, start: u64, end: u64, mut f: impl FnMut(u64, &mut TrackedRange)) {
        if let Some(segment) = self.0.get_mut(&start)
            && segment.end == end
        {
            return f(start, segment);
        }
        self.cut(start);
        self.cut(end);
        for (&at, segment) in self.0.range_mut(start..end) {
            f(at, segment);
        }
    }

    /// As [`TrackedRanges::within`], and adds segments where there are none yet.
    pub(super) fn cover(&mut self, start: u64, end: u64, mut f: impl FnMut(u64, &mut TrackedRange)) {
        let mut gaps = Vec::new();
        let mut at = start;
        self.within(start, end, |from, segment| {
            if from > at {
                gaps.push((at, from));
            }
            at = segment.end;
            f(from, segment);
        });
        if at < end {
            gaps.push((at, end));
        }
        for (from, to) in gaps {
            let mut segment = TrackedRange {
                end: to,
                ..TrackedRange::default()
            };
            f(from, &mut segment);
            self.0.insert(from, segment);
        }
    }

    /// Joins equal neighbours within a range.
    pub(super) fn merge(&mut self, start: u64, end: u64) {
        if self.0.get(&start).is_some_and(|segment| segment.end == end) {
            return;
        }
        let mut at = start;
        while let Some(segment) = self.0.get(&at)
            && let next = segment.end
            && next < end
        {
            match self.0.get(&next) {
                Some(other) if other.same(segment) => {
                    let end = other.end;
                    self.0.remove(&next);
                    if let Some(segment) = self.0.get_mut(&at) {
                        segment.end = end;
                    }
                }
                _ => at = next,
            }
        }
    }

    /// Forgets a range.
    pub(super) fn forget(&mut self, start: u64, end: u64) {
        self.cut(start);
        self.cut(end);
        while let Some((&at, _)) = self.0.range(start..end).next() {
            self.0.remove(&at);
        }
    }
}
