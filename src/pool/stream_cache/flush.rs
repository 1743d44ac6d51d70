//! Blocks leave the caches: they become coalesced free space of their stream.

use crate::pool::Pool;
use crate::pool::free_space::{COMMON, FreeSpace, NodeId, Owner};
use crate::pool::stream_cache::block::BlockState;
use crate::pool::stream_cache::{Inner, StreamCache};
use crate::sync::atomic::Ordering;
use crate::sync::broken;

impl Pool {
    /// Ends a block: its number has no meaning any more.
    pub(in crate::pool) fn end_block(&self, free_space: &FreeSpace, id: NodeId) {
        if let Some(block) = self.blocks.find(id) {
            block.become_free(BlockState::None);
            block.capture.store(0, Ordering::Relaxed);
        }
        self.addresses.index.set(free_space.span(id).0, 0);
    }

    /// Moves what a cache holds into its owner's coalesced free space.
    pub(in crate::pool) fn flush(&self, free_space: &mut FreeSpace, inner: &mut Inner, owner: Owner) {
        let Inner { ready, .. } = inner;
        ready.drain(&self.blocks, |id| {
            self.end_block(free_space, id);
            let event_number = self.blocks.get(id).event_number.load(Ordering::Relaxed);
            let owner = match broken("what a stream freed stays its own") {
                true => COMMON,
                false => owner,
            };
            free_space.give(id, owner, event_number);
        });
    }

    /// Notes that a cache, which the caller has locked, holds blocks again.
    #[cold]
    pub(in crate::pool) fn add_dirty(&self, cache: &StreamCache, inner: &mut Inner) {
        inner.dirty = Some(self.device);
        self.dirty.add(cache);
    }

    /// Gives up what the caches of streams hold of the host's memory that have neither allocated nor freed since the
    /// last call, and what the lists of owners without free space hold. The caches were flushed before.
    pub(in crate::pool) fn shrink_unused(&self, free_space: &mut FreeSpace) {
        for cache in self.caches.all() {
            let mut inner = cache.inner.lock();
            if inner.serves(self.device) {
                let calls = inner.allocations + inner.frees;
                if std::mem::replace(&mut inner.calls_before, calls) == calls {
                    inner.ready.shrink();
                }
            }
        }
        free_space.shrink();
    }

    /// Flushes every cache of this device that holds blocks, so their streams are not silent. The caller holds the
    /// pool's lock, so no other thread does.
    pub(in crate::pool) fn flush_all(&self, free_space: &mut FreeSpace) {
        for cache in self.dirty.take(&self.caches) {
            let mut inner = cache.inner.lock();
            if inner.dirty == Some(self.device) {
                inner.dirty = None;
            }
            if let Some(owner) = inner.owner_on(self.device) {
                self.flush(free_space, &mut inner, owner);
                free_space.is_heard(owner);
            }
        }
    }
}
