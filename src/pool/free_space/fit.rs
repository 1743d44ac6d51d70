//! Which range serves a request, and how it is cut.

use super::{COMMON, Cut, FreeSpace, Node, NodeId, NodeState, Owner, OwnerSpace, align_up, fits};

/// How many ranges of a bin are compared for the best one.
const LOOKS: usize = 8;

/// A stream takes blocks of this size or more from the outermost range that fits, and smaller ones from the best fit
/// (docs/decisions/0001-stream-arenas.md).
pub const APART: u64 = 32 << 20;

/// An end of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its lowest addresses.
    Low,
    /// Its highest addresses, where it grows.
    High,
}

impl FreeSpace {
    /// Takes `size` bytes at a multiple of `align` from `owner`'s best fitting range.
    pub fn take(&mut self, owner: Owner, size: u64, align: u64) -> Option<NodeId> {
        self.take_covered(owner, size, align, u64::MAX)
    }

    /// As [`FreeSpace::take`], from the better fitting of `owner`'s range and a common one. The common one is cut as
    /// `cut` says, because memory that is complete can be unmapped, in whole extents only. A block that is large enough
    /// is taken from `end` of the owner's arena.
    pub fn take_either(&mut self, owner: Owner, size: u64, align: u64, cut: Cut, end: End) -> Option<(NodeId, Owner)> {
        if owner != COMMON
            && size >= APART
            && let Some(id) = self.find_outermost(owner, size, align, end)
        {
            let (offset, room) = self.span(id);
            let start = match end {
                End::Low => align_up(offset, align),
                End::High => (offset + room - size) & !(align.max(1) - 1),
            };
            return Some((self.carve(id, size, start), owner));
        }
        let own = if owner == COMMON {
            None
        } else {
            self.find(owner, size, align, cut, |node| node.home == owner)
        };
        let common = self.find(COMMON, size, align, cut, |_| true);
        let (id, from, cut) = match (own, common) {
            (Some(own), Some(common)) if self.nodes[common as usize].size < self.nodes[own as usize].size => {
                (common, COMMON, cut)
            }
            (Some(own), _) => (own, owner, cut),
            (None, Some(common)) => (common, COMMON, cut),
            // An arena is cut anywhere before it grows.
            (None, None) => {
                let own = self.find(owner, size, align, Cut::Any, |node| {
                    node.home == owner && owner != COMMON
                })?;
                (own, owner, Cut::Any)
            }
        };
        if from != owner {
            self.ask(size);
        }
        Some((self.carve_end(id, size, align, cut)?, from))
    }

    /// Takes the `size` bytes at `start`, which are free for `owner`.
    pub fn take_at(&mut self, owner: Owner, start: u64, size: u64) -> Option<NodeId> {
        let holds = |(_, offset, free): &(NodeId, u64, u64)| *offset <= start && start + size <= offset + free;
        let (id, ..) = self.ranges(owner).find(holds)?;
        Some(self.carve(id, size, start))
    }

    /// As [`FreeSpace::take_at`], out of node `id`; none, and no change, where that node does not hold these bytes as
    /// `owner`'s free space (any more).
    pub fn take_in(&mut self, id: NodeId, owner: Owner, start: u64, size: u64) -> Option<NodeId> {
        self.holds(id, owner, start, size).then(|| self.carve(id, size, start))
    }

    /// Whether the `size` bytes at `start` lie in node `id` and are free for `owner`.
    pub fn holds(&self, id: NodeId, owner: Owner, start: u64, size: u64) -> bool {
        let node = self
            .nodes
            .get(id as usize)
            .filter(|node| node.state == NodeState::Free(owner));
        node.is_some_and(|node| node.offset <= start && start + size <= node.offset + node.size)
    }

    /// As [`FreeSpace::take`], from ranges whose `event_number` is at most `through`.
    pub fn take_covered(&mut self, owner: Owner, size: u64, align: u64, through: u64) -> Option<NodeId> {
        let id = self.find(owner, size, align, Cut::Any, |node| node.event_number <= through)?;
        self.carve_end(id, size, align, Cut::Any)
    }

    /// Takes a range that is in part `owner`'s and in part common: adjacent free ranges that are large enough only
    /// together. What is left of the common part becomes `owner`'s.
    pub fn take_joined(&mut self, owner: Owner, size: u64, align: u64, cut: Cut) -> Option<NodeId> {
        let mut bin = self.spaces[owner.0 as usize].bins.last();
        let mut looked = 0;
        while let Some(at) = bin {
            let mut id = self.spaces[owner.0 as usize].bins.head(at);
            while id != 0 && looked < 8 * LOOKS {
                looked += 1;
                let node = &self.nodes[id as usize];
                let guest = node.home != owner;
                let start = self.common(node.before).map_or(node.offset, |common| common.offset);
                let end = self
                    .common(node.after)
                    .map_or(node.offset + node.size, |common| common.offset + common.size);
                if !guest && self.can_cut((start, end), size, align, cut) {
                    let id = self.annex(id, owner);
                    return self.carve_end(id, size, align, cut);
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
        Some(&self.nodes[id as usize]).filter(|node| node.state == NodeState::Free(COMMON))
    }

    /// Makes `id` and the adjacent common ranges one range of `owner`.
    fn annex(&mut self, mut id: NodeId, owner: Owner) -> NodeId {
        loop {
            let Node {
                before,
                after,
                event_number,
                ..
            } = self.nodes[id as usize];
            let Some(neighbour) = [before, after]
                .into_iter()
                .find(|neighbour| self.common(*neighbour).is_some())
            else {
                return id;
            };
            self.unlink(neighbour);
            self.nodes[neighbour as usize].state = NodeState::Used;
            id = self.release(neighbour, owner, event_number);
        }
    }

    /// The range nearest to that end that fits.
    fn find_outermost(&self, owner: Owner, size: u64, align: u64, end: End) -> Option<NodeId> {
        let space = &self.spaces[owner.0 as usize];
        if size == 0 || size > space.bytes {
            return None;
        }
        let mut outermost: Option<(u64, NodeId)> = None;
        let mut bin = space.bins.next(self.bin_of(size));
        while let Some(at) = bin {
            let mut id = space.bins.head(at);
            while id != 0 {
                let node = &self.nodes[id as usize];
                let further = |(offset, _)| match end {
                    End::Low => node.offset < offset,
                    End::High => node.offset > offset,
                };
                if node.home == owner && outermost.is_none_or(further) && fits(node.offset, node.size, size, align) {
                    outermost = Some((node.offset, id));
                }
                id = node.bin_after;
            }
            bin = space.bins.next(at + 1);
        }
        Some(outermost?.1)
    }

    /// The best of the first few ranges that fit. It checks every range before it returns none.
    fn find(&self, owner: Owner, size: u64, align: u64, cut: Cut, may_take: impl Fn(&Node) -> bool) -> Option<NodeId> {
        let space = &self.spaces[owner.0 as usize];
        if size == 0 || size > space.bytes {
            return None;
        }
        let first = self.bin_of(size);
        let fits =
            |node: &Node| may_take(node) && self.can_cut((node.offset, node.offset + node.size), size, align, cut);
        self.find_in(space, first, LOOKS, fits)
            .or_else(|| self.find_in(space, first, usize::MAX, fits))
    }

    fn find_in(&self, space: &OwnerSpace, first: usize, looks: usize, fits: impl Fn(&Node) -> bool) -> Option<NodeId> {
        let mut at = space.bins.next(first);
        while let Some(bin) = at {
            let (mut least, mut best) = (u64::MAX, 0);
            let mut id = space.bins.head(bin);
            let mut left = looks;
            while id != 0 && left > 0 {
                let node = &self.nodes[id as usize];
                let lower = || node.offset < self.nodes[best as usize].offset;
                if (node.size < least || node.size == least && lower()) && fits(node) {
                    (least, best) = (node.size, id);
                }
                id = node.bin_after;
                left -= 1;
            }
            if best != 0 {
                return Some(best);
            }
            at = space.bins.next(bin + 1);
        }
        None
    }

    /// Makes `size` bytes at one end of a free node a used node. None where neither end allows it.
    fn carve_end(&mut self, id: NodeId, size: u64, align: u64, cut: Cut) -> Option<NodeId> {
        let (offset, whole) = self.span(id);
        let start = self.position((offset, offset + whole), size, align, cut)?;
        Some(self.carve(id, size, start))
    }

    /// Makes `size` bytes at `start`, inside a free node, a used node with its `event_number`. What is left keeps owner,
    /// `event_number` and age.
    fn carve(&mut self, id: NodeId, size: u64, start: u64) -> NodeId {
        let (offset, whole) = self.span(id);
        let NodeState::Free(owner) = self.nodes[id as usize].state else {
            unreachable!("only free nodes are carved")
        };
        let (front, back) = (start - offset, whole - (start - offset) - size);
        if front == 0 && back == 0 {
            self.unlink(id);
            self.nodes[id as usize].state = NodeState::Used;
            return id;
        }
        self.remove_from_bin(id, owner);
        self.spaces[owner.0 as usize].bytes -= size;
        let used;
        if front > 0 {
            used = self.insert_after(id, start, size, NodeState::Used);
            self.nodes[id as usize].size = front;
            if back > 0 {
                let rest = self.insert_after(used, start + size, back, NodeState::Free(owner));
                let Node { event_number, home, .. } = self.nodes[id as usize];
                (self.nodes[rest as usize].event_number, self.nodes[rest as usize].home) = (event_number, home);
                if home != owner {
                    self.spaces[owner.0 as usize].guests += 1;
                    self.spaces[home.0 as usize].named += 1;
                }
                self.link_younger(owner, id, rest);
                self.add_to_bin(rest, owner);
            }
        } else {
            let before = self.nodes[id as usize].before;
            used = self.insert_after(before, start, size, NodeState::Used);
            if before == 0 {
                self.nodes[used as usize].after = id;
                self.nodes[id as usize].before = used;
            }
            let rest = &mut self.nodes[id as usize];
            rest.offset += size;
            rest.size = back;
        }
        self.add_to_bin(id, owner);
        self.nodes[used as usize].event_number = self.nodes[id as usize].event_number;
        used
    }
}
