//! Validation of all invariants; tests call it after every step.

use super::{COMMON, FreeSpace, Node, NodeState};

impl FreeSpace {
    /// Checks that every invariant of this module holds. An error names the violation.
    pub fn validate(&self) -> Result<(), String> {
        let Some(first) =
            (1..self.nodes.len()).find(|id| self.nodes[*id].state != NodeState::Unused && self.nodes[*id].before == 0)
        else {
            return Err("no first node".into());
        };
        let (mut id, mut at, mut last) = (first, 0, None);
        let mut free = vec![0; self.spaces.len()];
        let (mut guests, mut named, mut used) = (
            vec![0; self.spaces.len()],
            vec![0; self.spaces.len()],
            vec![0; self.spaces.len()],
        );
        let mut holes = 0;
        let mut seen = 0;
        while id != 0 {
            let node = &self.nodes[id];
            seen += 1;
            if node.offset != at || node.size == 0 || !node.size.is_multiple_of(self.granule) {
                return Err(format!(
                    "node {id} at {:#x}+{:#x} does not tile at {at:#x}",
                    node.offset, node.size
                ));
            }
            match node.state {
                NodeState::Unused => return Err(format!("node {id} is linked and unused")),
                NodeState::Used => {
                    if let Some(owner) = node.held_by {
                        named[owner.0 as usize] += 1;
                    }
                    if let Some(owner) = node.held_by.filter(|_| node.in_use) {
                        used[owner.0 as usize] += node.size;
                    }
                }
                NodeState::Free(owner) => {
                    free[owner.0 as usize] += node.size;
                    if node.home != owner {
                        guests[owner.0 as usize] += 1;
                        named[node.home.0 as usize] += 1;
                    }
                    if last == Some((node.state, node.home, guest_behind(node))) {
                        return Err(format!("free neighbours of owner {} at {at:#x}", owner.0));
                    }
                    if !self.in_bin(id as u32, node, owner.0 as usize) {
                        return Err(format!("free node {id} is not in its bin"));
                    }
                }
                NodeState::Hole => {
                    holes += 1;
                    if last.is_some_and(|(state, ..)| state == NodeState::Hole)
                        || self.holes.get(&at) != Some(&(id as u32))
                    {
                        return Err(format!("hole at {at:#x} is unknown or has a hole beside it"));
                    }
                }
            }
            last = Some((node.state, node.home, guest_behind(node)));
            at += node.size;
            id = node.after as usize;
        }
        if holes != self.holes.len() {
            return Err(format!("{} holes known, {holes} there", self.holes.len()));
        }
        if seen + self.unused_nodes.len() + 1 != self.nodes.len() {
            return Err("nodes were lost".into());
        }
        if self.needs != self.spaces.iter().map(|space| space.used_peak).sum::<u64>() {
            return Err("the needs are not the sum of the owners' peaks".into());
        }
        for (owner, space) in self.spaces.iter().enumerate() {
            if (space.used, space.guests, space.named) != (used[owner], guests[owner], named[owner]) {
                return Err(format!(
                    "owner {owner} counts {} bytes in use and {} guests",
                    space.used, space.guests
                ));
            }
            let (number, is_left) = (super::Owner(owner as u32), space.bytes > 0 && owner != 0);
            if (self.occupied.has(number), self.hosts.has(number)) != (is_left, space.guests > 0) {
                return Err(format!("owner {owner} is not where it is looked for"));
            }
            if space
                .front
                .is_some_and(|front| self.fronts.get(&front) != Some(&super::Owner(owner as u32)))
            {
                return Err(format!("the end of owner {owner}'s arena is unknown"));
            }
            if space.bytes != free[owner] {
                return Err(format!(
                    "owner {owner} has {} bytes free, says {}",
                    free[owner], space.bytes
                ));
            }
            let (mut bytes, mut event_number, mut id) = (0, 0, space.oldest as usize);
            while id != 0 {
                let node = &self.nodes[id];
                if node.state != NodeState::Free(super::Owner(owner as u32)) || node.event_number < event_number {
                    return Err(format!("age list of owner {owner} is out of order at node {id}"));
                }
                (bytes, event_number, id) = (bytes + node.size, node.event_number, node.younger as usize);
            }
            if bytes != space.bytes {
                return Err(format!("age list of owner {owner} misses ranges"));
            }
        }
        Ok(())
    }

    fn in_bin(&self, id: u32, node: &Node, owner: usize) -> bool {
        let mut at = self.spaces[owner].bins.head(self.bin_of(node.size));
        while at != 0 && at != id {
            at = self.nodes[at as usize].bin_after;
        }
        at == id
    }

    /// Bytes in the address range that memory backs: used or free.
    pub fn backed(&self) -> u64 {
        let holes: u64 = self.holes.values().map(|id| self.nodes[*id as usize].size).sum();
        let all: u64 = self
            .nodes
            .iter()
            .filter(|node| node.state != NodeState::Unused)
            .map(|node| node.size)
            .sum();
        all - holes
    }

    /// The largest common free range in bytes.
    pub fn largest_common(&self) -> u64 {
        self.ranges(COMMON).map(|(_, _, size)| size).max().unwrap_or(0)
    }
}

/// The event that a guest is behind; 0 for other nodes. Guests behind different events do not coalesce.
fn guest_behind(node: &Node) -> u64 {
    match node.state {
        NodeState::Free(owner) if node.home != owner => node.event_number,
        _ => 0,
    }
}
