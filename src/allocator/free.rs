//! Frees: a push into a stream's cache, or a free in the pool.

use super::*;
use crate::driver::Context;
use crate::history::Action;
use crate::pool::FreedOn;
use crate::pool::stream_cache::hit::FreedToCache;
use crate::pool::stream_cache::lifetimes::Lifetimes;

impl Allocator {
    /// Frees a block. With a stream, work queued on it so far may still use the block; without one, any work queued so
    /// far on any stream. Accepts 0.
    #[inline]
    pub fn deallocate(&self, address: u64, stream: Option<Stream>) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        if process::is_observed() {
            return self.deallocate_instrumented(address, stream);
        }
        self.deallocate_directly(address, stream)
    }

    #[inline]
    pub(super) fn deallocate_directly(&self, address: u64, stream: Option<Stream>) -> Result<()> {
        self.deallocate_as::<false>(address, stream)
    }

    /// With `RECORDED`, the recorder is notified of a block before its stream may reuse it. Without it, the recorder is
    /// not queried.
    #[inline]
    pub(super) fn deallocate_as<const RECORDED: bool>(&self, address: u64, stream: Option<Stream>) -> Result<()> {
        for pool in self.all_pools() {
            if let Some((id, block)) = pool.find(address) {
                let mut taken = self.free_block::<RECORDED>(pool, id, block, address, stream);
                while taken.is_err() && block.is_resizing() {
                    taken = self.free_block::<RECORDED>(pool, id, block, address, stream);
                }
                taken?;
                if self.closed.load(Ordering::Relaxed) {
                    self.release_closed();
                }
                return Ok(());
            }
        }
        self.free_dedicated_block(address, stream)
    }

    #[inline]
    fn free_block<const RECORDED: bool>(
        &self,
        pool: &Pool,
        id: NodeId,
        block: &Block,
        address: u64,
        stream: Option<Stream>,
    ) -> Result<()> {
        if stream.is_none() {
            return self.free_without_stream(pool, id, block, address);
        }
        let Some(key) = self.free_key(stream).filter(|_| self.config.fill.is_none()) else {
            return self.free_block_slowly(pool, id, block, address, stream);
        };
        let (cache, inner) = self.lock_for_free(pool, key);
        let trusted = self.config.streams_trusted;
        match pool.free_to_cache::<RECORDED>(cache, inner, (id, block), address, trusted) {
            FreedToCache::NotClaimed => return self.free_on_other_stream(pool, id, block, address, stream),
            FreedToCache::Claimed => pool.free(id, block, FreedOn::own(key)),
            FreedToCache::Taken { event_wanted } => {
                if event_wanted && let Some(stream) = stream {
                    self.record_event(pool, key, stream);
                }
            }
        }
        Ok(())
    }

    fn free_without_stream(&self, pool: &Pool, id: NodeId, block: &Block, address: u64) -> Result<()> {
        if block.claim(address).is_err() {
            return Err(freed_twice(address));
        }
        pool.untag_block(block);
        pool.free(id, block, FreedOn::NoStream);
        Ok(())
    }

    /// Frees a block that no cache takes under its lock alone. A default stream without a context means that of the
    /// device's primary context.
    #[cold]
    fn free_block_slowly(
        &self,
        pool: &Pool,
        id: NodeId,
        block: &Block,
        address: u64,
        stream: Option<Stream>,
    ) -> Result<()> {
        let taken = self.in_primary_for(stream, pool, || {
            self.free_block::<true>(pool, id, block, address, stream)
        });
        taken.unwrap_or_else(|| self.free_on_other_stream(pool, id, block, address, stream))
    }

    /// Runs `work` in the primary context of the pool's device, if `stream` is a default stream and no context is
    /// current. Returns `None` if a context is current, or the primary one cannot be made current.
    fn in_primary_for<T>(&self, stream: Option<Stream>, pool: &Pool, work: impl FnOnce() -> T) -> Option<T> {
        let stream = stream.filter(|stream| stream.is_default() && self.driver.knows_work())?;
        let contextless = || matches!(self.key(stream), Ok(None));
        if !contextless() {
            return None;
        }
        let inside = pool.in_primary(false, || (!contextless()).then(work));
        inside.ok().flatten().flatten()
    }

    /// Frees a block on another stream than its own, or one that is filled before it is reused. The stream may be named
    /// to the driver if the block was allocated on another stream: the caller then chose it for work that ran on it.
    #[cold]
    fn free_on_other_stream(
        &self,
        pool: &Pool,
        id: NodeId,
        block: &Block,
        address: u64,
        stream: Option<Stream>,
    ) -> Result<()> {
        self.check_stream_is_known(stream)?;
        let Ok(origin) = block.claim(address) else {
            return Err(freed_twice(address));
        };
        pool.untag_block(block);
        if let (Some(byte), Some(_)) = (self.config.fill, stream)
            && !block.has_other_users()
        {
            // The fill is work that this free waits for: the block stays pending until the fill has completed.
            let _ = pool.fill(address, byte, block.size(), stream);
        }
        let Some(key) = self.key_in(stream, pool) else {
            match self.per_free_key(stream) {
                Some((stream, key)) => pool.free(id, block, FreedOn::Unidentified { key, stream }),
                None => pool.free(id, block, FreedOn::without_cache(stream)),
            }
            return Ok(());
        };
        // Without a driver, naming the stream does no harm either.
        let elsewhere = origin.filter(|origin| *origin != key);
        let other = stream.filter(|_| elsewhere.is_some() || !self.driver.knows_work());
        if let Some(origin) = elsewhere.filter(|_| Lifetimes::notes(block.size()))
            && let Some((_, mut origin)) = self.caches.lock_known(origin)
        {
            // It goes home once the work of the other stream has completed.
            origin.lifetimes.note(block.size(), u64::MAX);
        }
        if let Some(stream) = other.filter(|_| self.served_by(key, |of| of.device) != Some(pool.device)) {
            self.record_event(pool, key, stream);
        }
        let (cache, mut inner) = self.lock_for_free(pool, key);
        if !inner.serves(pool.device) || !block.is_plain() {
            drop(inner);
            pool.free(id, block, FreedOn::stream(key, origin));
            return Ok(());
        }
        block.become_free(BlockState::Cached);
        pool.record_freed(Action::Freed, id, Some(key.stream));
        inner.take(pool, cache, id, block);
        let due = other.filter(|_| inner.is_event_due(pool));
        drop(inner);
        if let Some(stream) = due {
            self.record_event(pool, key, stream);
        }
        Ok(())
    }

    /// Records a completion event for what was freed on a stream of the pool's device, inside the free that named it.
    /// An unknown stream becomes known. If the stream is another device's, the pool notes that its context uses the
    /// pool.
    #[cold]
    fn record_event(&self, pool: &Pool, key: Key, stream: Stream) {
        let known = self.served_by(key, |of| of.device) == Some(pool.device);
        let device = if known {
            Ok(pool.device)
        } else {
            self.stream_device(stream)
        };
        match device {
            Ok(device) if device == pool.device => {
                self.leave_other_device(key, pool.device);
                pool.record_event_of_free(key, stream, self.config.streams_trusted);
            }
            Ok(_) => {
                let _ = pool.note_stream_context(stream);
            }
            Err(_) => {}
        }
    }

    #[cold]
    fn free_dedicated_block(&self, address: u64, stream: Option<Stream>) -> Result<()> {
        let take = |pool: &Pool| match self.per_free_key(stream) {
            Some((stream, key)) => pool.free_dedicated(address, FreedOn::Unidentified { key, stream }),
            None => {
                let freed_on = match self.key_in(stream, pool) {
                    Some(key) => {
                        drop(self.lock_for_free(pool, key));
                        FreedOn::own(key)
                    }
                    None => FreedOn::without_cache(stream),
                };
                pool.free_dedicated(address, freed_on)
            }
        };
        let taken = |pool: &Pool| {
            pool.knows(address)
                && self
                    .in_primary_for(stream, pool, || take(pool))
                    .unwrap_or_else(|| take(pool))
        };
        if !self.all_pools().any(taken) {
            return Err(foreign(address));
        }
        if self.closed.load(Ordering::Relaxed) {
            self.release_closed();
        }
        Ok(())
    }

    /// Locks the cache of the stream that a free names. Unless streams are trusted, the pool also notes the context
    /// that the free is made in.
    #[inline]
    fn lock_for_free(&self, pool: &Pool, key: Key) -> (&StreamCache, Guard<'_, Inner>) {
        let context = match key.context {
            _ if self.config.streams_trusted => None,
            0 => self.driver.current_context().ok().flatten(),
            context => Some(Context(context)),
        };
        let (cache, inner) = self.caches.lock_for_hit(key);
        match context {
            Some(context) if !inner.knows_context(pool, context) => {
                drop(inner);
                pool.note_free_context(key, context);
                self.caches.lock_for_hit(key)
            }
            _ => (cache, inner),
        }
    }

    /// The key of the stream that a free names. `None` for a free without a stream, where streams have no caches, and
    /// for a default stream without a current context.
    #[inline]
    fn free_key(&self, stream: Option<Stream>) -> Option<Key> {
        let stream = stream.filter(|_| self.streams)?;
        self.key(stream).ok()?
    }

    /// The same for a free in `pool`. If no context is current and the primary one cannot be, a default stream means
    /// that of the pool's own context.
    fn key_in(&self, stream: Option<Stream>, pool: &Pool) -> Option<Key> {
        let stream = stream.filter(|_| self.streams)?;
        let key = self.key(stream).ok()?;
        Some(key.unwrap_or_else(|| Key::default_stream(stream, pool.own_context())))
    }
}
