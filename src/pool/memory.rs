//! A pool's memory: what is free in its address range, and the physical memory behind it.

use crate::driver::Failure;
use crate::pool::counters::Counts;
use crate::pool::free_space::{COMMON, FreeSpace, Owner};
use crate::pool::physical::{Grown, PhysicalMemory, Sources};

/// The memory of one pool. The pool's lock protects it.
pub struct Memory {
    /// The free ranges, in offsets.
    pub free_space: FreeSpace,
    /// What backs them.
    pub physical: PhysicalMemory,
    /// What requests and frees count.
    pub counts: Counts,
}

impl Memory {
    /// Maps free space in which `owner` can take `size` bytes at `align`: see [`PhysicalMemory::grow`].
    pub fn grow(&mut self, owner: Owner, size: u64, align: u64, sources: Sources) -> crate::driver::Result<Grown> {
        let before = self.physical.reserved();
        let grown = self.physical.grow(&mut self.free_space, owner, size, align, sources);
        if self.physical.reserved() > before {
            self.physical.driver_refused = false;
        } else if grown.as_ref().is_err_and(|error| error.failure == Failure::OutOfMemory) {
            self.physical.driver_refused = true;
        }
        self.physical.note_peak();
        grown
    }

    /// Obtains the reserve: see [`PhysicalMemory::obtain_reserve`].
    pub fn obtain_reserve(&mut self) {
        self.physical.obtain_reserve(&mut self.free_space);
    }

    /// See [`PhysicalMemory::exchange_for_new`].
    pub fn exchange_for_new(&mut self, keep: u64) -> u64 {
        self.physical.exchange_for_new(&mut self.free_space, keep)
    }

    /// Whether the device and the limit have `size` bytes, with what is cached or common free space. The driver is asked
    /// only where its answer decides.
    pub fn can_hold(&self, size: u64) -> bool {
        let cached = self.physical.cached_bytes() + self.physical.cached_range_bytes();
        let lacking = size.saturating_sub(cached + self.free_space.free_bytes(COMMON));
        lacking == 0 || lacking <= self.physical.room_below_limit() && lacking <= self.physical.room()
    }
}
