//! What `trtalloc_allocator` points to: an allocator, or the promise of one, and the adapters made of it.
//!
//! An exported allocator is never freed, so that a pointer to it, or to one of its adapters, stays valid however late it is used; after
//! `trtalloc_destroy` it is a tombstone. Used by the faces ([`crate::ffi::c`], [`crate::ffi::tensorrt::allocator_bridge`]); knows [`crate::allocator`].

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

use crate::allocator::Allocator;
use crate::ffi::tensorrt::abi::AllocatorAbi;
use crate::support::config::{Config, Limit};
use crate::support::error::Result;
use crate::support::process;
use crate::support::stats::Stats;

/// An allocator for other languages. Safe from any thread.
pub struct ExportedAllocator {
    /// Null until there is an allocator; what it points to is never freed. One load leads every call to its allocator.
    allocator: AtomicPtr<Allocator>,
    /// How the first allocation went; only the process's own allocator starts without.
    opened: OnceLock<Result<&'static Allocator>>,
    /// Made by [`crate::ffi::tensorrt::allocator_bridge`].
    adapters: [OnceLock<usize>; AllocatorAbi::COUNT],
    /// The exported allocator that was made before this one.
    before: AtomicPtr<ExportedAllocator>,
}

static DEFAULT: ExportedAllocator = ExportedAllocator::empty();

/// Calls `each` with the figures of each device of the process's own allocator.
fn process_stats(each: &mut dyn FnMut(Stats)) {
    if let Some(allocator) = DEFAULT.existing() {
        allocator.stats_of_all().for_each(each);
    }
}

/// The exported allocator that was made last. Through it every one stays reachable, so that a leak checker in the application's
/// process sees nothing lost in what is kept on purpose.
static NEWEST: AtomicPtr<ExportedAllocator> = AtomicPtr::new(ptr::null_mut());

impl ExportedAllocator {
    const fn empty() -> ExportedAllocator {
        ExportedAllocator {
            allocator: AtomicPtr::new(ptr::null_mut()),
            opened: OnceLock::new(),
            adapters: [const { OnceLock::new() }; AllocatorAbi::COUNT],
            before: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// An exported `allocator`. Neither is ever freed.
    pub fn new(allocator: Arc<Allocator>) -> &'static ExportedAllocator {
        let exported: &'static ExportedAllocator = Box::leak(Box::new(ExportedAllocator::empty()));
        exported.publish(allocator);
        let mut before = NEWEST.load(Ordering::Relaxed);
        loop {
            exported.before.store(before, Ordering::Relaxed);
            let newest = ptr::from_ref(exported).cast_mut();
            match NEWEST.compare_exchange_weak(before, newest, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return exported,
                Err(now) => before = now,
            }
        }
    }

    /// The process's own, which the environment describes. Touches no driver before its first allocation, and what went
    /// wrong there is what every request gets.
    pub fn process() -> &'static ExportedAllocator {
        &DEFAULT
    }

    /// Whether this is the process's own.
    pub fn is_process(&self) -> bool {
        ptr::eq(self, &DEFAULT)
    }

    /// The allocator; the process's own is opened here.
    #[inline]
    pub fn allocator(&self) -> Result<&'static Allocator> {
        match self.existing() {
            Some(allocator) => Ok(allocator),
            None => self.open(),
        }
    }

    /// The allocator, where there is one already.
    #[inline]
    pub fn existing(&self) -> Option<&'static Allocator> {
        let allocator = self.allocator.load(Ordering::Acquire);
        // SAFETY: null, or from `publish`, which gave up a count of an Arc, so that it is never freed.
        unsafe { allocator.as_ref() }
    }

    #[cold]
    fn open(&self) -> Result<&'static Allocator> {
        // A child of a fork may hold a copy of a first opening that no thread will finish.
        process::usable()?;
        let opened = self.opened.get_or_init(|| {
            process::watch();
            crate::support::log::init_from_environment();
            Allocator::from_config(Config::from_environment()).map(|allocator| {
                let allocator = self.publish(allocator);
                crate::support::run_statistics::record_use(process_stats);
                allocator
            })
        });
        match opened {
            Ok(allocator) => Ok(allocator),
            Err(error) => Err(error.clone()),
        }
    }

    /// The figures of an allocator that is not open yet: its limit, as far as that is known without a driver.
    pub fn stats_at_rest(&self) -> Stats {
        let limit = match Config::from_environment().limit {
            Limit::Bytes(bytes) if self.is_process() => bytes,
            _ => 0,
        };
        Stats {
            limit,
            ..Stats::default()
        }
    }

    fn publish(&self, allocator: Arc<Allocator>) -> &'static Allocator {
        let allocator = Arc::into_raw(allocator);
        self.allocator.store(allocator.cast_mut(), Ordering::Release);
        // SAFETY: from an Arc whose count was given up in the line above, so it is never freed.
        unsafe { &*allocator }
    }

    /// The adapter of that ABI, which `make` makes at the first call; 0 where it made none.
    pub(crate) fn adapter(&self, abi: AllocatorAbi, make: impl FnOnce() -> usize) -> usize {
        *self.adapters[abi as usize].get_or_init(make)
    }
}
