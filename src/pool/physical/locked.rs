//! The memory while the pool's lock is held, which work in the middle of it can give up.
//!
//! The driver may wait before it unmaps, releases or frees. So a growth that moves or exchanges memory takes it out of the
//! books under the lock, lets it go without the lock, and goes on under the lock again. Other calls change the rest meanwhile.
//! While memory leaves, no close comes to its end: see [`PhysicalMemory::is_empty`].

use super::*;
use crate::driver::DriverError;

/// The memory of a pool whose lock is held.
pub trait Locked {
    /// What backs the address range, and what is free there.
    fn parts(&mut self) -> (&mut PhysicalMemory, &mut FreeSpace);

    /// Does `work` while other threads may have the lock.
    fn unlocked<T>(&mut self, work: impl FnOnce() -> T) -> T;

    /// What backs the address range.
    fn physical(&mut self) -> &mut PhysicalMemory {
        self.parts().0
    }

    /// Lets memory go that was taken out of the books, without the lock, and notes what became of it. Where that is none, the
    /// lock stays.
    fn let_go(&mut self, mut leaving: Vec<Leaving>) -> Left {
        if leaving.is_empty() {
            return Left::default();
        }
        let calls = self.physical().calls.clone();
        self.unlocked(|| Leaving::go(&mut leaving, &calls));
        let (physical, free_space) = self.parts();
        physical.end_leaving(free_space, leaving)
    }

    /// Returns what nothing uses any more to the driver, and caches its handles. What the driver refuses stays in the books,
    /// and is tried again later.
    fn release(&mut self, release: DeferredRelease) -> Left {
        let leaving = self.physical().begin_releases(vec![release]);
        self.let_go(leaving)
    }

    /// Returns these of the cached handles to the driver.
    fn discard(&mut self, handles: &[(Handle, u64)]) -> Left {
        let leaving = self.physical().begin_discarding(handles);
        self.let_go(leaving)
    }
}

/// What became of memory that was let go.
#[derive(Default)]
pub struct Left {
    /// Bytes that went back to the driver.
    pub gone: u64,
    /// Handles that are unmapped and cached now.
    pub cached: Vec<(Handle, u64)>,
    /// Why some of it went no further.
    pub error: Option<DriverError>,
}

impl Left {
    /// Bytes that went back to the driver or are cached now.
    pub fn bytes(&self) -> u64 {
        self.gone + self.cached.iter().map(|(_, size)| size).sum::<u64>()
    }
}
