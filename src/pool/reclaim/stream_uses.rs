//! Stream uses: blocks that are used on other streams than the one that frees them, as `record_stream` declared.
//!
//! Such a block is reusable once every stream that used it has completed its work before the free. The free may not
//! name those streams to the driver. So the next call that is given one of them, a request or the next `record_stream`,
//! records a completion event on it. A stream that captured, was destroyed, or belongs to another device cannot be
//! covered that way; a context event covers its uses instead.

use crate::driver::{Capture, Context};
use crate::pool::free_space::NodeId;
use crate::pool::reclaim::Reclaimer;
use crate::pool::reclaim::pending::Freed;
use crate::pool::stream_cache::block::UNKNOWN_USES;
use crate::pool::stream_cache::{AWAITED, Key, StreamCache};
use crate::pool::{Core, Memory, Pool, StreamView};
use crate::support::error::Result;
use crate::sync::HashMap;
use crate::sync::atomic::Ordering;

/// The streams that use each block, with the driver's id of each: a handle may come back as another stream, and an
/// owner's number as another owner.
pub type StreamUses = HashMap<NodeId, Vec<(Key, u64)>>;

impl Pool {
    /// Declares that the block at `address` is also used on an unknown stream of `context` (of the pool's own where
    /// none is named); false where there is no such block.
    pub fn add_unknown_use(&self, address: u64, context: Option<Context>) -> Result<bool> {
        let found = match self.find(address) {
            Some((_, block)) if block.is_live() => {
                block.stream_uses.store(UNKNOWN_USES, Ordering::Relaxed);
                true
            }
            Some(_) => false,
            None => self
                .dedicated
                .find(address)
                .map(|block| block.stream_uses.store(1, Ordering::Relaxed))
                .is_some(),
        };
        if let Some(context) = context.filter(|_| found) {
            self.core.lock().reclaimer.note_context(&self.calls, context)?;
        }
        Ok(found)
    }

    /// Declares that the block at `address` is also used on the stream of `view`, which is of this device; false where
    /// there is no such block. Also records the completion event of that stream that something waits for.
    pub fn add_use(&self, address: u64, view: &StreamView<'_>) -> Result<bool> {
        let found = self.find(address).filter(|(_, block)| block.is_live());
        let Some((id, block)) = found.filter(|_| view.capture == Capture::None) else {
            let context = self
                .calls
                .query(|driver| driver.context_of(view.stream))
                .map_err(|error| self.failed(error))?;
            return self.add_unknown_use(address, Some(context));
        };
        let mut core = self.core.lock();
        let Core { memory, reclaimer, .. } = &mut *core;
        let _entered = self.enter(&reclaimer.contexts)?;
        reclaimer.check_context(self)?;
        reclaimer.join_stream(self, &mut memory.free_space, view)?;
        let uses = reclaimer.uses.entry(id).or_default();
        if !uses.contains(&(view.cache.key, view.id)) {
            uses.push((view.cache.key, view.id));
        }
        block.stream_uses.fetch_max(1, Ordering::Relaxed);
        let mut inner = view.cache.inner.lock();
        if inner.pressure_epoch == AWAITED {
            reclaimer.record_stream_event(self, &mut inner, view.stream);
        }
        Ok(true)
    }
}

impl Reclaimer {
    /// A block with stream uses was freed on the stream of `cache`: puts it behind that stream and all streams that
    /// used it; false where some are unknown.
    pub(in crate::pool) fn free_with_uses(
        &mut self,
        pool: &Pool,
        memory: &Memory,
        id: NodeId,
        cache: &StreamCache,
    ) -> bool {
        let uses = self.uses.remove(&id).unwrap_or_default();
        let Some(freeing) = cache.inner.lock().served.as_ref().map(|of| of.id) else {
            return false;
        };
        if pool.blocks.get(id).stream_uses.load(Ordering::Relaxed) == UNKNOWN_USES {
            return false;
        }
        let mut behind = Vec::with_capacity(uses.len() + 1);
        for (key, stream) in uses.into_iter().chain([(cache.key, freeing)]) {
            let mut inner = pool.caches.get(key).inner.lock();
            let mut same = inner.served.iter().filter(|of| of.id == stream);
            // The cache serves another stream: the declared one is gone, and nothing can be recorded on it.
            let Some(owner) = same.find(|of| of.device == pool.device).map(|of| of.owner) else {
                return false;
            };
            behind.push((owner, inner.next_event));
            inner.uncovered += memory.free_space.span(id).1;
            inner.pressure_epoch = AWAITED;
        }
        self.pending.free_behind(behind, Freed::Block { id, give_back: false });
        true
    }
}
