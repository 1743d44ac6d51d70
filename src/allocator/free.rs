//! The way back: into a stream's cache by a push, or to the pool.

use super::*;

impl Allocator {
    /// Takes a block back. With a stream, work queued on it so far may still use the block; without, any work queued so
    /// far anywhere. 0 is accepted.
    #[inline]
    pub fn deallocate(&self, address: u64, stream: Option<Stream>) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        if process::forked() {
            return process::usable();
        }
        if process::exiting() {
            return Ok(());
        }
        for pool in self.all_pools() {
            if let Some((id, block)) = pool.find(address) {
                self.take_back(pool, id, block, address, stream)?;
                if self.closed.load(Ordering::Relaxed) {
                    self.finish();
                }
                return Ok(());
            }
        }
        self.take_back_beside(address, stream)
    }

    #[inline]
    fn take_back(&self, pool: &Pool, id: NodeId, block: &Block, address: u64, stream: Option<Stream>) -> Result<()> {
        let cache = self.cache(stream, pool);
        if let Some(byte) = self.config.fill {
            // Claimed while it is filled: a second free of it must not write into what the first made somebody else's.
            if !block.claim(address, PENDING) {
                return Err(freed_twice(address));
            }
            // What may still be written to waits for the grace of this free.
            let _ = pool.fill(address, byte, block.size(), stream);
            block.state.store(LIVE, Ordering::Release);
        }
        let Some(cache) = cache else {
            if !block.claim(address, PENDING) {
                return Err(freed_twice(address));
            }
            pool.free(id, block, None, stream.is_none());
            return Ok(());
        };
        let plain = block.capture.load(Ordering::Relaxed) == 0 && block.shared.load(Ordering::Relaxed) == 0;
        let mut inner = cache.inner.lock();
        let mine = plain
            && inner
                .generation
                .as_ref()
                .is_some_and(|generation| generation.device == pool.device);
        if !block.claim(address, if mine { CACHED } else { PENDING }) {
            return Err(freed_twice(address));
        }
        let due = inner.count_free(block.size(), pool.hunger.load(Ordering::Relaxed));
        if mine {
            let size = block.size();
            block.stamp.store(inner.next_stamp, Ordering::Relaxed);
            inner.frees += 1;
            inner.requested -= block.requested.load(Ordering::Relaxed) as i64;
            inner.balance -= size as i64;
            inner.ready.push(&pool.blocks, size, id);
            drop(inner);
        } else {
            drop(inner);
            pool.free(id, block, Some(cache), false);
        }
        if due && let Some(stream) = stream {
            self.stamp(pool, cache, stream, mine);
        }
        Ok(())
    }

    /// A stream has freed much and allocated nothing: what it freed is stamped, if the stream is of the pool's device.
    #[cold]
    fn stamp(&self, pool: &Pool, cache: &StreamCache, stream: Stream, known: bool) {
        if known || self.stream_device(stream).is_ok_and(|device| device == pool.device) {
            self.leave_other_device(cache, pool.device);
            pool.stamp_freeing(cache, stream, self.config.streams_trusted);
        }
    }

    #[cold]
    fn take_back_beside(&self, address: u64, stream: Option<Stream>) -> Result<()> {
        let taken = |pool: &Pool| pool.free_standalone(address, self.cache(stream, pool), stream.is_none());
        if !self.all_pools().any(taken) {
            return Err(foreign(address));
        }
        if self.closed.load(Ordering::Relaxed) {
            self.finish();
        }
        Ok(())
    }

    /// The cache a free in `pool` goes to; none for a stream-less one, or where streams mean nothing. A default stream where
    /// no context is current is the one of the pool's own.
    #[inline]
    fn cache(&self, stream: Option<Stream>, pool: &Pool) -> Option<&StreamCache> {
        let stream = stream.filter(|_| self.streams)?;
        let key = self
            .key(stream)
            .ok()?
            .unwrap_or_else(|| Key::special(stream, pool.home()));
        Some(self.caches.get(key))
    }
}
