//! What is known of each byte of physical memory: who owns it, and who used it last.

use std::collections::BTreeMap;

use super::queue::{Position, Queues};

/// A use that the host has not seen the end of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) position: Position,
    /// Through which mapping.
    pub(super) alias: u32,
    pub(super) what: &'static str,
    pub(super) at: u64,
}

/// The block that bytes belong to, or did last.
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
}

#[derive(Debug, Clone, Default)]
pub(super) struct Segment {
    pub(super) end: u64,
    /// The serial of the block that is out; 0: none.
    pub(super) owner: u64,
    pub(super) uses: Vec<Use>,
    pub(super) past: Past,
}

impl Segment {
    /// Remembers a use, and forgets what it makes needless: uses that are over, and those that lie before it.
    pub(super) fn used(&mut self, queues: &Queues, new: Use) {
        if queues.observed(new.position) {
            return;
        }
        let order = queues.get(new.position.0).map(|queue| &queue.clock);
        self.uses.retain(|old| {
            let before = old.position.0 == new.position.0 || order.is_some_and(|clock| clock.covers(old.position));
            !(before && old.alias == new.alias) && !queues.observed(old.position)
        });
        self.uses.push(new);
    }
}

/// Segments by where they begin; they do not overlap.
#[derive(Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, Segment>);

impl Ranges {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Makes a segment begin at `at`, where one covers it.
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

    /// Calls `f` with all that is known within a range, cut to it.
    pub(super) fn within(&mut self, start: u64, end: u64, mut f: impl FnMut(u64, &mut Segment)) {
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

    /// As [`Ranges::within`], with a new segment wherever nothing is known yet.
    pub(super) fn cover(&mut self, start: u64, end: u64, mut f: impl FnMut(u64, &mut Segment)) {
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
            let mut segment = Segment {
                end: to,
                ..Segment::default()
            };
            f(from, &mut segment);
            self.0.insert(from, segment);
        }
    }

    /// Puts one segment in the place of all within its range. Call [`Ranges::within`] for that range first.
    pub(super) fn replace(&mut self, start: u64, segment: Segment) {
        let end = segment.end;
        if let Some(only) = self.0.get_mut(&start)
            && only.end == end
        {
            *only = segment;
            return;
        }
        while let Some((&at, _)) = self.0.range(start..end).next() {
            self.0.remove(&at);
        }
        self.0.insert(start, segment);
    }

    /// Forgets a range.
    pub(super) fn forget(&mut self, start: u64, end: u64) {
        self.replace(
            start,
            Segment {
                end,
                ..Segment::default()
            },
        );
        self.0.remove(&start);
    }
}
