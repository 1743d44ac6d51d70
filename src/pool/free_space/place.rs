//! Holes: where memory can be mapped, and where it was unmapped.

use super::{COMMON, FreeSpace, Node, NodeId, Owner, State, fits};

/// A place where mapping new memory makes room for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The start of the range to map: page-aligned, inside one hole.
    pub offset: u64,
    /// Its size in bytes.
    pub size: u64,
    /// The largest size that it could have.
    pub room: u64,
    /// The owner with whose free space it is to coalesce.
    pub owner: Owner,
    /// Where the request will start, with the free space next to the place included.
    pub start: u64,
}

impl FreeSpace {
    /// The cheapest place for `size` bytes at `align`, in whole pages of `page` bytes. It lies next to free ranges of
    /// `owner`, or common ones, that already hold a part of the request, where that is a fair cut. None where the
    /// address range is exhausted.
    pub fn place(&self, owner: Owner, size: u64, align: u64, page: u64) -> Option<Place> {
        let mut best: Option<Place> = None;
        for id in self.holes.values() {
            for owner in [COMMON, owner] {
                let place = self.place_at(*id, owner, size, align, page);
                if let Some(place) = place.filter(|place| {
                    best.is_none_or(|best| {
                        (place.size, std::cmp::Reverse(place.room)) < (best.size, std::cmp::Reverse(best.room))
                    })
                }) {
                    best = Some(place);
                }
            }
        }
        best
    }

    /// As [`FreeSpace::place`], where there is the most room, whatever is free next to it.
    pub fn roomiest_place(&self, owner: Owner, size: u64, align: u64, page: u64) -> Option<Place> {
        let holes = self.holes.values().map(|id| &self.nodes[*id as usize]);
        let places = holes.filter_map(|hole| {
            let end = (hole.offset + hole.size) / page * page;
            let start = hole.offset.next_multiple_of(page.max(align));
            let size = size.checked_next_multiple_of(page)?;
            (start.checked_add(size)? <= end).then(|| Place {
                offset: start,
                size,
                room: end - start,
                owner,
                start,
            })
        });
        places.max_by_key(|place| place.room)
    }

    fn place_at(&self, id: NodeId, owner: Owner, size: u64, align: u64, page: u64) -> Option<Place> {
        let hole = &self.nodes[id as usize];
        let free = |id: NodeId| Some(&self.nodes[id as usize]).filter(|node| node.state == State::Free(owner));
        let begin = hole.offset.next_multiple_of(page);
        let end = (hole.offset + hole.size) / page * page;
        if begin >= end {
            return None;
        }
        let mut best = None;
        let mut consider = |offset: u64, stop: u64, start: u64| {
            let smaller = |best: Place| stop - offset < best.size;
            if offset < stop && stop <= end && best.is_none_or(smaller) && self.is_fair(start, size) {
                best = Some(Place {
                    offset,
                    size: stop - offset,
                    room: end - offset,
                    owner,
                    start,
                });
            }
        };
        // Against the left neighbour, upwards: the request starts inside it, or at the hole's first page.
        let left = free(hole.before)
            .filter(|_| begin == hole.offset)
            .map_or(begin, |left| left.offset);
        let right = free(hole.after).filter(|_| end == hole.offset + hole.size);
        for start in [left, begin] {
            let start = start.next_multiple_of(align.max(1));
            let from = (start / page * page).max(begin);
            consider(from, start.checked_add(size)?.next_multiple_of(page), start);
            // Or across the whole hole into the right neighbour.
            if let Some(right) = right {
                let limit = right.offset + right.size;
                if fits(start, limit.saturating_sub(start), size, align) && start.checked_add(size)? > end {
                    consider(from, end, start);
                }
            }
        }
        // Against the right neighbour, downwards.
        if let Some(right) = right
            && let Some(start) = (right.offset + right.size).checked_sub(size)
        {
            let start = start / align.max(1) * align.max(1);
            let from = start / page * page;
            if from >= begin {
                consider(from, end, start);
            }
        }
        best
    }

    /// Turns `[offset, offset + size)` inside a hole, where memory was mapped, into `owner`'s free space behind
    /// `event_number`.
    pub fn open(&mut self, offset: u64, size: u64, owner: Owner, event_number: u64) -> bool {
        let id = self.withhold(offset, size);
        id.is_some_and(|id| self.release(id, owner, event_number) != 0)
    }

    /// Makes `[offset, offset + size)`, inside a hole, a used node, so that nothing will be mapped there.
    pub fn withhold(&mut self, offset: u64, size: u64) -> Option<NodeId> {
        let (&at, &id) = self.holes.range(..=offset).next_back()?;
        if offset + size > at + self.nodes[id as usize].size {
            return None;
        }
        self.holes.remove(&at);
        let id = self.cut(id, offset, size);
        self.nodes[id as usize].state = State::Used;
        Some(id)
    }

    /// Turns a node of [`FreeSpace::withhold`] into a hole again.
    pub fn restore(&mut self, id: NodeId) {
        debug_assert_eq!(self.nodes[id as usize].state, State::Used);
        self.nodes[id as usize].state = State::Hole;
        self.join_hole(id);
    }

    /// Turns `[offset, offset + size)` into a hole, because its memory is going to be unmapped. It lies wholly inside
    /// the common free range `id`. What lies before it in the range keeps the number `id`, so several pieces are closed
    /// from the last to the first.
    pub fn close(&mut self, id: NodeId, offset: u64, size: u64) -> bool {
        let Node {
            offset: from,
            size: whole,
            state,
            ..
        } = self.nodes[id as usize];
        if state != State::Free(COMMON) || offset < from || offset + size > from + whole {
            return false;
        }
        self.unlink(id);
        self.nodes[id as usize].state = State::Used;
        self.drop_extent(offset);
        let middle = self.cut(id, offset, size);
        self.nodes[middle as usize].state = State::Hole;
        self.join_hole(middle);
        true
    }

    /// Opens a segment between holes, as common free space: `size` bytes at `rest` beyond a multiple of `page`. A hole
    /// stays on either side, in which only other such segments are opened, so no range ever reaches from one segment
    /// into the next. Returns its offset; none where no hole has the room.
    pub fn open_apart(&mut self, size: u64, page: u64, rest: u64) -> Option<u64> {
        let offset = self.holes.values().find_map(|id| {
            let hole = &self.nodes[*id as usize];
            let first = hole.offset + self.granule;
            let offset = first.checked_add(rest.wrapping_sub(first) & (page - 1))?;
            let end = offset.checked_add(size)?.checked_add(self.granule)?;
            (end <= hole.offset + hole.size).then_some(offset)
        })?;
        self.open(offset, size, COMMON, 0).then_some(offset)
    }

    /// Cuts `[offset, offset + size)` out of a node that is a hole or used. What is left of a hole stays a hole, and
    /// what is left of a used node becomes common free space. Returns the node of the cut.
    fn cut(&mut self, id: NodeId, offset: u64, size: u64) -> NodeId {
        let Node {
            offset: from,
            size: whole,
            state,
            ..
        } = self.nodes[id as usize];
        let (front, back) = (offset - from, from + whole - offset - size);
        let mut middle = id;
        if front > 0 {
            self.nodes[id as usize].size = front;
            middle = self.insert_after(id, offset, size, state);
        }
        self.nodes[middle as usize].size = size;
        if back > 0 {
            let rest = self.insert_after(middle, offset + size, back, state);
            self.poll(rest, state);
        }
        if front > 0 {
            self.poll(id, state);
        }
        middle
    }

    fn poll(&mut self, id: NodeId, state: State) {
        if state == State::Hole {
            self.holes.insert(self.nodes[id as usize].offset, id);
        } else {
            self.release(id, COMMON, 0);
        }
    }

    /// Coalesces a new hole with adjacent holes.
    fn join_hole(&mut self, mut id: NodeId) {
        let Node { before, after, .. } = self.nodes[id as usize];
        if before != 0 && self.nodes[before as usize].state == State::Hole {
            self.nodes[before as usize].size += self.nodes[id as usize].size;
            self.drop_node(id);
            id = before;
        }
        if after != 0 && self.nodes[after as usize].state == State::Hole {
            self.holes.remove(&self.nodes[after as usize].offset);
            self.nodes[id as usize].size += self.nodes[after as usize].size;
            self.drop_node(after);
        }
        self.holes.insert(self.nodes[id as usize].offset, id);
    }
}
