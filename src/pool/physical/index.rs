//! Offset → block number: a two-level page table, read without a lock.
//!
//! An entry is written when a range becomes a block, and cleared when the range goes back to free space, both under the
//! pool's lock. In between the entry stays, however often the block is freed and handed out again. Only starts of
//! blocks have entries, so an interior offset finds nothing.

use crate::pool::free_space::NodeId;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{OnceBox, boxed, unless_broken};

const LEAF: usize = if cfg!(loom) { 512 } else { 4096 };

/// The table of one address range.
pub struct Index {
    granule_bits: u32,
    leaves: Box<[OnceBox<[AtomicU32; LEAF]>]>,
}

impl Index {
    /// A table for `size` bytes in which blocks start at multiples of `granule`, a power of two.
    pub fn new(size: u64, granule: u64) -> Index {
        let leaves = (size / granule).div_ceil(LEAF as u64);
        Index {
            granule_bits: granule.trailing_zeros(),
            leaves: (0..leaves).map(|_| OnceBox::new()).collect(),
        }
    }

    /// The block that starts at `offset`; 0 where none does.
    #[inline]
    pub fn get(&self, offset: u64) -> NodeId {
        let granule = (offset >> self.granule_bits) as usize;
        if offset & ((1 << self.granule_bits) - 1) != 0 {
            return 0;
        }
        match self.leaves.get(granule / LEAF).and_then(OnceBox::get) {
            Some(leaf) => leaf[granule % LEAF].load(Ordering::Acquire),
            None => 0,
        }
    }

    /// Sets the entry of `offset`, which lies in the range; an `id` of 0 clears it.
    #[inline]
    pub fn set(&self, offset: u64, id: NodeId) {
        let granule = (offset >> self.granule_bits) as usize;
        let leaf = self.leaves[granule / LEAF].get_or_init(|| boxed(|| AtomicU32::new(0)));
        leaf[granule % LEAF].store(id, unless_broken("the index releases", Ordering::Release));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_finds_starts_only() {
        let index = Index::new(1 << 30, 512);
        index.set(1 << 20, 7);
        assert_eq!(index.get(1 << 20), 7);
        for other in [0, 512, (1 << 20) + 512, (1 << 20) + 1, 1 << 30, u64::MAX] {
            assert_eq!(index.get(other), 0);
        }
        index.set(1 << 20, 0);
        assert_eq!(index.get(1 << 20), 0);
    }
}
