//! The free ranges of one owner, by size: two bitmap levels in front of linked lists (TLSF's layout). So finding a
//! range that fits costs the same with ten ranges as with ten thousand.

use super::NodeId;

const SUB_BITS: u32 = 5;
const SUBS: usize = 1 << SUB_BITS;
const ROWS: usize = 40;

/// The heads of the lists, and bitmaps of the lists that are not empty.
pub(in crate::pool::free_space) struct Bins {
    rows: u64,
    subs: [u32; ROWS],
    /// Empty where every list is.
    heads: Box<[NodeId]>,
}

impl Bins {
    pub fn new() -> Bins {
        Bins {
            rows: 0,
            subs: [0; ROWS],
            heads: Box::default(),
        }
    }

    /// Gives up the memory of lists that are all empty.
    pub fn shrink(&mut self) {
        if self.rows == 0 {
            self.heads = Box::default();
        }
    }

    /// The bin that holds ranges of `granules`.
    pub fn of(granules: u64) -> usize {
        if granules < SUBS as u64 {
            granules as usize
        } else {
            let log = 63 - granules.leading_zeros();
            let sub = (granules >> (log - SUB_BITS)) as usize & (SUBS - 1);
            (log - SUB_BITS + 1) as usize * SUBS + sub
        }
    }

    pub fn head(&self, bin: usize) -> NodeId {
        self.heads.get(bin).copied().unwrap_or(0)
    }

    pub fn set_head(&mut self, bin: usize, node: NodeId) {
        if self.heads.is_empty() {
            self.heads = vec![0; ROWS * SUBS].into_boxed_slice();
        }
        self.heads[bin] = node;
        let (row, sub) = (bin / SUBS, bin % SUBS);
        if node != 0 {
            self.subs[row] |= 1 << sub;
            self.rows |= 1 << row;
        } else {
            self.subs[row] &= !(1 << sub);
            if self.subs[row] == 0 {
                self.rows &= !(1 << row);
            }
        }
    }

    /// The first bin at or after `from` that is not empty.
    #[inline]
    pub fn next(&self, from: usize) -> Option<usize> {
        let (row, sub) = (from / SUBS, from % SUBS);
        if row >= ROWS {
            return None;
        }
        let here = self.subs[row] & (u32::MAX << sub);
        if here != 0 {
            return Some(row * SUBS + here.trailing_zeros() as usize);
        }
        let above = self.rows & (u64::MAX << row << 1);
        if above == 0 {
            return None;
        }
        let row = above.trailing_zeros() as usize;
        Some(row * SUBS + self.subs[row].trailing_zeros() as usize)
    }

    /// The last bin that is not empty.
    pub fn last(&self) -> Option<usize> {
        if self.rows == 0 {
            return None;
        }
        let row = 63 - self.rows.leading_zeros() as usize;
        Some(row * SUBS + 31 - self.subs[row].leading_zeros() as usize)
    }
}
