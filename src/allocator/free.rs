//! Frees: a push into a stream's cache, or a free in the pool.

use std::ops::DerefMut;

use super::*;
use crate::driver::Context;
use crate::history::Action;
use crate::pool::stream_cache::Inner;

impl Allocator {
    /// Frees a block. With a stream, work queued on it so far may still use the block; without one, any work queued so
    /// far on any stream. Accepts 0.
    #[inline]
    pub fn deallocate(&self, address: u64, stream: Option<Stream>) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        if process::unusual() {
            return self.deallocate_unusual(address, stream);
        }
        self.deallocate_usual(address, stream)
    }

    #[inline]
    pub(super) fn deallocate_usual(&self, address: u64, stream: Option<Stream>) -> Result<()> {
        self.deallocate_as::<false>(address, stream)
    }

    /// With `RECORDED`, the recorder is notified of a block before its stream may reuse it. Without it, the recorder is not
    /// queried.
    #[inline]
    pub(super) fn deallocate_as<const RECORDED: bool>(&self, address: u64, stream: Option<Stream>) -> Result<()> {
        for pool in self.all_pools() {
            if let Some((id, block)) = pool.find(address) {
                let mut taken = self.take_back::<RECORDED>(pool, id, block, address, stream);
                while taken.is_err() && block.is_resizing() {
                    taken = self.take_back::<RECORDED>(pool, id, block, address, stream);
                }
                taken?;
                if self.closed.load(Ordering::Relaxed) {
                    self.finish();
                }
                return Ok(());
            }
        }
        self.take_back_beside(address, stream)
    }

    #[inline]
    fn take_back<const RECORDED: bool>(
        &self,
        pool: &Pool,
        id: NodeId,
        block: &Block,
        address: u64,
        stream: Option<Stream>,
    ) -> Result<()> {
        let Some(cache) = self.cache(stream).filter(|_| self.config.fill.is_none()) else {
            return self.take_back_slowly(pool, id, block, address, stream);
        };
        let mut inner = self.lock_met(pool, cache);
        let mine = inner.serves(pool.device) && block.is_plain();
        let to = if mine { State::Cached } else { State::Pending };
        if !block.claim_at_home(cache, address, to) {
            drop(inner);
            return self.take_back_claimed(pool, id, block, address, stream);
        }
        if !mine {
            drop(inner);
            pool.free(id, block, Some(cache), false);
            return Ok(());
        }
        let wanted = inner.wants_stamp(pool, block, self.config.streams_trusted);
        if RECORDED {
            pool.record_freed(Action::Freed, id, Some(cache.key.stream));
        }
        inner.take(pool, id, block);
        drop(inner);
        if wanted && let Some(stream) = stream {
            self.stamp(pool, cache, stream);
        }
        Ok(())
    }

    /// Frees a block that no cache takes under its lock alone. A default stream without a context means that of the
    /// device's primary context.
    #[cold]
    fn take_back_slowly(
        &self,
        pool: &Pool,
        id: NodeId,
        block: &Block,
        address: u64,
        stream: Option<Stream>,
    ) -> Result<()> {
        let taken = self.in_primary_for(stream, pool, || {
            self.take_back::<true>(pool, id, block, address, stream)
        });
        taken.unwrap_or_else(|| self.take_back_claimed(pool, id, block, address, stream))
    }

    /// Runs `work` in the primary context of the pool's device, if `stream` is a default stream and no context is
    /// current. Returns `None` if a context is current, or the primary one cannot be made current.
    fn in_primary_for<T>(&self, stream: Option<Stream>, pool: &Pool, work: impl FnOnce() -> T) -> Option<T> {
        let stream = stream.filter(|stream| stream.is_special() && self.driver.knows_work())?;
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
    fn take_back_claimed(
        &self,
        pool: &Pool,
        id: NodeId,
        block: &Block,
        address: u64,
        stream: Option<Stream>,
    ) -> Result<()> {
        self.known(stream)?;
        let Ok(home) = block.claim(address) else {
            return Err(freed_twice(address));
        };
        if let (Some(byte), Some(_)) = (self.config.fill, stream)
            && !block.is_others_too()
        {
            // The fill is work that this free waits for: the block stays pending until the fill has completed.
            let _ = pool.fill(address, byte, block.size(), stream);
        }
        let Some(cache) = self.cache_of(stream, pool) else {
            match self.nameless(stream) {
                Some((stream, key)) => pool.free_nameless(id, block, stream, key),
                None => pool.free(id, block, None, stream.is_none()),
            }
            return Ok(());
        };
        // Without a driver, naming the stream does no harm either.
        let elsewhere = |home: &StreamCache| !std::ptr::eq(home, cache);
        let other = stream.filter(|_| home.is_some_and(elsewhere) || !self.driver.knows_work());
        if let Some(stream) = other.filter(|_| !cache.inner.lock().serves(pool.device)) {
            self.stamp(pool, cache, stream);
        }
        let mut inner = self.lock_met(pool, cache);
        if !inner.serves(pool.device) || !block.is_plain() {
            drop(inner);
            pool.free(id, block, Some(cache), false);
            return Ok(());
        }
        block.become_free(State::Cached);
        pool.record_freed(Action::Freed, id, Some(cache.key.stream));
        inner.take(pool, id, block);
        let due = other.filter(|_| inner.is_stamp_due(pool));
        drop(inner);
        if let Some(stream) = due {
            self.stamp(pool, cache, stream);
        }
        Ok(())
    }

    /// Records a completion event for what was freed on a stream of the pool's device, inside the free that named it.
    /// An unknown stream becomes known. If the stream is another device's, the pool notes that its context uses the
    /// pool.
    #[cold]
    fn stamp(&self, pool: &Pool, cache: &StreamCache, stream: Stream) {
        let known = cache.inner.lock().serves(pool.device);
        let device = if known {
            Ok(pool.device)
        } else {
            self.stream_device(stream)
        };
        match device {
            Ok(device) if device == pool.device => {
                self.leave_other_device(cache, pool.device);
                pool.stamp_freeing(cache, stream, self.config.streams_trusted);
            }
            Ok(_) => {
                let _ = pool.used_by(stream);
            }
            Err(_) => {}
        }
    }

    #[cold]
    fn take_back_beside(&self, address: u64, stream: Option<Stream>) -> Result<()> {
        let take = |pool: &Pool| match self.nameless(stream) {
            Some((stream, key)) => pool.free_standalone_nameless(address, stream, key),
            None => {
                let cache = self.cache_of(stream, pool);
                if let Some(cache) = cache {
                    drop(self.lock_met(pool, cache));
                }
                pool.free_standalone(address, cache, stream.is_none())
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
            self.finish();
        }
        Ok(())
    }

    /// Locks the cache of the stream that a free names. Unless streams are trusted, the pool also notes the context
    /// that the free is made in.
    #[inline]
    fn lock_met<'c>(&self, pool: &Pool, cache: &'c StreamCache) -> impl DerefMut<Target = Inner> + use<'c> {
        let context = match cache.key.context {
            _ if self.config.streams_trusted => None,
            0 => self.driver.current_context().ok().flatten(),
            context => Some(Context(context)),
        };
        let inner = cache.inner.lock();
        match context {
            Some(context) if !inner.has_met(pool, context) => {
                drop(inner);
                pool.meet(cache, context);
                cache.inner.lock()
            }
            _ => inner,
        }
    }

    /// The cache of the stream that a free names. `None` for a free without a stream, where streams have no caches, and
    /// for a default stream without a current context.
    #[inline]
    fn cache(&self, stream: Option<Stream>) -> Option<&StreamCache> {
        let stream = stream.filter(|_| self.streams)?;
        Some(self.caches.get(self.key(stream).ok()??))
    }

    /// The same for a free in `pool`. If no context is current and the primary one cannot be, a default stream means
    /// that of the pool's own context.
    fn cache_of(&self, stream: Option<Stream>, pool: &Pool) -> Option<&StreamCache> {
        let stream = stream.filter(|_| self.streams)?;
        let key = self.key(stream).ok()?;
        Some(
            self.caches
                .get(key.unwrap_or_else(|| Key::special(stream, pool.home()))),
        )
    }
}
