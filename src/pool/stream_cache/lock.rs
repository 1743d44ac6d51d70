//! The lock of a stream's cache: one locked instruction to take, none to release.
//!
//! As a rule one thread at a time uses a stream, so the lock is nearly always free, and taking a free lock is nearly
//! its whole cost. A mutex whose waiters sleep has to check at each release whether one sleeps, with a second locked
//! instruction. Here a waiter looks after itself: it spins for as long as a push or a pop takes, then yields its time,
//! then sleeps, longer each time up to `LONGEST`, so that a holder of any priority gets to run. A holder waits for
//! nothing.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{UnsafeCell, hint, thread, unless_broken};

/// The longest sleep of a waiter.
const LONGEST: Duration = Duration::from_micros(100);

/// A lock and the value that is only reached through it.
#[derive(Default)]
pub struct Lock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time reaches the value, between an acquiring swap and a releasing store.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The lock is held while this lives.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// The thread that took the lock releases it, as with any guard.
    _thread: std::marker::PhantomData<*const ()>,
}

// SAFETY: a shared guard gives shared access to the value only.
unsafe impl<T: Sync> Sync for Guard<'_, T> {}

impl<T> Lock<T> {
    /// A lock that is free.
    pub fn new(value: T) -> Lock<T> {
        Lock {
            held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until the lock is free and takes it.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        let order = unless_broken("the lock acquires", Ordering::Acquire);
        if self.held.swap(true, order) {
            self.wait();
        }
        Guard {
            lock: self,
            _thread: std::marker::PhantomData,
        }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        (!self.held.swap(true, Ordering::Acquire)).then(|| Guard {
            lock: self,
            _thread: std::marker::PhantomData,
        })
    }

    /// Waits at most `patience`; none where the lock was not free by then.
    pub fn lock_for(&self, patience: Duration) -> Option<Guard<'_, T>> {
        let deadline = Instant::now() + patience;
        while self.held.swap(true, Ordering::Acquire) {
            if Instant::now() >= deadline {
                return None;
            }
            thread::sleep(Duration::from_micros(1));
        }
        Some(Guard {
            lock: self,
            _thread: std::marker::PhantomData,
        })
    }

    #[cold]
    fn wait(&self) {
        let mut tries = 0u32;
        loop {
            match tries {
                0..64 => hint::spin_loop(),
                64..80 => thread::yield_now(),
                _ => thread::sleep((Duration::from_micros(1) * (tries - 79)).min(LONGEST)),
            }
            tries = tries.saturating_add(1).min(1 << 10);
            let order = unless_broken("a waiter acquires", Ordering::Acquire);
            if !self.held.load(Ordering::Relaxed) && !self.held.swap(true, order) {
                return;
            }
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard proves that this thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard proves that this thread holds the lock, and the guard is borrowed for writing.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let order = unless_broken("the lock releases", Ordering::Release);
        self.lock.held.store(false, order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_has_one_holder_at_a_time() {
        let lock = Lock::new((0u64, 0u64));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let lock = &lock;
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let mut pair = lock.lock();
                        assert_eq!(pair.0, pair.1);
                        pair.0 += 1;
                        if thread == 0 && round % 1_000 == 0 {
                            // This is long enough for the others to fall asleep.
                            std::thread::sleep(Duration::from_micros(300));
                        }
                        pair.1 += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), (80_000, 80_000));
    }

    #[test]
    fn panic_releases_the_lock() {
        let lock = Lock::new(7);
        let panicked = std::thread::scope(|scope| {
            let held = scope.spawn(|| {
                let _guard = lock.lock();
                panic!("under the lock");
            });
            held.join().is_err()
        });
        assert!(panicked);
        assert_eq!(*lock.lock(), 7);
    }
}
