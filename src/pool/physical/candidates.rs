//! Handles and segments that may go back to the driver: those in common free space.
//!
//! A pool may have very many free ranges. So they are looked for in slices, between which other calls have the pool's
//! lock. What is found is a list of candidates: a call that takes one looks whether it is still free.

use super::*;
use crate::pool::free_space::FreeRange;
use crate::support::sort;

/// A handle or segment, and the bytes of the free range that it was found in.
type Found = (u64, Idle);

/// Handles and segments that were in common free space when they were looked for, in the order in which they go back.
#[derive(Default)]
pub struct Candidates {
    found: Vec<Found>,
    /// How many of them had their turn.
    next: usize,
    /// One of them was no longer where it was found: its range may have been cut or have coalesced.
    pub changed: bool,
}

impl Candidates {
    /// Sorts what was found. The smallest ranges go first, so that what stays is contiguous. Within a range the last piece
    /// goes first, so that what lies before keeps its number.
    pub fn sort(&mut self) {
        sort::by_key(&mut self.found, |(_, idle)| (!idle.offset, 0));
        sort::by_key(&mut self.found, |(bytes, idle)| (*bytes, idle.range.into()));
    }

    /// The candidate whose turn it is.
    pub(in crate::pool::physical) fn next(&mut self) -> Option<Idle> {
        let (_, idle) = self.found.get(self.next)?;
        self.next += 1;
        Some(*idle)
    }
}

impl PhysicalMemory {
    /// Adds the candidates in `at_most` nodes from number `from` on. Returns the number to go on with; none after the last.
    pub fn look_for_candidates(
        &self,
        free_space: &FreeSpace,
        (from, at_most): (NodeId, usize),
        candidates: &mut Candidates,
    ) -> Option<NodeId> {
        let found = &mut candidates.found;
        free_space.look(from, at_most, |range| self.find_in(range, found))
    }

    /// Adds the candidates of common range `id` that have a part in the `size` bytes at `offset`.
    pub(in crate::pool::physical) fn look_in_span(
        &self,
        free_space: &FreeSpace,
        id: NodeId,
        (offset, size): (u64, u64),
        candidates: &mut Candidates,
    ) {
        if !free_space.holds(id, COMMON, offset, size) {
            return;
        }
        let (from, bytes) = free_space.span(id);
        // The first piece may begin before the span.
        let first = self.mapped.range(..=offset).next_back().map_or(offset, |(at, _)| *at);
        for mapped in self.mapped.range(first..offset + size).map(|(_, mapped)| mapped) {
            let range = FreeRange {
                id,
                owner: COMMON,
                offset: from,
                size: bytes,
            };
            if mapped.end() > offset {
                candidates.found.extend(mapped.idle_in(range));
            }
        }
    }

    /// Mapped handles and segments that are complete for every caller.
    pub(in crate::pool::physical) fn scattered(&self, free_space: &FreeSpace) -> Vec<Idle> {
        let mut candidates = Candidates::default();
        for (id, offset, size) in free_space.ranges(COMMON) {
            let range = FreeRange {
                id,
                owner: COMMON,
                offset,
                size,
            };
            self.find_in(range, &mut candidates.found);
        }
        candidates.sort();
        candidates.found.into_iter().map(|(_, idle)| idle).collect()
    }

    fn find_in(&self, range: FreeRange, found: &mut Vec<Found>) {
        let FreeRange {
            owner, offset, size, ..
        } = range;
        // No handle and no segment is smaller.
        if owner != COMMON || size + SEGMENT_PADDING < self.page {
            return;
        }
        let from = offset.saturating_sub(SEGMENT_PADDING);
        let mapped = self.mapped.range(from..offset + size);
        found.extend(mapped.filter_map(|(_, mapped)| mapped.idle_in(range)));
    }
}

impl Mapped {
    /// It as a part of a free range, if it lies in it wholly and may go back.
    fn idle_in(&self, range: FreeRange) -> Option<Found> {
        let FreeRange {
            id,
            owner,
            offset,
            size,
        } = range;
        let inside = self.offset >= offset && self.end() <= offset + size;
        let idle = Idle {
            range: id,
            owner,
            offset: self.offset,
            size: self.size,
        };
        (inside && !matches!(self.origin, Origin::External)).then_some((size, idle))
    }
}
