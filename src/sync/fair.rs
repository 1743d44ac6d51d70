//! A mutex that no thread keeps from the others.
//!
//! An ordinary unlock lets any thread have the lock next, and that is mostly the one that has just given it up, since a
//! waiter has to wake up first. That is what a lock of 100 ns needs: handing it over costs a context switch each time. But
//! beside a thread that takes the lock again and again, a waiter would wait for ever, and parking_lot 0.13 no longer sees
//! to that. So a waiter that has waited for [`PATIENCE`] says so, and until it has the lock, each unlock hands the lock to
//! the thread that has waited longest.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long a thread waits before the lock is handed over in turn.
const PATIENCE: Duration = Duration::from_micros(500);

thread_local! {
    /// How many watched locks this thread holds.
    static WATCHED: Cell<i32> = const { Cell::new(0) };
}

/// Whether this thread holds a lock of [`Mutex::watched`]. Never, where assertions are not checked.
#[inline(always)]
pub fn is_watched_lock_held() -> bool {
    cfg!(debug_assertions) && WATCHED.with(|held| held.get() > 0)
}

/// A mutex that is handed over once a thread has waited for long.
#[derive(Default)]
pub struct Mutex<T> {
    /// Its holders are noted: see [`is_watched_lock_held`].
    watched: bool,
    /// How many threads have waited for longer than [`PATIENCE`].
    impatient: AtomicU32,
    inner: parking_lot::Mutex<T>,
    /// How often the lock was handed over.
    #[cfg(test)]
    handed_over: AtomicU32,
}

/// The lock is held while this lives.
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    held: ManuallyDrop<parking_lot::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// A mutex that is not locked.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex {
            watched: false,
            impatient: AtomicU32::new(0),
            inner: parking_lot::Mutex::new(value),
            #[cfg(test)]
            handed_over: AtomicU32::new(0),
        }
    }

    /// As [`Mutex::new`]. Whether a thread holds the lock is noted where assertions are checked.
    pub fn watched(value: T) -> Mutex<T> {
        let mut mutex = Mutex::new(value);
        mutex.watched = true;
        mutex
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.guard(self.acquire())
    }

    /// Takes the lock, if it is free now.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.inner.try_lock().map(|held| self.guard(held))
    }

    /// Waits at most `limit` for the lock.
    pub fn try_lock_for(&self, limit: Duration) -> Option<MutexGuard<'_, T>> {
        self.inner.try_lock_for(limit).map(|held| self.guard(held))
    }

    #[inline]
    fn acquire(&self) -> parking_lot::MutexGuard<'_, T> {
        self.inner.try_lock().unwrap_or_else(|| self.wait())
    }

    /// This thread holds one watched lock more, or fewer.
    #[inline(always)]
    fn note(&self, more: i32) {
        if cfg!(debug_assertions) && self.watched {
            WATCHED.with(|held| held.set(held.get() + more));
        }
    }

    #[cold]
    fn wait(&self) -> parking_lot::MutexGuard<'_, T> {
        self.inner.try_lock_for(PATIENCE).unwrap_or_else(|| {
            self.impatient.fetch_add(1, Ordering::Relaxed);
            let held = self.inner.lock();
            self.impatient.fetch_sub(1, Ordering::Relaxed);
            held
        })
    }

    #[inline]
    fn guard<'a>(&'a self, held: parking_lot::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.note(1);
        MutexGuard {
            mutex: self,
            held: ManuallyDrop::new(held),
        }
    }
}

impl<T> MutexGuard<'_, T> {
    /// Runs `work` while the lock is not held.
    pub fn unlocked<R>(guard: &mut Self, work: impl FnOnce() -> R) -> R {
        /// Takes the lock again, also after a panic.
        struct Relock<'g, 'a, T>(&'g mut MutexGuard<'a, T>);
        impl<T> Drop for Relock<'_, '_, T> {
            fn drop(&mut self) {
                self.0.held = ManuallyDrop::new(self.0.mutex.acquire());
                self.0.mutex.note(1);
            }
        }
        // SAFETY: `Relock` fills the guard again before it can be used or dropped.
        unsafe { guard.release() };
        let _relock = Relock(guard);
        work()
    }

    /// # Safety
    ///
    /// The guard has the lock, and is not used or dropped before it has it again.
    #[inline]
    unsafe fn release(&mut self) {
        // SAFETY: the caller does not use it again.
        let held = unsafe { ManuallyDrop::take(&mut self.held) };
        self.mutex.note(-1);
        if self.mutex.impatient.load(Ordering::Relaxed) != 0 {
            #[cfg(test)]
            self.mutex.handed_over.fetch_add(1, Ordering::Relaxed);
            parking_lot::MutexGuard::unlock_fair(held);
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.held
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.held
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard has the lock, and ends here.
        unsafe { self.release() };
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    /// An unlock hands the lock over while a thread has waited for long, and only then.
    #[test]
    fn impatient_waiter_is_handed_the_lock() {
        let mutex = Mutex::new(0);
        let handed_over = || mutex.handed_over.load(Ordering::Relaxed);
        for _ in 0..100 {
            *mutex.lock() += 1;
        }
        assert_eq!(handed_over(), 0);
        std::thread::scope(|scope| {
            let held = mutex.lock();
            let waiter = scope.spawn(|| *mutex.lock() += 1);
            while mutex.impatient.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            drop(held);
            waiter.join().unwrap();
        });
        let before = handed_over();
        assert!(before > 0);
        *mutex.lock() += 1;
        assert_eq!((handed_over(), *mutex.lock()), (before, 102));
    }

    #[test]
    fn one_thread_has_the_lock_at_a_time() {
        let mutex = Mutex::new((0u64, 0u64));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let mutex = &mutex;
                scope.spawn(move || {
                    for round in 0..5_000 {
                        let mut pair = mutex.lock();
                        assert_eq!(pair.0, pair.1);
                        pair.0 += 1;
                        if round % 1_000 == thread {
                            // The others lose their patience.
                            std::thread::sleep(2 * PATIENCE);
                        }
                        pair.1 += 1;
                        if round % 7 == 0 {
                            MutexGuard::unlocked(&mut pair, || {
                                assert_eq!(mutex.try_lock().map(|pair| pair.0 - pair.1).unwrap_or(0), 0)
                            });
                        }
                    }
                });
            }
        });
        assert_eq!(*mutex.lock(), (20_000, 20_000));
    }

    #[test]
    fn panic_releases_the_lock() {
        let mutex = Mutex::new(7);
        let panicked = std::thread::scope(|scope| {
            let panics = |work: fn(&Mutex<i32>)| {
                let mutex = &mutex;
                scope.spawn(move || work(mutex)).join().is_err()
            };
            panics(|mutex| {
                let _held = mutex.lock();
                panic!("under the lock");
            }) && panics(|mutex| MutexGuard::unlocked(&mut mutex.lock(), || panic!("without the lock")))
        });
        assert!(panicked);
        assert_eq!(*mutex.lock(), 7);
    }
}
