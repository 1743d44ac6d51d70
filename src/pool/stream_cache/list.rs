//! Lists of caches, so that a loop visits those that it concerns, and not one for each stream that ever was.

use std::ptr::NonNull;

use crate::pool::stream_cache::{StreamCache, StreamCaches};
use crate::sync::{Mutex, MutexGuard};

/// A cache in a list.
struct Listed(NonNull<StreamCache>);

// SAFETY: only the address moves between threads, and a cache is shared between threads.
unsafe impl Send for Listed {}

/// Caches of one pool, in no order. A cache may be in it more than once, and may serve another pool by now.
#[derive(Default)]
pub struct CacheList(Mutex<Vec<Listed>>);

/// A list whose lock is held.
pub struct LockedList<'a>(MutexGuard<'a, Vec<Listed>>);

impl CacheList {
    /// Adds a cache.
    pub fn add(&self, cache: &StreamCache) {
        self.0.lock().push(Listed(NonNull::from(cache)));
    }

    /// Adds a cache, unless another thread has the list.
    pub fn try_add(&self, cache: &StreamCache) -> bool {
        let list = self.0.try_lock();
        list.map(|mut list| list.push(Listed(NonNull::from(cache)))).is_some()
    }

    /// Locks the list.
    pub fn lock(&self) -> LockedList<'_> {
        LockedList(self.0.lock())
    }

    /// Takes every cache out. Other threads may add caches before the caller has visited them all.
    pub fn take<'c>(&self, caches: &'c StreamCaches) -> impl Iterator<Item = &'c StreamCache> {
        let list = std::mem::take(&mut *self.0.lock());
        list.into_iter().map(|listed| listed.of(caches))
    }
}

impl LockedList<'_> {
    /// Takes every cache out.
    pub fn drain<'c>(&mut self, caches: &'c StreamCaches) -> impl Iterator<Item = &'c StreamCache> {
        self.0.drain(..).map(|listed| listed.of(caches))
    }
}

impl Listed {
    /// The cache, which is one of `caches`.
    fn of<'c>(&self, _caches: &'c StreamCaches) -> &'c StreamCache {
        // SAFETY: a pool lists only caches that it shares with its allocator. Those are never moved or removed while
        // `_caches`, which has them, is borrowed.
        unsafe { self.0.as_ref() }
    }
}
