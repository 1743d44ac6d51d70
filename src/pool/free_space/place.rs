//! Holes: where memory can be mapped, and where it was unmapped.

use super::{COMMON, FreeSpace, Node, NodeId, NodeState, Owner, fits};

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
    /// `owner`, or common ones, that already hold a part of the request, where that is a fair cut; otherwise at the end
    /// of `owner`'s arena. No place lies at the end of another owner's arena, unless the address range is nearly
    /// exhausted. None where it is exhausted.
    pub fn place(&self, owner: Owner, size: u64, align: u64, page: u64) -> Option<Place> {
        let best = self.best_place(owner, size, align, page, |hole| {
            self.fronts.get(&hole).is_none_or(|of| *of == owner)
        });
        let front = self.spaces[owner.0 as usize].front;
        // Where the arena has an end, or another place needs less than a new arena would.
        if best.is_some_and(|best| best.size < size || front == Some(best.offset)) {
            return best;
        }
        self.new_arena(owner, size, align, page)
            .or(best)
            .or_else(|| self.best_place(owner, size, align, page, |_| true))
    }

    fn best_place(
        &self,
        owner: Owner,
        size: u64,
        align: u64,
        page: u64,
        may_use: impl Fn(u64) -> bool,
    ) -> Option<Place> {
        let mut best: Option<Place> = None;
        for (_, id) in self.holes.iter().filter(|(offset, _)| may_use(**offset)) {
            for owner in [owner, COMMON] {
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

    /// A place that begins an arena of `owner`: in the middle of the largest hole, so that the arena before the hole
    /// can grow as well, or at the start of a hole where no arena ends.
    fn new_arena(&self, owner: Owner, size: u64, align: u64, page: u64) -> Option<Place> {
        let step = page.max(align);
        let places = self.holes.values().filter_map(|id| {
            let hole = &self.nodes[*id as usize];
            let end = (hole.offset + hole.size) / page * page;
            let is_front = self.fronts.contains_key(&hole.offset);
            let skipped = if is_front { hole.size / 2 } else { 0 };
            let start = (hole.offset + skipped).next_multiple_of(step);
            let size = size.checked_next_multiple_of(page)?;
            let room = end.checked_sub(start)?;
            (size <= room && (!is_front || room >= self.arena_room)).then_some(Place {
                offset: start,
                size,
                room,
                owner,
                start,
            })
        });
        places.max_by_key(|place| place.room)
    }

    /// As [`FreeSpace::place`], where there is the most room, whatever is free next to it: at the end of `owner`'s
    /// arena if `size` bytes fit there.
    pub fn roomiest_place(&self, owner: Owner, size: u64, align: u64, page: u64) -> Option<Place> {
        let at = |hole: &Node| {
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
        };
        let front = self.spaces[owner.0 as usize].front;
        let own = front.and_then(|front| at(&self.nodes[*self.holes.get(&front)? as usize]));
        let holes = self.holes.values().map(|id| &self.nodes[*id as usize]);
        own.or_else(|| self.new_arena(owner, size, align, page))
            .or_else(|| holes.filter_map(at).max_by_key(|place| place.room))
    }

    fn place_at(&self, id: NodeId, owner: Owner, size: u64, align: u64, page: u64) -> Option<Place> {
        let hole = &self.nodes[id as usize];
        let free = |id: NodeId| {
            let node = &self.nodes[id as usize];
            (node.state == NodeState::Free(owner) && node.home == owner).then_some(node)
        };
        let begin = hole.offset.next_multiple_of(page);
        let end = (hole.offset + hole.size) / page * page;
        if begin >= end {
            return None;
        }
        let mut best = None;
        let mut consider = |offset: u64, stop: u64, start: u64| {
            let smaller = |best: Place| stop - offset < best.size;
            let fair = owner != COMMON || self.is_fair(start, size);
            if offset < stop && stop <= end && best.is_none_or(smaller) && fair {
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
        let Some(id) = self.withhold(offset, size) else {
            return false;
        };
        self.move_front(owner, offset, offset + size);
        self.release(id, owner, event_number);
        true
    }

    /// Notes that `owner` got memory from `offset` to `end`: its arena ends there, if that is its first memory, the
    /// memory continues its arena, or nothing can continue the arena any more.
    fn move_front(&mut self, owner: Owner, offset: u64, end: u64) {
        let front = self.spaces[owner.0 as usize].front;
        let continues = front.is_none_or(|front| front <= offset || !self.holes.contains_key(&front));
        if !continues || !self.holes.contains_key(&end) || self.fronts.contains_key(&end) {
            return;
        }
        if let Some(front) = front {
            self.fronts.remove(&front);
        }
        self.fronts.insert(end, owner);
        self.spaces[owner.0 as usize].front = Some(end);
    }

    /// As [`FreeSpace::withhold`], where memory is going to be mapped. An arena that ends there ends behind it until then, so
    /// that no other arena begins in between.
    pub fn begin_mapping(&mut self, offset: u64, size: u64) -> Option<NodeId> {
        let id = self.withhold(offset, size)?;
        let end = offset + size;
        if self.holes.contains_key(&end) && !self.fronts.contains_key(&end) {
            self.move_end(offset, end);
        }
        Some(id)
    }

    /// Turns a node of [`FreeSpace::begin_mapping`], where memory is mapped now, into `owner`'s free space.
    pub fn end_mapping(&mut self, id: NodeId, owner: Owner) {
        let (offset, size) = self.span(id);
        self.move_end(offset + size, offset);
        self.move_front(owner, offset, offset + size);
        self.release(id, owner, 0);
    }

    /// Makes `[offset, offset + size)`, inside a hole, a used node, so that nothing will be mapped there.
    pub fn withhold(&mut self, offset: u64, size: u64) -> Option<NodeId> {
        let (&at, &id) = self.holes.range(..=offset).next_back()?;
        if offset + size > at + self.nodes[id as usize].size {
            return None;
        }
        self.holes.remove(&at);
        let id = self.cut(id, offset, size, (COMMON, 0));
        self.nodes[id as usize].state = NodeState::Used;
        Some(id)
    }

    /// Turns a node of [`FreeSpace::withhold`] into a hole again.
    pub fn restore(&mut self, id: NodeId) {
        debug_assert_eq!(self.nodes[id as usize].state, NodeState::Used);
        self.nodes[id as usize].state = NodeState::Hole;
        self.join_hole(id);
    }

    /// Turns a used node, whose memory was unmapped, into a hole.
    pub fn vacate(&mut self, id: NodeId) {
        self.drop_extent(self.nodes[id as usize].offset);
        self.restore(id);
    }

    /// Makes `[offset, offset + size)` a used node, because its memory is going to be unmapped. It lies wholly inside
    /// the free range `id`. What lies before it in the range keeps the number `id`, so several pieces are withdrawn from the
    /// last to the first.
    pub fn withdraw(&mut self, id: NodeId, offset: u64, size: u64) -> Option<NodeId> {
        let Node {
            offset: from,
            size: whole,
            state,
            event_number,
            ..
        } = self.nodes[id as usize];
        let NodeState::Free(owner) = state else {
            return None;
        };
        if offset < from || offset + size > from + whole {
            return None;
        }
        self.unlink(id);
        self.nodes[id as usize].state = NodeState::Used;
        Some(self.cut(id, offset, size, (owner, event_number)))
    }

    /// Turns a part of a free range into a hole: see [`FreeSpace::withdraw`].
    #[cfg(test)]
    pub fn close(&mut self, id: NodeId, offset: u64, size: u64) -> bool {
        let withdrawn = self.withdraw(id, offset, size);
        withdrawn.map(|id| self.vacate(id)).is_some()
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

    /// The end of an arena at `from` moves to `to`, unless another arena ends there.
    fn move_end(&mut self, from: u64, to: u64) {
        let Some(owner) = self.fronts.remove(&from) else { return };
        let taken = self.fronts.contains_key(&to);
        self.spaces[owner.0 as usize].front = (!taken).then_some(to);
        if !taken {
            self.fronts.insert(to, owner);
        }
    }

    /// Cuts `[offset, offset + size)` out of a node that is a hole or used. What is left of a hole stays a hole, and
    /// what is left of a used node becomes free space of `rest_of`, behind its event. Returns the node of the cut.
    fn cut(&mut self, id: NodeId, offset: u64, size: u64, rest_of: (Owner, u64)) -> NodeId {
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
            self.keep_rest(rest, state, rest_of);
        }
        if front > 0 {
            self.keep_rest(id, state, rest_of);
        }
        middle
    }

    fn keep_rest(&mut self, id: NodeId, state: NodeState, (owner, event_number): (Owner, u64)) {
        if state == NodeState::Hole {
            self.holes.insert(self.nodes[id as usize].offset, id);
        } else {
            self.release(id, owner, event_number);
        }
    }

    /// Coalesces a new hole with adjacent holes.
    fn join_hole(&mut self, mut id: NodeId) {
        let Node { before, after, .. } = self.nodes[id as usize];
        if before != 0 && self.nodes[before as usize].state == NodeState::Hole {
            let (from, to) = (self.nodes[id as usize].offset, self.nodes[before as usize].offset);
            self.move_end(from, to);
            self.nodes[before as usize].size += self.nodes[id as usize].size;
            self.drop_node(id);
            id = before;
        }
        if after != 0 && self.nodes[after as usize].state == NodeState::Hole {
            self.holes.remove(&self.nodes[after as usize].offset);
            self.move_end(self.nodes[after as usize].offset, self.nodes[id as usize].offset);
            self.nodes[id as usize].size += self.nodes[after as usize].size;
            self.drop_node(after);
        }
        self.holes.insert(self.nodes[id as usize].offset, id);
    }
}
