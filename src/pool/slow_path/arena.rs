//! The way of most requests that missed: the stream's own arena or common free space has a fit, and nothing else is due.
//!
//! The stream's cache is locked once, and it counts the request, as it does a hit. So such a miss writes nothing that
//! streams share but the pool's lock.

use super::steps::is_event_due;
use crate::driver::Capture;
use crate::pool::free_space::Cut;
use crate::pool::stream_cache::ServedStream;
use crate::pool::stream_cache::block::Blocks;
use crate::pool::{Core, Pool, StreamView, Want};
use crate::support::error::Result;

/// A block that was taken.
pub(super) struct Found {
    pub address: u64,
    /// By how much it raised the cache's charge: see [`Pool::charge`].
    pub charge: u64,
}

impl Pool {
    /// Takes memory for a request on a known stream that does not capture. None, and no change, where the request has
    /// to go through all steps.
    #[inline]
    pub(super) fn take_from_arena(&self, core: &mut Core, want: &Want, view: &StreamView) -> Result<Option<Found>> {
        let Core { memory, reclaimer, .. } = core;
        if view.id == 0
            || view.capture != Capture::None
            || self.options.pinned
            || reclaimer.is_early_cover_due(self, memory)
        {
            return Ok(None);
        }
        let (cache, mut inner) = self.caches.lock_for_hit(view.key);
        let known = |served: &&ServedStream| served.id == view.id && served.device == self.device;
        let Some(owner) = inner.served().filter(known).map(|served| served.owner) else {
            return Ok(None);
        };
        if is_event_due(&inner, self, &memory.physical) {
            return Ok(None);
        }
        let free_space = &mut memory.free_space;
        if inner.ready.bytes() > 0 {
            self.flush(free_space, &mut inner, owner);
        }
        let end = inner.arena_end(want.size, free_space, owner, || memory.physical.is_short());
        let Some((id, _)) = free_space.take_either(owner, want.size, want.align, Cut::Fair, end) else {
            return Ok(None);
        };
        if id > Blocks::MAX {
            free_space.put_back(id, owner);
            return Ok(None);
        }
        let address = self.make_block(free_space, id, want)?;
        inner.hand_out(cache, self.blocks.get(id));
        self.addresses.index.set(free_space.span(id).0, id);
        free_space.hold(id, owner);
        inner.capture = 0;
        let charge = inner.count(self.blocks.get(id), want);
        Ok(Some(Found { address, charge }))
    }
}
