//! Cached ranges: resizable blocks that were freed and stay mapped, for the next block of a similar size.

use super::*;
use crate::pool::physical::dedicated_memory::DedicatedMemory;

impl PhysicalMemory {
    /// Caches a block that is reusable now, and gives up its old ranges.
    pub fn cache_range(&mut self, mut block: DedicatedMemory) {
        block.leave_old_ranges(self);
        block.pending_tail = None;
        self.cached_range_bytes += block.committed();
        self.cached_ranges.push_back(block);
    }

    /// The smallest cached block that can serve `size` bytes without wasting most of itself.
    pub fn take_cached_range(&mut self, size: u64) -> Option<DedicatedMemory> {
        let fits = self
            .cached_ranges
            .iter()
            .enumerate()
            .filter(|(_, block)| block.fits(size, self.page));
        let (at, _) = fits.min_by_key(|(_, block)| block.committed())?;
        self.uncache(at)
    }

    /// The smallest cached block that had grown and may serve the growth of one of `size` bytes.
    pub fn take_grown_range(&mut self, size: u64) -> Option<DedicatedMemory> {
        let ranges = self.cached_ranges.iter().enumerate();
        let grown = ranges.filter(|(_, block)| block.may_serve_growth(size));
        let (at, _) = grown.min_by_key(|(_, block)| block.committed())?;
        self.uncache(at)
    }

    /// Whether there is such a block as [`PhysicalMemory::take_cached_range`] takes.
    pub fn has_cached_range(&self, size: u64) -> bool {
        self.cached_ranges.iter().any(|block| block.fits(size, self.page))
    }

    /// The smallest cached block that is larger than a block of `size` bytes, and the handles that it has beyond, which have to
    /// leave before the block is used.
    pub fn take_larger(&mut self, size: u64) -> Option<(DedicatedMemory, DeferredRelease)> {
        let page = self.page;
        let larger = self.cached_ranges.iter().enumerate();
        let larger = larger.filter_map(|(at, block)| Some((at, block.committed(), block.cut_for(size, page)?)));
        let (at, _, cut) = larger.min_by_key(|(_, committed, _)| *committed)?;
        let mut block = self.uncache(at)?;
        let beyond = block.cut(cut);
        Some((block, beyond))
    }

    /// The largest cached block that can grow in place to `size` bytes.
    pub fn take_growing(&mut self, size: u64) -> Option<DedicatedMemory> {
        let smaller = |block: &DedicatedMemory| block.committed() < size && block.has_room(size);
        let cached_ranges = self
            .cached_ranges
            .iter()
            .enumerate()
            .filter(|(_, block)| smaller(block));
        let (at, _) = cached_ranges.max_by_key(|(_, block)| block.committed())?;
        self.uncache(at)
    }

    pub(in crate::pool::physical) fn uncache(&mut self, at: usize) -> Option<DedicatedMemory> {
        let block = self.cached_ranges.remove(at)?;
        self.cached_range_bytes -= block.committed();
        self.note_cached();
        Some(block)
    }

    /// Bytes of cached blocks.
    pub fn cached_range_bytes(&self) -> u64 {
        self.cached_range_bytes
    }
}
