//! Stream uses: blocks that are used on other streams than the one that frees them, as `record_stream` declared.
//!
//! Such a block is reusable once every stream that used it has completed its work before the free. The free may not
//! name those streams to the driver. So the next call that is given one of them, a request or the next `record_stream`,
//! records a completion event on it. A stream that captured, was destroyed, or belongs to another device cannot be
//! covered that way; a context event covers its uses instead.

use crate::driver::{Capture, Context};
use crate::pool::free_space::{NodeId, Owner};
use crate::pool::reclaim::Reclaimer;
use crate::pool::stream_cache::Key;
use crate::pool::stream_cache::block::{Block, UNKNOWN_USES};
use crate::pool::{Core, Pool, StreamView};
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
    pub fn add_use(&self, address: u64, view: &StreamView) -> Result<bool> {
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
        if !uses.contains(&(view.key, view.id)) {
            uses.push((view.key, view.id));
        }
        block.stream_uses.fetch_max(1, Ordering::Relaxed);
        let (_, mut inner) = self.caches.lock(view.key);
        if inner.awaited {
            reclaimer.record_stream_event(self, &mut inner, view.stream);
        }
        Ok(true)
    }
}

/// The streams that use a block besides its own.
pub enum Uses {
    /// Those that were declared, with the driver's id of each.
    Declared(Vec<(Key, u64)>),
    /// Also streams that are not known.
    Unknown,
}

impl Reclaimer {
    /// Takes the uses of a block that was freed; none where only one stream used it.
    pub(in crate::pool) fn take_uses(&mut self, id: NodeId, block: &Block) -> Option<Uses> {
        let uses = block.stream_uses.load(Ordering::Relaxed);
        if uses == 0 {
            return None;
        }
        let declared = self.uses.remove(&id).unwrap_or_default();
        Some(match uses {
            UNKNOWN_USES => Uses::Unknown,
            _ => Uses::Declared(declared),
        })
    }
}

impl Pool {
    /// The keys and owners of the streams that used a block, and of the one of `key` that frees it; none where some are
    /// unknown.
    pub(in crate::pool) fn streams_of(&self, uses: Uses, key: Key) -> Option<Vec<(Key, Owner)>> {
        let Uses::Declared(declared) = uses else { return None };
        let freeing = self.caches.lock(key).1.served().map(|of| of.id)?;
        let streams = declared.into_iter().chain([(key, freeing)]);
        let owner = |(key, stream)| {
            let (_, inner) = self.caches.lock_known(key)?;
            // Where the cache serves another stream, the declared one is gone, and nothing can be recorded on it.
            let served = inner.served().filter(|of| of.id == stream)?;
            (served.device == self.device).then_some((key, served.owner))
        };
        streams.map(owner).collect()
    }
}
