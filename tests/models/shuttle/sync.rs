//! What the library's code synchronises with in these models.

use std::ops::{Deref, DerefMut};
use std::ptr;

use shuttle::sync::atomic::{AtomicPtr, Ordering};
pub use shuttle::{hint, thread_local};

pub mod atomic {
    pub use shuttle::sync::atomic::*;
}

pub mod thread {
    pub use shuttle::thread::yield_now;

    /// There is no time.
    pub fn sleep(_: std::time::Duration) {
        yield_now();
    }
}

pub use std::time::Instant;

/// One order in every run.
pub type HashMap<K, V> = std::collections::HashMap<K, V, std::hash::BuildHasherDefault<std::hash::DefaultHasher>>;

pub const CHUNK: usize = 8;
pub const LEAF: usize = 4096;

/// Each time that somebody asks for the pointer counts as a write.
#[derive(Default)]
pub struct UnsafeCell<T>(shuttle::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(shuttle::cell::UnsafeCell::new(value))
    }

    pub fn get(&self) -> *mut T {
        self.0.with_mut(|value| value)
    }
}

/// once_cell's, word for word in what it loads and stores.
pub struct OnceBox<T>(AtomicPtr<T>);

impl<T> OnceBox<T> {
    pub fn new() -> OnceBox<T> {
        OnceBox(AtomicPtr::new(ptr::null_mut()))
    }

    pub fn get(&self) -> Option<&T> {
        // SAFETY: what is stored is a leaked box, or null, and is never replaced.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    pub fn get_or_init(&self, make: impl FnOnce() -> Box<T>) -> &T {
        enum Never {}
        match self.get_or_try_init(|| Ok::<_, Never>(make())) {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    pub fn get_or_try_init<E>(&self, make: impl FnOnce() -> Result<Box<T>, E>) -> Result<&T, E> {
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let made = Box::into_raw(make()?);
        let set = self
            .0
            .compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
        let value = set.map_or_else(
            |first| {
                // SAFETY: nobody else has seen it.
                drop(unsafe { Box::from_raw(made) });
                first
            },
            |_| made,
        );
        // SAFETY: as in `get`.
        Ok(unsafe { &*value })
    }
}

impl<T> Drop for OnceBox<T> {
    fn drop(&mut self) {
        let value = self.0.with_mut(|value| *value);
        if !value.is_null() {
            // SAFETY: leaked by `get_or_try_init`, and nobody borrows it any more.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

/// parking_lot's face over the checker's mutex.
#[derive(Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    held: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard {
            mutex: self,
            held: Some(self.0.lock().unwrap()),
        }
    }
}

impl<T> MutexGuard<'_, T> {
    pub fn unlocked<R>(guard: &mut Self, work: impl FnOnce() -> R) -> R {
        guard.held = None;
        let result = work();
        guard.held = Some(guard.mutex.0.lock().unwrap());
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().unwrap()
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().unwrap()
    }
}

/// Readers wait for each other too: more order than there is, and nothing of this is modelled.
#[derive(Default)]
pub struct RwLock<T>(Mutex<T>);

impl<T> RwLock<T> {
    pub fn new(value: T) -> RwLock<T> {
        RwLock(Mutex::new(value))
    }

    pub fn read(&self) -> MutexGuard<'_, T> {
        self.0.lock()
    }

    pub fn write(&self) -> MutexGuard<'_, T> {
        self.0.lock()
    }
}
