//! The object behind a `trtalloc_allocator*`: an allocator, and the C++ adapters made for it.
//!
//! An exported allocator is never freed, so a pointer to it or to one of its adapters stays valid for ever. After
//! `trtalloc_destroy` it refuses every request. The process's own exported allocator is created without an allocator,
//! and its first request opens one.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::allocator::Allocator;
use crate::ffi::named::NamedAllocator;
use crate::ffi::tensorrt::abi::AllocatorAbi;
use crate::support::config::{Config, Limit};
use crate::support::error::Result;
use crate::support::process;
use crate::support::stats::Stats;

/// An [`Allocator`] that other languages can use. Safe from any thread.
pub struct ExportedAllocator {
    /// Null until there is an allocator. The allocator is never freed. A call needs one load to find it.
    allocator: AtomicPtr<Allocator>,
    /// The result of opening the process's own allocator, which its first request does. Other exported allocators leave
    /// this empty, since they begin with an open allocator.
    opened: OnceLock<Result<&'static Allocator>>,
    /// The C++ adapters, which [`crate::ffi::tensorrt`] makes at the first use of each ABI.
    adapters: [OnceLock<usize>; AllocatorAbi::COUNT],
    /// The name that was used last, the head of a list of all.
    pub(in crate::ffi) names: AtomicPtr<NamedAllocator>,
    /// The exported allocator that was made before this one.
    before: AtomicPtr<ExportedAllocator>,
}

static DEFAULT: ExportedAllocator = ExportedAllocator::empty();

/// Calls `each` with the statistics of each device of the process's own allocator, if they can be read so soon.
fn process_stats(patience: Option<Duration>, each: &mut dyn FnMut(Stats)) {
    let Some(allocator) = DEFAULT.existing() else { return };
    match patience {
        None => allocator.stats_of_all().for_each(each),
        Some(patience) => allocator.stats_within(patience).for_each(each),
    }
}

/// The exported allocator that was created last, the head of a list of all. The list keeps each of them reachable, so
/// that a leak checker in the application's process does not report them.
static NEWEST: AtomicPtr<ExportedAllocator> = AtomicPtr::new(ptr::null_mut());

impl ExportedAllocator {
    const fn empty() -> ExportedAllocator {
        ExportedAllocator {
            allocator: AtomicPtr::new(ptr::null_mut()),
            opened: OnceLock::new(),
            adapters: [const { OnceLock::new() }; AllocatorAbi::COUNT],
            names: AtomicPtr::new(ptr::null_mut()),
            before: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Exports `allocator`. Neither object is ever freed.
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

    /// The process's own exported allocator, with the options of the environment. Its first allocation opens the
    /// driver; if that fails, every request returns that error.
    pub fn process() -> &'static ExportedAllocator {
        &DEFAULT
    }

    /// Whether this is the process's own exported allocator.
    pub fn is_process(&self) -> bool {
        ptr::eq(self, &DEFAULT)
    }

    /// The allocator. The process's own is opened at the first call.
    #[inline]
    pub fn allocator(&self) -> Result<&'static Allocator> {
        match self.existing() {
            Some(allocator) => Ok(allocator),
            None => self.open(),
        }
    }

    /// The allocator; `None` where it has not been opened yet.
    #[inline]
    pub fn existing(&self) -> Option<&'static Allocator> {
        let allocator = self.allocator.load(Ordering::Acquire);
        // SAFETY: null, or from `publish`, which leaks a reference of an Arc, so the allocator is never freed.
        unsafe { allocator.as_ref() }
    }

    #[cold]
    fn open(&self) -> Result<&'static Allocator> {
        // In a forked child `opened` may be a copy that some thread of the parent was filling. No thread would finish it.
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

    /// The statistics of an allocator that is not open yet: only its limit. A limit in percent is known where the process
    /// uses the driver already; otherwise it is 0.
    pub(crate) fn stats_at_rest(&self, device: Option<i32>) -> Stats {
        let config = Config::from_environment();
        let limit = match config.limit {
            _ if !self.is_process() => 0,
            Limit::Percent(_) => config.memory_in_use(device).map_or(0, |total| config.limit.of(total)),
            limit => limit.of(0),
        };
        Stats {
            limit,
            ..Stats::default()
        }
    }

    fn publish(&self, allocator: Arc<Allocator>) -> &'static Allocator {
        let allocator = Arc::into_raw(allocator);
        self.allocator.store(allocator.cast_mut(), Ordering::Release);
        // SAFETY: `into_raw` leaked a reference of the Arc above, so the allocator is never freed.
        unsafe { &*allocator }
    }

    /// The adapter for that ABI, which `make` creates at the first call; 0 where `make` failed.
    pub(crate) fn adapter(&self, abi: AllocatorAbi, make: impl FnOnce() -> usize) -> usize {
        *self.adapters[abi as usize].get_or_init(make)
    }
}
