//! Stream uses: blocks that are used on other streams than the one that frees them, as `record_stream` declared.
//!
//! Such a block is reusable once every stream that used it has completed its work before the free. The free may not
//! name those streams to the driver. So the next call that is given one of them, a request or the next `record_stream`,
//! records a completion event on it. A stream that captured, was destroyed, or belongs to another device cannot be
//! covered that way; a context event covers its uses instead.

use crate::driver::{Capture, Context};
use crate::pool::block::UNKNOWN_USES;
use crate::pool::free_space::NodeId;
use crate::pool::reclaim::Freed;
use crate::pool::stream_cache::{AWAITED, Key, StreamCache};
use crate::pool::{Core, Pool, Turn};
use crate::support::error::Result;
use crate::sync::HashMap;
use crate::sync::atomic::Ordering;

/// The streams that use each block, with the driver's id of each: a handle may come back as another stream, and an
/// owner's number as another owner.
pub type Uses = HashMap<NodeId, Vec<(Key, u64)>>;

impl Pool {
    /// Declares that the block at `address` is also used on an unknown stream of `context` (of the pool's own where
    /// none is named); false where there is no such block.
    pub fn share(&self, address: u64, context: Option<Context>) -> Result<bool> {
        let found = match self.find(address) {
            Some((_, block)) if block.is_live() => {
                block.shared.store(UNKNOWN_USES, Ordering::Relaxed);
                true
            }
            Some(_) => false,
            None => self
                .beside
                .find(address)
                .map(|block| block.shared.store(1, Ordering::Relaxed))
                .is_some(),
        };
        if let Some(context) = context.filter(|_| found) {
            self.core.lock().note_context(&self.calls, context)?;
        }
        Ok(found)
    }

    /// Declares that the block at `address` is also used on the stream of `turn`, which is of this device; false where
    /// there is no such block. Also records the completion event of that stream that something waits for.
    pub fn share_with(&self, address: u64, turn: &Turn<'_>) -> Result<bool> {
        let found = self.find(address).filter(|(_, block)| block.is_live());
        let Some((id, block)) = found.filter(|_| turn.capture == Capture::None) else {
            let context = self
                .calls
                .ask(|driver| driver.stream_context(turn.stream))
                .map_err(|error| self.failed(error))?;
            return self.share(address, Some(context));
        };
        let mut core = self.core.lock();
        let _entered = self.enter(&core)?;
        self.check_context(&mut core)?;
        self.join_stream(&mut core, turn)?;
        let uses = core.uses.entry(id).or_default();
        if !uses.contains(&(turn.cache.key, turn.id)) {
            uses.push((turn.cache.key, turn.id));
        }
        block.shared.fetch_max(1, Ordering::Relaxed);
        let mut inner = turn.cache.inner.lock();
        if inner.hunger == AWAITED {
            self.stamp_cache(&mut core, &mut inner, turn.stream);
        }
        Ok(true)
    }

    /// A block with stream uses was freed on the stream of `cache`: puts it behind that stream and all streams that
    /// used it; false where some are unknown.
    pub(in crate::pool) fn free_shared(&self, core: &mut Core, id: NodeId, cache: &StreamCache) -> bool {
        let uses = core.uses.remove(&id).unwrap_or_default();
        let Some(freeing) = cache.inner.lock().generation.as_ref().map(|of| of.id) else {
            return false;
        };
        if self.blocks.get(id).shared.load(Ordering::Relaxed) == UNKNOWN_USES {
            return false;
        }
        let mut behind = Vec::with_capacity(uses.len() + 1);
        for (key, stream) in uses.into_iter().chain([(cache.key, freeing)]) {
            let mut inner = self.caches.get(key).inner.lock();
            let mut same = inner.generation.iter().filter(|of| of.id == stream);
            // The cache has another generation: the stream is gone, and nothing can be recorded on it.
            let Some(owner) = same.find(|of| of.device == self.device).map(|of| of.owner) else {
                return false;
            };
            behind.push((owner, inner.next_stamp));
            inner.unstamped += core.heap.span(id).1;
            inner.hunger = AWAITED;
        }
        core.grace.free_behind(behind, Freed::Block { id, give_back: false });
        true
    }
}
