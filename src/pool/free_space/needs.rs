//! What each owner needs: the most bytes that were in use in its name when it asked for more memory.

use super::{COMMON, FreeSpace, NodeId, Owner};

/// So many numbers that are unused keep the memory of their lists.
const UNUSED_LISTS: usize = 64;

impl FreeSpace {
    /// Counts a used node as in use, in the name of `owner`.
    #[inline]
    pub fn hold(&mut self, id: NodeId, owner: Owner) {
        let node = &mut self.nodes[id as usize];
        debug_assert_eq!(node.held_by, None);
        (node.held_by, node.in_use) = (Some(owner), true);
        let space = &mut self.spaces[owner.0 as usize];
        space.used += node.size;
        space.named += 1;
        self.note_request(owner);
        self.is_heard(owner);
    }

    /// Counts a used node as in use no longer: its block is freed, and is pending.
    #[inline]
    pub fn end_use(&mut self, id: NodeId) {
        let node = &mut self.nodes[id as usize];
        let Some(owner) = node.held_by.filter(|_| std::mem::take(&mut node.in_use)) else {
            return;
        };
        let space = &mut self.spaces[owner.0 as usize];
        space.used -= node.size;
        if !space.alive {
            self.lower_peak(owner);
        }
    }

    /// Ends the hold of a used node that becomes free, and returns the arena that it was handed out from; none where
    /// that is common free space or its owner is gone.
    pub(in crate::pool::free_space) fn end_hold(&mut self, id: NodeId) -> Option<Owner> {
        self.end_use(id);
        let owner = self.nodes[id as usize].held_by.take()?;
        self.end_name(owner);
        Some(owner).filter(|owner| *owner != COMMON && self.spaces[owner.0 as usize].alive)
    }

    /// A node names `owner` no longer.
    pub(in crate::pool::free_space) fn end_name(&mut self, owner: Owner) {
        self.spaces[owner.0 as usize].named -= 1;
        self.reuse_number(owner);
    }

    /// Bytes that all owners need, where `owner` gets `size` bytes more: the sum of their peaks. An owner's peak is what
    /// was in use in its name when it last asked for more than its free space had.
    pub fn needs_with(&self, owner: Owner, size: u64) -> u64 {
        let space = &self.spaces[owner.0 as usize];
        self.needs + (space.used + size).saturating_sub(space.used_peak)
    }

    /// Bytes that `owner` needs, where it gets `size` bytes more.
    pub fn needs_of(&self, owner: Owner, size: u64) -> u64 {
        let space = &self.spaces[owner.0 as usize];
        space.used_peak.max(space.used + size)
    }

    /// Raises the peak of `owner` to what it uses now with `size` bytes more.
    pub fn raise_peak(&mut self, owner: Owner, size: u64) {
        let space = &mut self.spaces[owner.0 as usize];
        let more = (space.used + size).saturating_sub(space.used_peak);
        space.used_peak += more;
        self.needs += more;
    }

    /// Lowers an owner's peak to what it uses now.
    pub fn lower_peak(&mut self, owner: Owner) {
        let space = &mut self.spaces[owner.0 as usize];
        let less = space.used_peak.saturating_sub(space.used);
        space.used_peak -= less;
        self.needs -= less;
    }

    /// Lowers every peak to what is used now.
    pub fn lower_peaks(&mut self) {
        for owner in 0..self.spaces.len() {
            self.lower_peak(Owner(owner as u32));
        }
    }

    /// The number of an owner that is gone serves another once no node names it.
    pub(in crate::pool::free_space) fn reuse_number(&mut self, owner: Owner) {
        let space = &self.spaces[owner.0 as usize];
        if owner != COMMON && !space.alive && space.named == 0 {
            self.unused_owners.push_back(owner);
            // Where each free gets an owner, as before CUDA 12, those that serve in turns keep their lists.
            if self.unused_owners.len() > UNUSED_LISTS {
                self.spaces[owner.0 as usize].bins.shrink();
            }
        }
    }
}
