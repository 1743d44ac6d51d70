//! What there is: owners, their ranges, and every range in address order.

use super::*;

/// A used or free range, as [`FreeSpace::tiles`] returns it.
#[derive(Debug, Clone, Copy)]
pub struct Tile {
    /// Its number.
    pub id: NodeId,
    /// Where it starts.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// Its owner, where it is free.
    pub free: Option<Owner>,
}

impl FreeSpace {
    /// The owners that have free space, but for [`COMMON`].
    pub fn occupied(&self) -> impl Iterator<Item = Owner> {
        self.looked_at(self.occupied.iter())
    }

    /// The owners that have guests, whose work has not completed or is not covered.
    pub fn hosts(&self) -> impl Iterator<Item = Owner> {
        self.looked_at(self.hosts.iter())
    }

    /// Counts the owners that a test looks at.
    pub(super) fn looked_at(&self, owners: impl Iterator<Item = Owner>) -> impl Iterator<Item = Owner> {
        #[cfg(test)]
        let owners = owners.inspect(|_| self.looks.count());
        owners
    }

    /// The `event_number` of `owner`'s oldest range; none where it has no space.
    pub fn oldest_event(&self, owner: Owner) -> Option<u64> {
        match self.spaces[owner.0 as usize].oldest {
            0 => None,
            id => Some(self.nodes[id as usize].event_number),
        }
    }

    /// `owner`'s free ranges, oldest first: number, offset and size.
    pub fn ranges(&self, owner: Owner) -> impl Iterator<Item = (NodeId, u64, u64)> + '_ {
        let mut id = self.spaces[owner.0 as usize].oldest;
        std::iter::from_fn(move || {
            let node = (id != 0).then(|| &self.nodes[id as usize])?;
            #[cfg(test)]
            self.looks.count();
            let range = (id, node.offset, node.size);
            id = node.younger;
            Some(range)
        })
    }

    /// As [`FreeSpace::ranges`], up to the first range whose `event_number` is higher than `through`.
    pub fn ranges_through(&self, owner: Owner, through: u64) -> impl Iterator<Item = (NodeId, u64, u64)> + '_ {
        let covered = move |(id, ..): &(NodeId, u64, u64)| self.nodes[*id as usize].event_number <= through;
        self.ranges(owner).take_while(covered)
    }

    /// Bytes free for `owner` whose `event_number` is higher than `through`. Costs a look at each such range.
    pub fn bytes_beyond(&self, owner: Owner, through: u64) -> u64 {
        let mut bytes = 0;
        let mut id = self.spaces[owner.0 as usize].youngest;
        while id != 0 && self.nodes[id as usize].event_number > through {
            bytes += self.nodes[id as usize].size;
            id = self.nodes[id as usize].older;
        }
        bytes
    }

    /// Every used and free range, in the order of offsets.
    pub fn tiles(&self) -> impl Iterator<Item = Tile> + '_ {
        let is_first = |id: &usize| self.nodes[*id].state != NodeState::Unused && self.nodes[*id].before == 0;
        let mut next = (1..self.nodes.len()).find(is_first).unwrap_or(0) as NodeId;
        std::iter::from_fn(move || {
            while next != 0 {
                let (id, node) = (next, &self.nodes[next as usize]);
                next = node.after;
                let free = match node.state {
                    NodeState::Free(owner) => Some(owner),
                    NodeState::Used => None,
                    NodeState::Hole | NodeState::Unused => continue,
                };
                return Some(Tile {
                    id,
                    offset: node.offset,
                    size: node.size,
                    free,
                });
            }
            None
        })
    }
}
