//! The path of a hit: a block that the stream freed is handed out again, and a freed block becomes ready for that,
//! under the lock of the stream's cache alone.

use crate::history::Action;
use crate::pool::free_space::NodeId;
use crate::pool::stream_cache::block::{Block, BlockState};
use crate::pool::stream_cache::lifetimes::Lifetimes;
use crate::pool::stream_cache::lock::Guard;
use crate::pool::stream_cache::{Inner, StreamCache};
use crate::pool::{Pool, Want};
use crate::support::tags::Tag;
use crate::sync::atomic::Ordering;

/// What a cache did with a block that was freed on its stream.
pub enum FreedToCache {
    /// It took the block.
    Taken {
        /// Whether the free is to record a completion event.
        event_wanted: bool,
    },
    /// The block is claimed, but this stream alone may not reuse it.
    Claimed,
    /// Another stream allocated the block, or it is not in use.
    NotClaimed,
}

impl Pool {
    /// Hands out a block of exactly that size which the stream of `cache` freed; none where there is none. With
    /// `TAGGED`, the block gets `tag`, and there is none unless the tag has a credit.
    #[inline]
    pub fn take_ready<const TAGGED: bool>(
        &self,
        cache: &StreamCache,
        mut inner: Guard<'_, Inner>,
        want: Want,
        tag: Tag,
    ) -> Option<u64> {
        inner.capture = 0;
        if TAGGED && !self.has_credit(&mut inner, tag, want.size) {
            return None;
        }
        // A stream with memory that others need records a completion event first, on the path of a miss.
        if inner.pressure_epoch != self.pressure_epoch.load(Ordering::Relaxed) && inner.uncovered != 0 {
            return None;
        }
        let id = inner.ready.pop(&self.blocks, want.size, want.align)?;
        let block = self.blocks.get(id);
        block.requested.store(want.requested, Ordering::Relaxed);
        if TAGGED {
            inner.credits.take(tag, want.size);
            block.tag.store(tag, Ordering::Relaxed);
        }
        let more = inner.count(block, &want);
        inner.hand_out(cache, block);
        drop(inner);
        if more > 0 {
            self.charge(more);
        }
        Some(block.address.load(Ordering::Relaxed))
    }

    /// Takes back the block at `address` that was freed on the stream of `cache`. With `RECORDED`, the recorder is
    /// notified of the block before its stream may reuse it. Streams that are `trusted` outlive the allocator.
    #[inline]
    pub fn free_to_cache<const RECORDED: bool>(
        &self,
        cache: &StreamCache,
        mut inner: Guard<'_, Inner>,
        (id, block): (NodeId, &Block),
        address: u64,
        trusted: bool,
    ) -> FreedToCache {
        let mine = inner.serves(self.device) && block.is_plain();
        let to = if mine { BlockState::Cached } else { BlockState::Pending };
        if !inner.claim(cache, block, address, to) {
            return FreedToCache::NotClaimed;
        }
        if !mine {
            self.untag_block(block);
            return FreedToCache::Claimed;
        }
        let event_wanted = inner.wants_event(self, block, trusted);
        if RECORDED {
            self.record_freed(Action::Freed, id, Some(cache.key().stream));
        }
        self.credit(cache, &mut inner, block);
        if Lifetimes::notes(block.size()) {
            inner.note_lifetime(block);
        }
        inner.take(self, cache, id, block);
        FreedToCache::Taken { event_wanted }
    }
}
