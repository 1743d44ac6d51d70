//! Blocks that are used on other streams than the one they are freed on, as `record_stream` declared.
//!
//! Such a block is safe once every stream it was used on has passed its free. No call may name those streams then, so each is
//! stamped by the next call that was given it: a request, or the next `record_stream`. What cannot be known that way, because
//! a stream captured, died, or belongs to another device, waits for a context event instead.

use super::block::UNKNOWN_USES;
use super::grace::Freed;
use super::heap::NodeId;
use super::stream_cache::{AWAITED, Key, StreamCache};
use super::{Core, Pool, Turn};
use crate::driver::{Capture, Context};
use crate::error::Result;
use crate::sync::HashMap;
use crate::sync::atomic::Ordering;

/// The streams of each shared block, with the driver's id of each: a handle may come back as another stream, and an owner's
/// number as another owner.
pub type Uses = HashMap<NodeId, Vec<(Key, u64)>>;

impl Pool {
    /// The block at `address` is used on a stream of `context` (of the pool's own, where none is named) too, about which
    /// nothing more is known; false where there is no such block.
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

    /// The block at `address` is used on the stream of `turn` too, which is of this device; false where there is no such
    /// block. What waits for a stamp of that stream gets it.
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

    /// A shared block was freed on the stream of `cache`: puts it behind that stream and all it was used on; false where they
    /// are not all known.
    pub(super) fn free_shared(&self, core: &mut Core, id: NodeId, cache: &StreamCache) -> bool {
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
            // Another generation: the stream is gone, and nothing can be recorded on it.
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
