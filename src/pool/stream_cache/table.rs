//! The table of stream caches: a cache is found by its key without a lock.
//!
//! Caches are never moved or freed, so a pointer to one stays valid. A cache that serves no stream, and that no block in
//! use names as its origin, is *vacant*, and may get another key of the same bucket. So the table does not grow with every
//! stream that ever was. The key changes only under the cache's own lock and that of the table. A reader that has found a
//! cache by its key locks it and compares the key again; where it differs, it looks again.

use crate::driver::Stream;
use crate::pool::stream_cache::lock::Guard;
use crate::pool::stream_cache::{Inner, Key, StreamCache};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, OnceBox, holds};

// Few in unit tests, so that these reach the end of what is kept.
const BUCKETS: usize = match (cfg!(loom), cfg!(test)) {
    (true, _) => 1,
    (_, true) => 64,
    _ => 1024,
};

/// So many caches of a bucket get no other key for a new one's sake: a bucket has that many at least before one is reused.
const KEPT: usize = 4;

/// The key of a cache, as readers see it without a lock: its parts may be those of two keys.
pub(super) struct KeyCell {
    stream: AtomicUsize,
    // The models have no two keys with one stream.
    context: std::sync::atomic::AtomicUsize,
    thread: std::sync::atomic::AtomicUsize,
}

impl KeyCell {
    pub(super) fn new(key: Key) -> KeyCell {
        KeyCell {
            stream: AtomicUsize::new(key.stream.0),
            context: key.context.into(),
            thread: key.thread.into(),
        }
    }

    /// The key. It is whole where the caller holds the cache's lock.
    #[inline]
    pub(super) fn get(&self) -> Key {
        Key {
            stream: Stream(self.stream.load(Ordering::Relaxed)),
            context: self.context.load(Ordering::Relaxed),
            thread: self.thread.load(Ordering::Relaxed),
        }
    }

    /// The caller holds the cache's lock and the table's.
    fn set(&self, key: Key) {
        self.stream.store(key.stream.0, Ordering::Relaxed);
        self.context.store(key.context, Ordering::Relaxed);
        self.thread.store(key.thread, Ordering::Relaxed);
    }
}

/// Every stream cache of an allocator.
pub struct StreamCaches {
    buckets: Box<[OnceBox<StreamCache>]>,
    /// A bit for each bucket that is not empty. Most buckets are empty, and loops over all caches are frequent.
    taken: [AtomicU64; BUCKETS.div_ceil(64)],
    /// Held while a key is added. So no key has two caches.
    adding: Mutex<()>,
}

impl Default for StreamCaches {
    fn default() -> StreamCaches {
        StreamCaches {
            buckets: (0..BUCKETS).map(|_| OnceBox::new()).collect(),
            taken: std::array::from_fn(|_| AtomicU64::new(0)),
            adding: Mutex::new(()),
        }
    }
}

impl StreamCaches {
    /// Locks the cache of `key`, which is made where there is none. The caller holds no cache's lock.
    #[inline(never)]
    pub fn lock(&self, key: Key) -> (&StreamCache, Guard<'_, Inner>) {
        self.lock_for_hit(key)
    }

    /// As [`StreamCaches::lock`], for hits and frees that have no time for a call.
    #[inline(always)]
    pub fn lock_for_hit(&self, key: Key) -> (&StreamCache, Guard<'_, Inner>) {
        loop {
            let cache = self.find(key).unwrap_or_else(|| self.add(key));
            if let Some(inner) = cache.lock_as(key) {
                return (cache, inner);
            }
        }
    }

    /// As [`StreamCaches::lock`]; none where there is no cache of `key`.
    pub fn lock_known(&self, key: Key) -> Option<(&StreamCache, Guard<'_, Inner>)> {
        loop {
            let found = self.find(key).or_else(|| {
                let _adding = self.adding.lock();
                self.find(key)
            });
            let cache = found?;
            if let Some(inner) = cache.lock_as(key) {
                return Some((cache, inner));
            }
        }
    }

    /// The cache of `key`, for a block that is about to be handed out: it keeps its key from now on, until the block was
    /// freed, or until one of the two `end_use`.
    pub fn begin_use(&self, key: Key) -> &StreamCache {
        let (cache, mut inner) = self.lock(key);
        inner.in_use += 1;
        cache
    }

    /// What was to have the cache of `key` as its origin was freed, or was not handed out: see [`StreamCaches::begin_use`].
    pub fn end_use(&self, key: Key) {
        self.lock(key).1.in_use -= 1;
    }

    #[inline]
    fn bucket(key: Key) -> usize {
        let mixed = (key.stream.0 ^ key.context.rotate_left(20) ^ key.thread.rotate_left(40)) as u64;
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize % BUCKETS
    }

    #[inline]
    fn find(&self, key: Key) -> Option<&StreamCache> {
        let mut cache = self.buckets[StreamCaches::bucket(key)].get();
        while let Some(of) = cache
            && of.key() != key
        {
            cache = of.next.get();
        }
        cache
    }

    /// Gives `key` a vacant cache of its bucket, or a new one.
    #[cold]
    fn add(&self, key: Key) -> &StreamCache {
        let _adding = self.adding.lock();
        if let Some(cache) = self.find(key) {
            return cache;
        }
        let bucket = StreamCaches::bucket(key);
        let chain = || std::iter::successors(self.buckets[bucket].get(), |cache| cache.next.get());
        let Some((at, last)) = chain().enumerate().last() else {
            let cache = self.buckets[bucket].get_or_init(|| Box::new(StreamCache::new(key)));
            self.taken[bucket / 64].fetch_or(1 << (bucket % 64), Ordering::Release);
            return cache;
        };
        if at + 1 >= KEPT
            && let Some(cache) = chain().find(|cache| cache.become_of(key))
        {
            return cache;
        }
        last.next.get_or_init(|| Box::new(StreamCache::new(key)))
    }

    /// Every cache.
    pub fn all(&self) -> impl Iterator<Item = &StreamCache> {
        let buckets = self
            .taken
            .iter()
            .zip(self.buckets.chunks(64))
            .flat_map(|(taken, buckets)| {
                let mut left = taken.load(Ordering::Acquire);
                std::iter::from_fn(move || {
                    let at = (left != 0).then_some(left.trailing_zeros())?;
                    left &= left - 1;
                    Some(&buckets[at as usize])
                })
            });
        buckets.flat_map(|bucket| std::iter::successors(bucket.get(), |cache| cache.next.get()))
    }
}

impl StreamCache {
    /// The key that finds it. It is whole where the caller holds the cache's lock.
    #[inline]
    pub fn key(&self) -> Key {
        self.key.get()
    }

    /// Locks it, if it is still the cache of `key`.
    #[inline]
    fn lock_as(&self, key: Key) -> Option<Guard<'_, Inner>> {
        let inner = self.inner.lock();
        let same = holds("a cache that is locked still has its key", self.key() == key);
        same.then_some(inner)
    }

    /// Gives it to `key`, if it is vacant and no other thread uses it now. The caller holds the table's lock.
    fn become_of(&self, key: Key) -> bool {
        let Some(mut inner) = self.inner.try_lock().filter(|inner| inner.is_vacant()) else {
            return false;
        };
        *inner = Inner {
            // Lists may have the cache still.
            dirty: inner.dirty,
            credited: inner.credited,
            ..Inner::default()
        };
        self.key.set(key);
        true
    }

    /// As [`StreamCaches::end_use`].
    pub fn end_use(&self) {
        self.inner.lock().in_use -= 1;
    }
}
