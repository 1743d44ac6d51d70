//! Which range serves a request, and how it is cut.

use std::cmp::Ordering;

use super::bins::Bins;
use super::{COMMON, Heap, Node, NodeId, Owner, Space, State, fits};

/// How many ranges of a bin are looked at for the best one.
const LOOKS: usize = 8;

/// Smaller pieces are carved from the end of a range.
const SMALL: u64 = 1 << 20;

impl Heap {
    /// Takes `size` bytes at a multiple of `align` from `owner`'s best fitting range.
    pub fn take(&mut self, owner: Owner, size: u64, align: u64) -> Option<NodeId> {
        let id = self.find(owner, size, align, u64::MAX)?;
        Some(self.carve(id, size, align))
    }

    /// As [`Heap::take`], from the better fitting of `owner`'s range and a common one.
    pub fn take_either(&mut self, owner: Owner, size: u64, align: u64) -> Option<(NodeId, Owner)> {
        let own = self.find(owner, size, align, u64::MAX);
        let common = if owner == COMMON {
            None
        } else {
            self.find(COMMON, size, align, u64::MAX)
        };
        let (id, from) = match (own, common) {
            (Some(own), Some(common)) if self.nodes[common as usize].size < self.nodes[own as usize].size => {
                (common, COMMON)
            }
            (Some(own), _) => (own, owner),
            (None, common) => (common?, COMMON),
        };
        Some((self.carve(id, size, align), from))
    }

    /// As [`Heap::take`], from ranges whose stamp is at most `through`.
    pub fn take_stamped(&mut self, owner: Owner, size: u64, align: u64, through: u64) -> Option<NodeId> {
        let id = self.find(owner, size, align, through)?;
        Some(self.carve(id, size, align))
    }

    /// Takes a range that is in part `owner`'s and in part common: neighbours that only together are large enough. What is
    /// left of the common part becomes `owner`'s.
    pub fn take_joined(&mut self, owner: Owner, size: u64, align: u64) -> Option<NodeId> {
        let mut bin = self.spaces[owner.0 as usize].bins.last();
        let mut looked = 0;
        while let Some(at) = bin {
            let mut id = self.spaces[owner.0 as usize].bins.head(at);
            while id != 0 && looked < 8 * LOOKS {
                looked += 1;
                let node = &self.nodes[id as usize];
                let start = self.common(node.before).map_or(node.offset, |common| common.offset);
                let end = self
                    .common(node.after)
                    .map_or(node.offset + node.size, |common| common.offset + common.size);
                if fits(start, end - start, size, align) {
                    let id = self.annex(id, owner);
                    return Some(self.carve(id, size, align));
                }
                id = node.bin_after;
            }
            bin = (0..at)
                .rev()
                .take(64)
                .find(|bin| self.spaces[owner.0 as usize].bins.head(*bin) != 0);
        }
        None
    }

    fn common(&self, id: NodeId) -> Option<&Node> {
        Some(&self.nodes[id as usize]).filter(|node| node.state == State::Free(COMMON))
    }

    /// Makes `id` and the common ranges beside it one range of `owner`.
    fn annex(&mut self, mut id: NodeId, owner: Owner) -> NodeId {
        loop {
            let Node {
                before, after, stamp, ..
            } = self.nodes[id as usize];
            let Some(beside) = [before, after]
                .into_iter()
                .find(|beside| self.common(*beside).is_some())
            else {
                return id;
            };
            self.unlink(beside);
            self.nodes[beside as usize].state = State::Used;
            id = self.release(beside, owner, stamp);
        }
    }

    /// The best of the first few ranges that fit; every range is looked at before the answer is none.
    fn find(&self, owner: Owner, size: u64, align: u64, through: u64) -> Option<NodeId> {
        let space = &self.spaces[owner.0 as usize];
        if size == 0 || size > space.bytes {
            return None;
        }
        let first = Bins::of(size / self.granule);
        self.find_in(space, first, size, align, through, LOOKS)
            .or_else(|| self.find_in(space, first, size, align, through, usize::MAX))
    }

    fn find_in(
        &self,
        space: &Space,
        first: usize,
        size: u64,
        align: u64,
        through: u64,
        looks: usize,
    ) -> Option<NodeId> {
        let mut at = space.bins.next(first);
        while let Some(bin) = at {
            let mut best = (u64::MAX, u64::MAX, 0);
            let mut id = space.bins.head(bin);
            let mut left = looks;
            while id != 0 && left > 0 {
                let node = &self.nodes[id as usize];
                if node.stamp <= through && fits(node.offset, node.size, size, align) {
                    best = best.min((node.size, node.offset, id));
                }
                id = node.bin_after;
                left -= 1;
            }
            if best.2 != 0 {
                return Some(best.2);
            }
            at = space.bins.next(bin + 1);
        }
        None
    }

    /// How many whole pages lie between two offsets.
    fn whole_pages(&self, from: u64, to: u64) -> u64 {
        (to >> self.page_bits).saturating_sub((from + (1 << self.page_bits) - 1) >> self.page_bits)
    }

    /// Makes `size` bytes at one end of a free node a used node. What is left keeps owner, stamp and age.
    fn carve(&mut self, id: NodeId, size: u64, align: u64) -> NodeId {
        let (offset, whole) = self.span(id);
        let State::Free(owner) = self.nodes[id as usize].state else {
            unreachable!("only free nodes are carved")
        };
        let align = align.max(1);
        let (first, last) = (offset.next_multiple_of(align), (offset + whole - size) / align * align);
        // Where fewer whole pages are broken, for only whole pages can be moved; else small pieces from the end, so that what
        // large ones leave stays in one piece.
        let whole_pages = |start: u64| self.whole_pages(offset, start) + self.whole_pages(start + size, offset + whole);
        let start = match whole_pages(first).cmp(&whole_pages(last)) {
            Ordering::Less => last,
            Ordering::Equal if size < SMALL => last,
            _ => first,
        };
        let (front, back) = (start - offset, whole - (start - offset) - size);
        if front == 0 && back == 0 {
            self.unlink(id);
            self.nodes[id as usize].state = State::Used;
            return id;
        }
        self.remove_from_bin(id, owner);
        self.spaces[owner.0 as usize].bytes -= size;
        let used;
        if front > 0 {
            used = self.insert_after(id, start, size, State::Used);
            self.nodes[id as usize].size = front;
            if back > 0 {
                let rest = self.insert_after(used, start + size, back, State::Free(owner));
                self.nodes[rest as usize].stamp = self.nodes[id as usize].stamp;
                self.link_younger(owner, id, rest);
                self.add_to_bin(rest, owner);
            }
        } else {
            let before = self.nodes[id as usize].before;
            used = self.insert_after(before, start, size, State::Used);
            if before == 0 {
                self.nodes[used as usize].after = id;
                self.nodes[id as usize].before = used;
            }
            let rest = &mut self.nodes[id as usize];
            rest.offset += size;
            rest.size = back;
        }
        self.add_to_bin(id, owner);
        used
    }
}
