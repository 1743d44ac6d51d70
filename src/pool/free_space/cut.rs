//! Where free space may be cut. Memory is mapped and unmapped in extents: pages, or handles of several pages. A block
//! that takes a part of a large extent keeps all of it from being unmapped, so small blocks leave large extents whole.

use super::{FreeSpace, align_up};

/// How free space may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// At each of its ends, a block leaves less than a page of an extent unused, or at most a part of its own size
    /// ([`FreeSpace::may_leave_unused`]).
    Fair,
    /// Anywhere.
    Any,
}

/// Pieces smaller than this are taken from the end of a range.
const SMALL: u64 = 1 << 20;

/// At each of its ends, a block may leave one part in this many of its own size unused in an extent.
const UNUSED_PART: u64 = 16;

impl FreeSpace {
    /// Whether a piece of `size` bytes is taken from the end of a range.
    pub fn is_small(size: u64) -> bool {
        size < SMALL
    }

    /// The bytes of an extent of several pages that a block of `size` bytes may leave unused at each of its ends.
    pub fn may_leave_unused(size: u64) -> u64 {
        size / UNUSED_PART
    }

    /// Makes the memory at `[offset, offset + size)` one extent of several pages, until it is closed.
    pub fn join_extent(&mut self, offset: u64, size: u64) {
        self.extents.insert(offset, size);
    }

    /// Forgets an extent that is gone.
    pub(in crate::pool::free_space) fn drop_extent(&mut self, offset: u64) {
        self.extents.remove(&offset);
    }

    /// How far the extent of several pages around `at` reaches before and after it; none at an extent's edges or
    /// outside.
    fn inside(&self, at: u64) -> Option<(u64, u64)> {
        let (&offset, &size) = self.extents.range(..at).next_back()?;
        (at < offset + size).then(|| (at - offset, offset + size - at))
    }

    /// Whether a block of `size` bytes at `start` leaves little enough of the extents at its ends unused.
    pub(in crate::pool::free_space) fn is_fair(&self, start: u64, size: u64) -> bool {
        if self.extents.is_empty() {
            return true;
        }
        let page = 1 << self.page_bits;
        let little = |unused: u64| unused < page || unused <= FreeSpace::may_leave_unused(size);
        self.inside(start).is_none_or(|(before, _)| little(before))
            && self.inside(start + size).is_none_or(|(_, after)| little(after))
    }

    /// The first and the last start of `size` bytes at a multiple of `align` between two offsets.
    fn ends((from, to): (u64, u64), size: u64, align: u64) -> Option<[u64; 2]> {
        let first = align_up(from, align);
        (first.checked_add(size)? <= to).then(|| [first, (to - size) & !(align.max(1) - 1)])
    }

    /// Whether `size` bytes at a multiple of `align` can be taken out of a free range between two offsets.
    pub(in crate::pool::free_space) fn can_cut(&self, range: (u64, u64), size: u64, align: u64, cut: Cut) -> bool {
        let ends = FreeSpace::ends(range, size, align);
        ends.is_some_and(|ends| cut == Cut::Any || ends.iter().any(|start| self.is_fair(*start, size)))
    }

    /// Where they are taken. The end that breaks fewer whole extents is preferred, because only whole extents can be
    /// moved. If both break as many, small pieces come from the end, so that what large ones leave stays contiguous.
    pub(in crate::pool::free_space) fn position(
        &self,
        range: (u64, u64),
        size: u64,
        align: u64,
        cut: Cut,
    ) -> Option<u64> {
        let mut ends = FreeSpace::ends(range, size, align)?;
        let [first, last] = match range.1 - range.0 < 1 << self.page_bits {
            // No page and no extent is that small.
            true => [0; 2],
            false => ends.map(|start| self.whole(range.0, start) + self.whole(start + size, range.1)),
        };
        if first < last || first == last && FreeSpace::is_small(size) {
            ends.reverse();
        }
        ends.into_iter()
            .find(|start| cut == Cut::Any || self.is_fair(*start, size))
    }

    /// Bytes of the whole pages and extents between two offsets.
    fn whole(&self, from: u64, to: u64) -> u64 {
        let page = 1 << self.page_bits;
        let from = self
            .inside(from)
            .map_or(align_up(from, page), |(_, after)| from + after);
        let to = self.inside(to).map_or(to & !(page - 1), |(before, _)| to - before);
        to.saturating_sub(from)
    }
}
