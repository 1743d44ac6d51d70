//! Checks that a pool is consistent, for tests.

use std::collections::HashSet;

use crate::pool::Pool;
use crate::pool::dedicated::Try;
use crate::sync::atomic::Ordering;

impl Pool {
    /// Checks that every invariant holds. An error names the violation.
    pub fn validate(&self) -> Result<(), String> {
        let core = self.core.lock();
        let (free_space, physical) = (&core.memory.free_space, &core.memory.physical);
        free_space.validate()?;
        core.reclaimer.pending.sets.validate(free_space)?;
        if self.addresses.base().is_none() {
            physical.validate_segments(free_space)?;
        } else if free_space.backed() != physical.mapped() + physical.places() {
            return Err(format!(
                "{} bytes backed, {} mapped",
                free_space.backed(),
                physical.mapped()
            ));
        }
        let mut owners = HashSet::new();
        for cache in self.caches.all() {
            let inner = cache.inner.lock();
            if let Some(owner) = inner.owner_on(self.device)
                && (!owners.insert(owner) || !core.reclaimer.pending.is_streams(owner))
            {
                return Err(format!("{owner:?} is not one stream's own"));
            }
        }
        // Blocks that are being resized just now are skipped.
        let committed = |(id, _)| match self.dedicated.try_claim(id) {
            Try::Claimed(claimed) => {
                let size = claimed.size.load(Ordering::Relaxed);
                let block = claimed.block();
                let block = block.as_ref()?;
                Some(block.validate(size).map(|()| block.committed()))
            }
            _ => None,
        };
        let dedicated: u64 = self
            .dedicated
            .all()
            .filter_map(committed)
            .sum::<Result<u64, String>>()?;
        let cached = physical.cached_bytes() + physical.cached_range_bytes();
        match (physical.mapped() + cached + dedicated, physical.reserved()) {
            (known, reserved) if known > reserved => Err(format!("{known} bytes known, {reserved} reserved")),
            _ => Ok(()),
        }
    }
}
