//! Resizes blocks: within their own range, or by a copy without virtual memory.

use super::*;

impl Allocator {
    /// Resizes a block that was allocated [`RESIZABLE`]. Its bytes are kept, and on an error the block is unchanged. An
    /// alignment above the minimum must be that of the allocation. Two calls for one block take turns: if a free comes
    /// first, there is no block to resize; if it comes second, it frees the resized block.
    #[inline]
    pub fn reallocate(&self, address: u64, alignment: u64, new_size: u64) -> Result<u64> {
        if process::is_observed() {
            return self.reallocate_instrumented(address, alignment, new_size);
        }
        self.reallocate_directly(address, alignment, new_size)
    }

    /// Whether a resize of the block at `address` may copy it, because it has no pages of its own. Another thread may
    /// then get the old memory before the resize has returned.
    #[doc(hidden)]
    pub fn resize_copies(&self, address: u64) -> bool {
        self.config.passthrough || self.all_pools().any(|pool| pool.find(address).is_some())
    }

    #[inline]
    pub(super) fn reallocate_directly(&self, address: u64, alignment: u64, new_size: u64) -> Result<u64> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(destroyed());
        }
        if self.config.kind == Kind::Pinned {
            return Err(Error::Unsupported("pinned memory is not resized".into()));
        }
        let want = match self.want(new_size, alignment) {
            Ok(want) => want,
            Err(error) => return self.refuse_resize(address, alignment, new_size, error),
        };
        for pool in self.all_pools() {
            if let Some(outcome) = pool.resize(address, want) {
                if matches!(outcome, Err(Error::OutOfMemory(_))) {
                    return self.resize_with_handler(outcome, address, alignment, new_size);
                }
                return outcome;
            }
            if let Some((id, block)) = pool.find(address) {
                let outcome = self.resize_in_range(pool, id, block, address, want);
                return self.resize_with_handler(outcome, address, alignment, new_size);
            }
        }
        Err(foreign(address))
    }

    /// Calls the out-of-memory handler if memory ran out, and counts a refusal for the block's tag.
    #[cold]
    pub(super) fn resize_with_handler(
        &self,
        mut outcome: Result<u64>,
        address: u64,
        alignment: u64,
        new_size: u64,
    ) -> Result<u64> {
        if matches!(outcome, Err(Error::OutOfMemory(_))) {
            self.retry_after_handler(&mut outcome, &self.resize_request(address, new_size), || {
                self.reallocate_directly(address, alignment, new_size)
            });
        }
        if matches!(outcome, Err(Error::OutOfMemory(_)))
            && !out_of_memory::is_another_attempt()
            && let Some(pool) = self.pool_at(address)
            && let tag @ 1.. = pool.tag_at(address)
        {
            pool.tag_refused(tag);
        }
        outcome
    }

    #[cold]
    fn resize_in_range(&self, pool: &Pool, id: NodeId, block: &Block, address: u64, want: Want) -> Result<u64> {
        if matches!(self.memory, MemorySource::External(..)) {
            return Err(Error::Unsupported(
                "memory of the caller's is not touched, so nothing in it is copied to grow".into(),
            ));
        }
        loop {
            match block.claim_for_resize(address) {
                Ok(origin) => return pool.resize_by_copying(id, block, origin, want),
                Err(_) if block.is_resizing() => {}
                Err(_) => return Err(Error::InvalidArgument(format!("{address:#x} was freed"))),
            }
        }
    }

    /// Marks a block of the pool's range that a copy may resize.
    #[inline]
    pub(super) fn note_resizable(&self, pool: &Pool, address: u64, want: Want, request: &Request) {
        if request.flags & RESIZABLE != 0 {
            pool.mark_resizable(address, want.align);
        }
    }
}
