//! The lists that a node is in: address order, bin, age.

use super::bins::Bins;
use super::{COMMON, FreeSpace, Node, NodeId, NodeState, Owner};

impl FreeSpace {
    /// The bin of a range of `size` bytes.
    pub(in crate::pool::free_space) fn bin_of(&self, size: u64) -> usize {
        Bins::of(size >> self.granule_bits)
    }

    /// Takes a free node out of its owner's bin, age list and byte count.
    pub(in crate::pool::free_space) fn unlink(&mut self, id: NodeId) {
        let NodeState::Free(owner) = self.nodes[id as usize].state else {
            return;
        };
        self.remove_from_bin(id, owner);
        let Node {
            older, younger, size, ..
        } = self.nodes[id as usize];
        let home = self.nodes[id as usize].home;
        if home != owner {
            self.spaces[owner.0 as usize].guests -= 1;
            self.end_name(home);
        }
        let space = &mut self.spaces[owner.0 as usize];
        space.bytes -= size;
        self.note_occupied(owner);
        match older {
            0 => self.spaces[owner.0 as usize].oldest = younger,
            _ => self.nodes[older as usize].younger = younger,
        }
        match younger {
            0 => self.spaces[owner.0 as usize].youngest = older,
            _ => self.nodes[younger as usize].older = older,
        }
    }

    /// Puts `id` behind `older` in `owner`'s age list; with 0, at its head.
    pub(in crate::pool::free_space) fn link_younger(&mut self, owner: Owner, older: NodeId, id: NodeId) {
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

    pub(in crate::pool::free_space) fn add_to_bin(&mut self, id: NodeId, owner: Owner) {
        let bin = self.bin_of(self.nodes[id as usize].size);
        let bins = &mut self.spaces[owner.0 as usize].bins;
        let head = bins.head(bin);
        bins.set_head(bin, id);
        if head != 0 {
            self.nodes[head as usize].bin_before = id;
        }
        let node = &mut self.nodes[id as usize];
        (node.bin_before, node.bin_after) = (0, head);
    }

    pub(in crate::pool::free_space) fn remove_from_bin(&mut self, id: NodeId, owner: Owner) {
        let Node {
            bin_before,
            bin_after,
            size,
            ..
        } = self.nodes[id as usize];
        match bin_before {
            0 => {
                let bin = self.bin_of(size);
                self.spaces[owner.0 as usize].bins.set_head(bin, bin_after);
            }
            _ => self.nodes[bin_before as usize].bin_after = bin_after,
        }
        if bin_after != 0 {
            self.nodes[bin_after as usize].bin_before = bin_before;
        }
    }

    /// Adds a node behind `before` in address order; with 0, the caller links its neighbours.
    pub(in crate::pool::free_space) fn insert_after(
        &mut self,
        before: NodeId,
        offset: u64,
        size: u64,
        state: NodeState,
    ) -> NodeId {
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
            event_number: 0,
            held_by: None,
            in_use: false,
            home: COMMON,
        };
        let id = match self.unused_nodes.pop() {
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

    /// Removes a node, whose bytes belong to its neighbour now, from the address order.
    pub(in crate::pool::free_space) fn drop_node(&mut self, id: NodeId) {
        let Node { before, after, .. } = self.nodes[id as usize];
        if before != 0 {
            self.nodes[before as usize].after = after;
        }
        if after != 0 {
            self.nodes[after as usize].before = before;
        }
        self.nodes[id as usize].state = NodeState::Unused;
        self.unused_nodes.push(id);
    }
}
