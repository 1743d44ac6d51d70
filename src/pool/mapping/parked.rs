//! Resizable blocks that were freed and that nobody uses: as they lie, for the next that is like them.

use super::*;
use crate::pool::standalone::Standalone;

impl Mapping {
    /// Keeps a block whose grace is over. Its old ranges go.
    pub fn park(&mut self, mut block: Standalone) {
        block.leave_old_ranges(self);
        self.parked.push(block);
    }

    /// The smallest parked block that can be one of `size` bytes without wasting most of itself.
    pub fn take_parked(&mut self, size: u64) -> Option<Standalone> {
        let fits = self
            .parked
            .iter()
            .enumerate()
            .filter(|(_, block)| block.fits(size, self.page));
        let (at, _) = fits.min_by_key(|(_, block)| block.committed())?;
        Some(self.parked.remove(at))
    }

    /// Whether there is one.
    pub fn has_parked(&self, size: u64) -> bool {
        self.parked.iter().any(|block| block.fits(size, self.page))
    }

    /// The largest parked block that can become one of `size` bytes where it lies.
    pub fn take_growing(&mut self, size: u64) -> Option<Standalone> {
        let smaller = |block: &Standalone| block.committed() < size && block.has_room(size);
        let parked = self.parked.iter().enumerate().filter(|(_, block)| smaller(block));
        let (at, _) = parked.max_by_key(|(_, block)| block.committed())?;
        Some(self.parked.remove(at))
    }

    /// Takes the oldest parked block apart: its handles are kept. False where there is none.
    pub fn unpark(&mut self) -> bool {
        if self.parked.is_empty() {
            return false;
        }
        self.parked.remove(0).destroy(self);
        true
    }

    /// Bytes of parked blocks.
    pub fn parked(&self) -> u64 {
        self.parked.iter().map(Standalone::committed).sum()
    }
}
