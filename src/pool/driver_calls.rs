//! The driver as the pool calls it. Every call is counted and made in a context, and no call disturbs a capture.

use std::sync::Arc;
use std::time::Instant;

use crate::driver::{Context, Driver, DriverError, Failure, RelaxedMode, Result, pop_context, push_context};
use crate::pool::budgeted_driver::BudgetedDriver;
use crate::support::shared_budget::SharedBudget;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A driver with counters.
pub struct DriverCalls {
    driver: Arc<dyn Driver>,
    /// Calls that submit work or may block.
    pub submitted: AtomicU64,
    /// Nanoseconds of these calls. No thread relies on its order, so the models leave it out.
    pub nanoseconds: std::sync::atomic::AtomicU64,
    /// Queries, which only return a value. [`Contexts`](super::reclaim::Contexts) counts those that most requests make.
    pub queries: AtomicU64,
    /// [`Features::stream_ids`](crate::driver::Features::stream_ids).
    ids: bool,
    /// The context that owns what the driver's malloc returns.
    own_context: AtomicUsize,
    /// The driver's malloc returns pinned host memory.
    pinned: bool,
    budget: Option<Arc<SharedBudget>>,
}

impl DriverCalls {
    /// Counts from zero.
    pub fn new(driver: Arc<dyn Driver>, pinned: bool) -> DriverCalls {
        DriverCalls {
            ids: driver.features().stream_ids,
            driver,
            submitted: AtomicU64::new(0),
            nanoseconds: std::sync::atomic::AtomicU64::new(0),
            queries: AtomicU64::new(0),
            own_context: AtomicUsize::new(0),
            pinned,
            budget: None,
        }
    }

    /// As [`DriverCalls::new`]. The device's memory counts for `budget`.
    pub fn within(budget: Arc<SharedBudget>, driver: Arc<dyn Driver>) -> DriverCalls {
        let driver = Arc::new(BudgetedDriver::new(driver, budget.clone()));
        DriverCalls {
            budget: Some(budget),
            ..DriverCalls::new(driver, false)
        }
    }

    /// The budget that memory counts for.
    pub fn shared_budget(&self) -> Option<&SharedBudget> {
        self.budget.as_deref()
    }

    /// Whether another process waits for a part of the budget, so that this one obtains no more than it needs.
    pub fn others_wait(&self) -> bool {
        self.shared_budget().is_some_and(SharedBudget::others_wait)
    }

    /// The driver itself, for calls that are counted elsewhere.
    pub fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// Makes a call that submits work or may block.
    pub fn submit<T>(&self, call: impl FnOnce(&dyn Driver) -> Result<T>) -> Result<T> {
        self.submitted.fetch_add(1, Ordering::Relaxed);
        let begun = Instant::now();
        let outcome = call(&*self.driver);
        self.nanoseconds
            .fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        outcome
    }

    /// Makes a query.
    pub fn query<T>(&self, call: impl FnOnce(&dyn Driver) -> T) -> T {
        self.queries.fetch_add(1, Ordering::Relaxed);
        call(&*self.driver)
    }

    /// What tells the context from a later one at its handle.
    pub fn identity(&self, context: Context) -> Result<Identity> {
        match self.ids {
            true => self.query(|driver| driver.context_id(context)).map(Identity::Id),
            false => Ok(Identity::Handle),
        }
    }

    /// The identity of a context that has not been queried.
    pub fn unidentified(&self) -> Identity {
        match self.ids {
            true => Identity::Unidentified,
            false => Identity::Handle,
        }
    }

    /// Whether streams and contexts have ids.
    #[inline]
    pub fn has_ids(&self) -> bool {
        self.ids
    }

    /// Whether `context` is still the one that was identified. None where the call failed for another reason, which proves
    /// nothing, or where it was not identified, and another context may have the handle.
    pub fn is_there(&self, context: Context, identity: Identity) -> Option<bool> {
        let there = match identity {
            Identity::Id(_) | Identity::Unidentified => return is_same(self.identity(context), identity),
            // Only making the context current shows whether it exists.
            Identity::Handle => self.query(|driver| driver.current_context()).and_then(|before| {
                self.query(|driver| push_context(driver, before, context))?;
                self.query(|driver| pop_context(driver, before, context));
                Ok(true)
            }),
        };
        is_known(there)
    }

    /// Sets the context that owns what the driver's malloc returns from now on.
    pub fn set_own_context(&self, context: Context) {
        self.own_context.store(context.0, Ordering::Relaxed);
    }

    /// Calls the driver's malloc in the pool's own context. Such memory is freed with the context that was current.
    pub fn malloc(&self, size: u64) -> Result<u64> {
        let _entered = self.enter(Context(self.own_context.load(Ordering::Relaxed)))?;
        self.submit(|driver| match self.pinned {
            true => driver.host_malloc(size),
            false => driver.malloc(size),
        })
    }

    /// What the driver's malloc takes at once: pages of 2 MiB of a device, as CUDA's and Ascend's drivers do, and pages
    /// of the host. CUDA's documents do not say it.
    pub fn malloc_granule(&self) -> u64 {
        match self.pinned {
            true => 4 << 10,
            false => 2 << 20,
        }
    }

    /// Frees what [`DriverCalls::malloc`] returned.
    pub fn free(&self, address: u64) -> Result<()> {
        self.submit(|driver| match self.pinned {
            true => driver.host_free(address),
            false => driver.free(address),
        })
    }

    /// Bytes free on the device, and its memory in total, as the driver reports them in the current context or, if that is
    /// another device's, in `context`; 0 where it does not. Its calls are not counted, because the statistics are read
    /// with it, and they do not change because they are read.
    pub fn device_memory(&self, context: Context, device: i32) -> (u64, u64) {
        let driver = &*self.driver;
        let pushed = driver.current_device() != Ok(Some(device));
        let Ok(before) = driver.current_context() else {
            return (0, 0);
        };
        if pushed && push_context(driver, before, context).is_err() {
            return (0, 0);
        }
        let relaxed = RelaxedMode::begin(driver);
        let info = driver.memory_info(device).unwrap_or_default();
        drop(relaxed);
        if pushed {
            pop_context(driver, before, context);
        }
        info
    }

    /// Makes `context` current and this thread's capture mode relaxed until the value is dropped. Allocation calls in
    /// relaxed mode do not end captures of other threads (PyTorch does the same).
    #[inline]
    pub fn enter(&self, context: Context) -> Result<Entered<'_>> {
        let before = self.query(|driver| driver.current_context())?;
        let mut entered = self.push(before, context)?;
        entered.relaxed = RelaxedMode::begin(self.driver()).ok();
        Ok(entered)
    }

    /// Makes `context` current until the value is dropped, where `before` is current.
    #[inline]
    pub fn push(&self, before: Option<Context>, context: Context) -> Result<Entered<'_>> {
        let pushed = before != Some(context);
        if pushed {
            self.query(|driver| push_context(driver, before, context))?;
        }
        Ok(Entered {
            calls: self,
            pushed: pushed.then_some((before, context)),
            relaxed: None,
        })
    }
}

/// Driver calls may be made in a context while this lives.
pub struct Entered<'a> {
    calls: &'a DriverCalls,
    /// What was current before, and what is now.
    pushed: Option<(Option<Context>, Context)>,
    relaxed: Option<RelaxedMode<'a>>,
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        drop(self.relaxed.take());
        if let Some((before, context)) = self.pushed {
            self.calls.query(|driver| pop_context(driver, before, context));
        }
    }
}

/// What tells a context from a later one that gets its handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// The driver's id. No other context ever has it.
    Id(u64),
    /// The driver has an id, and has not returned it yet.
    Unidentified,
    /// The driver has no ids (before CUDA 12.0): the handle is all that is known.
    Handle,
}

/// Whether a context that answered with `now`, or with an error, is the one that was identified: see
/// [`DriverCalls::is_there`].
pub fn is_same(now: Result<Identity>, identity: Identity) -> Option<bool> {
    match now {
        Ok(_) if identity == Identity::Unidentified => None,
        now => is_known(now.map(|now| now == identity)),
    }
}

fn is_known(there: Result<bool>) -> Option<bool> {
    match there {
        Ok(there) => Some(there),
        Err(error) if is_of_no_context(&error) => Some(false),
        Err(_) => None,
    }
}

/// Whether a call that was given a context failed because no such context exists.
pub fn is_of_no_context(error: &DriverError) -> bool {
    error.failure.is_dead() || error.failure == Failure::NoContext
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_without_a_known_id_proves_nothing() {
        let seven = Identity::Id(7);
        assert_eq!(is_same(Ok(seven), seven), Some(true));
        assert_eq!(is_same(Ok(Identity::Id(8)), seven), Some(false));
        assert_eq!(is_same(Ok(seven), Identity::Unidentified), None);
        assert_eq!(
            is_same(Err(DriverError::refused("cuCtxGetId", Failure::NoContext)), seven),
            Some(false)
        );
        assert_eq!(
            is_same(Err(DriverError::refused("cuCtxGetId", Failure::Other)), seven),
            None
        );
    }
}
