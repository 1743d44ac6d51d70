//! Free space: offsets in, offsets out. Knows no driver, no pointer and no thread.
//!
//! A window of offsets is tiled by nodes in address order. A node is *used*, *free* for one owner, or a *hole* that no
//! memory backs. Neighbouring free nodes of one owner are always one node, and so are neighbouring holes; free nodes of
//! different owners never become one, because what is safe for one owner need not be safe for the other.
//!
//! [`COMMON`] is the owner of what anybody may have. Each free node carries a *stamp*, the number of the event behind which
//! it is complete; within an owner stamps never fall, so what an event has completed is at the head of its age list.

#![deny(unsafe_code, clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::collections::{BTreeMap, VecDeque};

mod bins;
mod check;
mod place;
#[cfg(test)]
mod tests;

pub use place::Place;

use bins::Bins;

/// A node's number; 0 is none. A used node's number is its block's.
pub type NodeId = u32;

/// Whose free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(u32);

/// Free space that is safe for everybody.
pub const COMMON: Owner = Owner(0);

/// How many ranges of a bin are looked at for the best one.
const LOOKS: usize = 8;

/// Smaller pieces are carved from the end of a range.
const SMALL: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unused,
    Used,
    Free(Owner),
    Hole,
}

#[derive(Debug, Clone)]
struct Node {
    offset: u64,
    size: u64,
    state: State,
    /// Neighbours in address order.
    before: NodeId,
    after: NodeId,
    /// Neighbours in the bin.
    bin_before: NodeId,
    bin_after: NodeId,
    /// Neighbours in the owner's age list.
    older: NodeId,
    younger: NodeId,
    stamp: u64,
}

struct Space {
    bins: Bins,
    bytes: u64,
    oldest: NodeId,
    youngest: NodeId,
    alive: bool,
}

impl Space {
    fn new() -> Space {
        Space {
            bins: Bins::new(),
            bytes: 0,
            oldest: 0,
            youngest: 0,
            alive: true,
        }
    }
}

/// The free space of one window.
pub struct Heap {
    granule: u64,
    nodes: Vec<Node>,
    spare: Vec<NodeId>,
    spaces: Vec<Space>,
    spare_spaces: VecDeque<Owner>,
    holes: BTreeMap<u64, NodeId>,
}

impl Heap {
    /// A window of `size` bytes without any memory: one hole. Sizes and offsets are multiples of `granule`, a power of two.
    pub fn new(size: u64, granule: u64) -> Heap {
        let blank = Node {
            offset: 0,
            size: 0,
            state: State::Unused,
            before: 0,
            after: 0,
            bin_before: 0,
            bin_after: 0,
            older: 0,
            younger: 0,
            stamp: 0,
        };
        let hole = Node {
            size,
            state: State::Hole,
            ..blank.clone()
        };
        Heap {
            granule,
            nodes: vec![blank, hole],
            spare: Vec::new(),
            spaces: vec![Space::new()],
            spare_spaces: VecDeque::new(),
            holes: BTreeMap::from([(0, 1)]),
        }
    }

    /// A new owner with no space.
    pub fn add_owner(&mut self) -> Owner {
        if let Some(owner) = self.spare_spaces.pop_front() {
            self.spaces[owner.0 as usize].alive = true;
            return owner;
        }
        self.spaces.push(Space::new());
        Owner(self.spaces.len() as u32 - 1)
    }

    /// Forgets an owner that has no space; one that has is left as it is, and false returned.
    pub fn remove_owner(&mut self, owner: Owner) -> bool {
        let space = &mut self.spaces[owner.0 as usize];
        if owner == COMMON || space.bytes != 0 || !space.alive {
            return false;
        }
        space.alive = false;
        self.spare_spaces.push_back(owner);
        true
    }

    /// Where a node lies: offset and size.
    pub fn span(&self, id: NodeId) -> (u64, u64) {
        let node = &self.nodes[id as usize];
        (node.offset, node.size)
    }

    /// Bytes free for `owner`.
    pub fn free_bytes(&self, owner: Owner) -> u64 {
        self.spaces[owner.0 as usize].bytes
    }

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

    /// Gives a used node to `owner`'s free space behind `stamp`; it becomes one with `owner`'s ranges beside it.
    pub fn give(&mut self, id: NodeId, owner: Owner, stamp: u64) {
        debug_assert_eq!(self.nodes[id as usize].state, State::Used);
        self.release(id, owner, stamp);
    }

    /// Hands every range of `from` whose stamp is at most `through` to `to` behind `stamp`; returns the bytes.
    pub fn transfer(&mut self, from: Owner, to: Owner, through: u64, stamp: u64) -> u64 {
        let mut moved = 0;
        loop {
            let id = self.spaces[from.0 as usize].oldest;
            if id == 0 || self.nodes[id as usize].stamp > through || from == to {
                return moved;
            }
            moved += self.nodes[id as usize].size;
            self.unlink(id);
            self.nodes[id as usize].state = State::Used;
            self.release(id, to, stamp);
        }
    }

    /// Takes everything `owner` has: used nodes.
    pub fn take_all(&mut self, owner: Owner) -> Vec<NodeId> {
        let mut taken = Vec::new();
        while let id @ 1.. = self.spaces[owner.0 as usize].oldest {
            self.unlink(id);
            self.nodes[id as usize].state = State::Used;
            taken.push(id);
        }
        taken
    }

    /// The stamp of `owner`'s oldest range; none where it has no space.
    pub fn oldest_stamp(&self, owner: Owner) -> Option<u64> {
        match self.spaces[owner.0 as usize].oldest {
            0 => None,
            id => Some(self.nodes[id as usize].stamp),
        }
    }

    /// `owner`'s free ranges, oldest first: number, offset and size.
    pub fn ranges(&self, owner: Owner) -> impl Iterator<Item = (NodeId, u64, u64)> + '_ {
        let mut id = self.spaces[owner.0 as usize].oldest;
        std::iter::from_fn(move || {
            let node = (id != 0).then(|| &self.nodes[id as usize])?;
            let range = (id, node.offset, node.size);
            id = node.younger;
            Some(range)
        })
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

    /// Makes the first fitting `size` bytes of a free node a used node. What is left keeps owner, stamp and age.
    fn carve(&mut self, id: NodeId, size: u64, align: u64) -> NodeId {
        let (offset, whole) = self.span(id);
        let State::Free(owner) = self.nodes[id as usize].state else {
            unreachable!("only free nodes are carved")
        };
        let align = align.max(1);
        // Small pieces from the end, so that what large ones leave stays in one piece.
        let start = if size < SMALL {
            (offset + whole - size) / align * align
        } else {
            offset.next_multiple_of(align)
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

    /// Puts a used node into `owner`'s free space, coalescing; returns the node that holds it then.
    fn release(&mut self, mut id: NodeId, owner: Owner, stamp: u64) -> NodeId {
        let mut stamp = stamp;
        let (before, after) = (self.nodes[id as usize].before, self.nodes[id as usize].after);
        if before != 0 && self.nodes[before as usize].state == State::Free(owner) {
            stamp = stamp.max(self.nodes[before as usize].stamp);
            self.unlink(before);
            self.nodes[before as usize].size += self.nodes[id as usize].size;
            self.drop_node(id);
            id = before;
        }
        if after != 0 && self.nodes[after as usize].state == State::Free(owner) {
            stamp = stamp.max(self.nodes[after as usize].stamp);
            self.unlink(after);
            self.nodes[id as usize].size += self.nodes[after as usize].size;
            self.drop_node(after);
        }
        let youngest = self.spaces[owner.0 as usize].youngest;
        let node = &mut self.nodes[id as usize];
        node.state = State::Free(owner);
        node.stamp = stamp;
        self.spaces[owner.0 as usize].bytes += self.nodes[id as usize].size;
        // Stamps never fall along the age list: a late comer with an older stamp waits for the youngest's.
        if youngest != 0 {
            let floor = self.nodes[youngest as usize].stamp;
            let node = &mut self.nodes[id as usize];
            node.stamp = node.stamp.max(floor);
        }
        self.link_younger(owner, youngest, id);
        self.add_to_bin(id, owner);
        id
    }

    /// Takes a free node out of its owner's bin, age list and byte count.
    fn unlink(&mut self, id: NodeId) {
        let State::Free(owner) = self.nodes[id as usize].state else {
            return;
        };
        self.remove_from_bin(id, owner);
        let Node {
            older, younger, size, ..
        } = self.nodes[id as usize];
        let space = &mut self.spaces[owner.0 as usize];
        space.bytes -= size;
        match older {
            0 => space.oldest = younger,
            _ => self.nodes[older as usize].younger = younger,
        }
        match younger {
            0 => self.spaces[owner.0 as usize].youngest = older,
            _ => self.nodes[younger as usize].older = older,
        }
    }

    /// Puts `id` behind `older` in `owner`'s age list (0: at its head).
    fn link_younger(&mut self, owner: Owner, older: NodeId, id: NodeId) {
        let younger = match older {
            0 => std::mem::replace(&mut self.spaces[owner.0 as usize].oldest, id),
            _ => std::mem::replace(&mut self.nodes[older as usize].younger, id),
        };
        match younger {
            0 => self.spaces[owner.0 as usize].youngest = id,
            _ => self.nodes[younger as usize].older = id,
        }
        let node = &mut self.nodes[id as usize];
        (node.older, node.younger) = (older, younger);
    }

    fn add_to_bin(&mut self, id: NodeId, owner: Owner) {
        let bin = Bins::of(self.nodes[id as usize].size / self.granule);
        let bins = &mut self.spaces[owner.0 as usize].bins;
        let head = bins.head(bin);
        bins.set_head(bin, id);
        if head != 0 {
            self.nodes[head as usize].bin_before = id;
        }
        let node = &mut self.nodes[id as usize];
        (node.bin_before, node.bin_after) = (0, head);
    }

    fn remove_from_bin(&mut self, id: NodeId, owner: Owner) {
        let Node {
            bin_before,
            bin_after,
            size,
            ..
        } = self.nodes[id as usize];
        match bin_before {
            0 => self.spaces[owner.0 as usize]
                .bins
                .set_head(Bins::of(size / self.granule), bin_after),
            _ => self.nodes[bin_before as usize].bin_after = bin_after,
        }
        if bin_after != 0 {
            self.nodes[bin_after as usize].bin_before = bin_before;
        }
    }

    /// A new node behind `before` in address order (0: its neighbours are the caller's to link).
    fn insert_after(&mut self, before: NodeId, offset: u64, size: u64, state: State) -> NodeId {
        let after = if before == 0 {
            0
        } else {
            self.nodes[before as usize].after
        };
        let node = Node {
            offset,
            size,
            state,
            before,
            after,
            bin_before: 0,
            bin_after: 0,
            older: 0,
            younger: 0,
            stamp: 0,
        };
        let id = match self.spare.pop() {
            Some(id) => {
                self.nodes[id as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as NodeId - 1
            }
        };
        if before != 0 {
            self.nodes[before as usize].after = id;
        }
        if after != 0 {
            self.nodes[after as usize].before = id;
        }
        id
    }

    /// Takes a node whose bytes belong to its neighbour now out of the address order.
    fn drop_node(&mut self, id: NodeId) {
        let Node { before, after, .. } = self.nodes[id as usize];
        if before != 0 {
            self.nodes[before as usize].after = after;
        }
        if after != 0 {
            self.nodes[after as usize].before = before;
        }
        self.nodes[id as usize].state = State::Unused;
        self.spare.push(id);
    }
}

/// Whether `size` bytes at a multiple of `align` lie in `[offset, offset + room)`.
fn fits(offset: u64, room: u64, size: u64, align: u64) -> bool {
    let front = offset.next_multiple_of(align.max(1)) - offset;
    front.checked_add(size).is_some_and(|need| need <= room)
}
