//! A pool's memory: what is free in its address range, and the physical memory behind it.

use crate::driver::Failure;
use crate::pool::Core;
use crate::pool::counters::Counts;
use crate::pool::free_space::{COMMON, FreeSpace, Owner};
use crate::pool::physical::{self, Grown, PhysicalMemory, Sources};
use crate::sync::MutexGuard;

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
    /// Obtains the reserve: see [`PhysicalMemory::obtain_reserve`].
    pub fn obtain_reserve(&mut self) {
        self.physical.obtain_reserve(&mut self.free_space);
    }

    /// Whether the device and the limit have `size` bytes, with what is cached or common free space. The driver is asked
    /// only where its answer decides.
    pub fn can_hold(&self, size: u64) -> bool {
        let cached = self.physical.cached_bytes() + self.physical.cached_range_bytes();
        let lacking = size.saturating_sub(cached + self.free_space.free_bytes(COMMON));
        lacking == 0 || lacking <= self.physical.room_below_limit() && lacking <= self.physical.room()
    }
}

/// Maps free space in which `owner` can take a size at an alignment: see [`physical::grow`].
pub fn grow(
    core: &mut MutexGuard<'_, Core>,
    owner: Owner,
    size: (u64, u64),
    sources: Sources,
    goes_on: impl Fn() -> bool,
) -> crate::driver::Result<Grown> {
    let before = core.memory.physical.reserved();
    let grown = physical::grow(core, owner, size, sources, goes_on);
    let physical = &mut core.memory.physical;
    if physical.reserved() > before {
        physical.driver_refused = false;
    } else if grown.as_ref().is_err_and(|error| error.failure == Failure::OutOfMemory) {
        physical.driver_refused = true;
    }
    physical.note_peak();
    grown
}
