//! Cached ranges: resizable blocks that were freed and stay mapped, for the next block of a similar size.

use super::*;
use crate::pool::physical::dedicated_memory::Standalone;

impl Mapping {
    /// Caches a block that is reusable now, and gives up its old ranges.
    pub fn park(&mut self, mut block: Standalone) {
        block.leave_old_ranges(self);
        self.parked.push(block);
    }

    /// The smallest cached block that can serve `size` bytes without wasting most of itself.
    pub fn take_parked(&mut self, size: u64) -> Option<Standalone> {
        let fits = self
            .parked
            .iter()
            .enumerate()
            .filter(|(_, block)| block.fits(size, self.page));
        let (at, _) = fits.min_by_key(|(_, block)| block.committed())?;
        Some(self.parked.remove(at))
    }

    /// Whether there is such a block.
    pub fn has_parked(&self, size: u64) -> bool {
        self.parked.iter().any(|block| block.fits(size, self.page))
    }

    /// The largest cached block that can grow in place to `size` bytes.
    pub fn take_growing(&mut self, size: u64) -> Option<Standalone> {
        let smaller = |block: &Standalone| block.committed() < size && block.has_room(size);
        let parked = self.parked.iter().enumerate().filter(|(_, block)| smaller(block));
        let (at, _) = parked.max_by_key(|(_, block)| block.committed())?;
        Some(self.parked.remove(at))
    }

    /// Destroys the oldest cached block and caches its handles. False where there is none.
    pub fn unpark(&mut self) -> bool {
        if self.parked.is_empty() {
            return false;
        }
        self.parked.remove(0).destroy(self);
        true
    }

    /// Bytes of cached blocks.
    pub fn parked(&self) -> u64 {
        self.parked.iter().map(Standalone::committed).sum()
    }
}
