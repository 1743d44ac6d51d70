//! The names of `crate::sync` over loom, for the models.

use std::ops::{Deref, DerefMut};
use std::ptr;

use atomic::Ordering;
pub use loom::hint;
use loom::sync::atomic::AtomicPtr;

/// loom's atomics. A destructor stores nothing after a model has failed, since loom must not be called then.
pub mod atomic {
    pub use loom::sync::atomic::{Ordering, fence};
    use std::ops::Deref;

    macro_rules! atomics {
        ($($name:ident: $of:ty $(, $generic:ident)?;)*) => { $(
            pub struct $name$(<$generic>)?(loom::sync::atomic::$name$(<$generic>)?);

            impl$(<$generic>)? $name$(<$generic>)? {
                #[track_caller]
                pub fn new(value: $of) -> Self {
                    $name(loom::sync::atomic::$name::new(value))
                }

                #[track_caller]
                #[allow(dead_code)]
                pub fn store(&self, value: $of, order: Ordering) {
                    if !std::thread::panicking() {
                        self.0.store(value, order);
                    }
                }
            }

            impl$(<$generic>)? Deref for $name$(<$generic>)? {
                type Target = loom::sync::atomic::$name$(<$generic>)?;

                fn deref(&self) -> &Self::Target {
                    &self.0
                }
            }
        )* };
    }

    impl AtomicBool {
        /// Stores nothing if the atomic has the value already. loom does not know that a store without an order
        /// relative to a swap comes after it all the same, and would let a waiter for the lock see its own swap for
        /// ever.
        #[track_caller]
        pub fn swap(&self, value: bool, order: Ordering) -> bool {
            self.0.compare_exchange(!value, value, order, order).is_err() == value
        }
    }

    macro_rules! defaults {
        ($($name:ident),*) => { $(
            impl Default for $name {
                fn default() -> Self {
                    Self::new(Default::default())
                }
            }
        )* };
    }

    atomics! {
        AtomicBool: bool;
        AtomicU32: u32;
        AtomicU64: u64;
        AtomicI64: i64;
        AtomicUsize: usize;
        AtomicPtr: *mut T, T;
    }
    defaults!(AtomicBool, AtomicU32, AtomicU64, AtomicI64, AtomicUsize);
}

pub mod thread {
    pub use loom::thread::yield_now;

    /// A model has no time.
    pub fn sleep(_: std::time::Duration) {
        yield_now();
    }
}

/// loom's macro: all threads of a model run on one operating-system thread.
macro_rules! thread_local_of_model {
    ($($(#[$of:meta])* static $name:ident: $type:ty = const $value:block;)*) => {
        ::loom::thread_local! { $($(#[$of])* static $name: $type = $value;)* }
    };
}
pub(crate) use thread_local_of_model as thread_local;

/// A map with the same order in every run.
pub type HashMap<K, V> = std::collections::HashMap<K, V, std::hash::BuildHasherDefault<std::hash::DefaultHasher>>;

/// A cell in which each request for the pointer counts as a write.
#[derive(Default)]
pub struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(loom::cell::UnsafeCell::new(value))
    }

    pub fn get(&self) -> *mut T {
        self.0.with_mut(|value| value)
    }
}

/// once_cell's `OnceBox`, with exactly the same loads and stores.
pub struct OnceBox<T>(AtomicPtr<T>);

impl<T> Default for OnceBox<T> {
    fn default() -> OnceBox<T> {
        OnceBox::new()
    }
}

impl<T> OnceBox<T> {
    pub fn new() -> OnceBox<T> {
        OnceBox(AtomicPtr::new(ptr::null_mut()))
    }

    pub fn get(&self) -> Option<&T> {
        // SAFETY: the stored pointer is null or a leaked box, which is never replaced.
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
                // SAFETY: the box was made above, and no other thread has seen it.
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
        if std::thread::panicking() {
            return;
        }
        let value = self.0.with_mut(|value| *value);
        if !value.is_null() {
            // SAFETY: `get_or_try_init` leaked the box, and a value that is dropped is not borrowed.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

const NOT_POISONED: &str = "a panic ends the model, so no later lock is poisoned";
const HELD: &str = "only `unlocked` takes the lock out of the guard, and it puts one back";

/// The interface of parking_lot's mutex over loom's mutex.
#[derive(Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    held: Option<loom::sync::MutexGuard<'a, T>>,
}

/// No model watches a lock.
pub fn is_watched_lock_held() -> bool {
    false
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub fn watched(value: T) -> Mutex<T> {
        Mutex::new(value)
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard {
            mutex: self,
            held: Some(self.0.lock().expect(NOT_POISONED)),
        }
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = Some(self.0.try_lock().ok()?);
        Some(MutexGuard { mutex: self, held })
    }

    pub fn try_lock_for(&self, _: std::time::Duration) -> Option<MutexGuard<'_, T>> {
        Some(self.lock())
    }
}

impl<T> MutexGuard<'_, T> {
    pub fn unlocked<R>(guard: &mut Self, work: impl FnOnce() -> R) -> R {
        guard.held = None;
        let result = work();
        guard.held = Some(guard.mutex.0.lock().expect(NOT_POISONED));
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect(HELD)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect(HELD)
    }
}

/// Readers wait for each other too. That orders more than the real lock does, but no model covers its users.
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
