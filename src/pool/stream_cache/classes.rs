//! Exact size classes: the blocks that are ready, by size, last in first out.
//!
//! An open-addressing table leads from a size to the head of a list through `Block::next`. Sizes repeat in inference,
//! so the table stops changing. It grows when half full, and then forgets sizes that have no block.

use crate::pool::free_space::NodeId;
use crate::pool::stream_cache::block::Blocks;
use crate::sync::atomic::Ordering;

#[derive(Clone, Copy, Default)]
struct Class {
    size: u64,
    head: NodeId,
    /// Whether `Classes::held` names it.
    held: bool,
}

/// The ready blocks of one stream.
#[derive(Default)]
pub struct Classes {
    /// Empty before the first block.
    table: Vec<Class>,
    known: usize,
    bytes: u64,
    /// Every place in the table whose list may have a block, once. So taking all blocks out costs by their number, and
    /// not by how many sizes the stream has ever used.
    held: Vec<usize>,
}

impl Classes {
    /// Bytes in all lists.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives up the table, if no block is ready.
    pub fn shrink(&mut self) {
        if self.bytes == 0 {
            *self = Classes::default();
        }
    }

    /// The place of that size in the table, which is not empty.
    #[inline]
    fn slot(&self, size: u64) -> usize {
        let mask = self.table.len() - 1;
        let mut at = (size.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize & mask;
        while self.table[at].size != size && self.table[at].size != 0 {
            at = (at + 1) & mask;
        }
        at
    }

    /// A ready block of exactly `size` bytes at a multiple of `align`.
    #[inline]
    pub fn pop(&mut self, blocks: &Blocks, size: u64, align: u64) -> Option<NodeId> {
        if self.bytes == 0 {
            return None;
        }
        let at = self.slot(size);
        let head = self.table[at].head;
        if head == 0 {
            return None;
        }
        let block = blocks.get(head);
        if block.address.load(Ordering::Relaxed) & (align - 1) != 0 {
            return None;
        }
        self.table[at].head = block.next.load(Ordering::Relaxed);
        self.bytes -= size;
        Some(head)
    }

    /// Makes a block of `size` bytes ready.
    #[inline]
    pub fn push(&mut self, blocks: &Blocks, size: u64, id: NodeId) {
        if self.table.is_empty() {
            self.grow();
        }
        let mut at = self.slot(size);
        if self.table[at].size == 0 {
            if self.known * 2 >= self.table.len() {
                self.grow();
                at = self.slot(size);
            }
            self.table[at].size = size;
            self.known += 1;
        }
        let class = &mut self.table[at];
        blocks.get(id).next.store(class.head, Ordering::Relaxed);
        class.head = id;
        if !std::mem::replace(&mut class.held, true) {
            self.held.push(at);
        }
        self.bytes += size;
    }

    /// Bytes of the blocks that wait for a completion event with a higher number than `through`. Costs a look at each
    /// ready block.
    pub fn bytes_beyond(&self, blocks: &Blocks, through: u64) -> u64 {
        let mut bytes = 0;
        for class in self.held.iter().map(|at| &self.table[*at]) {
            let mut id = class.head;
            while id != 0 {
                let block = blocks.get(id);
                if block.event_number.load(Ordering::Relaxed) > through {
                    bytes += class.size;
                }
                id = block.next.load(Ordering::Relaxed);
            }
        }
        bytes
    }

    /// Takes every ready block out, in no particular order.
    pub fn drain(&mut self, blocks: &Blocks, mut take: impl FnMut(NodeId)) {
        if self.bytes == 0 {
            return;
        }
        for at in self.held.drain(..) {
            let class = &mut self.table[at];
            class.held = false;
            let mut id = std::mem::take(&mut class.head);
            while id != 0 {
                let next = blocks.get(id).next.load(Ordering::Relaxed);
                take(id);
                id = next;
            }
        }
        self.bytes = 0;
    }

    #[cold]
    fn grow(&mut self) {
        let old: Vec<Class> = self.table.iter().copied().filter(|class| class.head != 0).collect();
        let room = (old.len() * 4).next_power_of_two().max(64);
        self.table = vec![Class::default(); room];
        self.known = old.len();
        self.held.clear();
        for class in old {
            let at = self.slot(class.size);
            self.table[at] = class;
            self.held.push(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_last_in_first_out_by_size_and_alignment() {
        let blocks = Blocks::default();
        let mut classes = Classes::default();
        for id in 1..=1000u32 {
            blocks.get(id).address.store(u64::from(id) * 4096, Ordering::Relaxed);
            classes.push(&blocks, u64::from(id % 300 + 1) * 512, id);
        }
        assert_eq!(classes.pop(&blocks, 512 * 8, 512), Some(907));
        assert_eq!(classes.pop(&blocks, 512 * 8, 8192), None, "607 lies at an odd page");
        assert_eq!(classes.pop(&blocks, 512 * 8, 512), Some(607));
        assert_eq!(classes.pop(&blocks, 512 * 301, 512), None);
        let mut rest = 0;
        classes.drain(&blocks, |_| rest += 1);
        assert_eq!((rest, classes.bytes()), (998, 0));
        assert_eq!(classes.pop(&blocks, 512 * 9, 512), None);
    }

    #[test]
    fn drain_visits_only_sizes_that_have_blocks() {
        let blocks = Blocks::default();
        let mut classes = Classes::default();
        let ids = |classes: &mut Classes| {
            let mut ids = Vec::new();
            classes.drain(&blocks, |id| ids.push(id));
            ids.sort();
            ids
        };
        // Every size occurs twice, and the table grows in between.
        let all: Vec<u32> = (1..=4000).collect();
        for &id in &all {
            classes.push(&blocks, u64::from(id % 2000 + 1) * 512, id);
        }
        assert_eq!(classes.held.len(), 2000);
        assert_eq!(ids(&mut classes), all);
        assert!(ids(&mut classes).is_empty());
        // Repeated pairs of one size leave one place in `held`.
        for _ in 0..3 {
            classes.push(&blocks, 512 * 7, 1);
            assert_eq!(classes.pop(&blocks, 512 * 7, 512), Some(1));
        }
        classes.push(&blocks, 512 * 7, 1);
        assert_eq!(classes.held.len(), 1);
        assert_eq!(ids(&mut classes), [1]);
    }
}
