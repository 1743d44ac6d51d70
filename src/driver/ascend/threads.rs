//! Chooses the context and the thread of a call.
//!
//! AscendCL has one context for each thread and no way to take it back: `aclrtSetCurrentContext` of none is refused,
//! and a reset of the device would destroy the context for all its users. So this module never changes the context of
//! an application's thread. It notes each context that the pool pushes. When a pushed context differs from the thread's
//! own, the driver's own thread makes the calls that need it.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use parking_lot::{Condvar, Mutex};

use super::super::{Context, DriverError, Failure, Result};
use super::failure::{CONTEXT_NULL, check, check_context};
use super::functions::Acl;

/// `ACL_MODEL_RI_CAPTURE_MODE_RELAXED`.
pub(super) const RELAXED: u32 = 2;

thread_local! {
    /// The contexts pushed on this thread, the last on top.
    static PUSHED: RefCell<Vec<Context>> = const { RefCell::new(Vec::new()) };
}

/// Where a call of this thread has to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// On this thread: it has the wanted context.
    Caller,
    /// On the driver's thread, in that context.
    Driver(Context),
    /// Nowhere: this thread has no context, and none was pushed.
    NoContext,
}

/// This thread's own context.
pub(super) fn own(acl: &Acl) -> Result<Option<Context>> {
    let mut context = 0usize;
    match code!(acl, aclrtGetCurrentContext(&mut context)) {
        CONTEXT_NULL => Ok(None),
        code => check("aclrtGetCurrentContext", code).map(|()| (context != 0).then_some(Context(context))),
    }
}

/// The context that was pushed last. `None` while this thread is ending.
pub(super) fn pushed() -> Option<Context> {
    PUSHED
        .try_with(|pushed| pushed.borrow().last().copied())
        .unwrap_or(None)
}

pub(super) fn push(context: Context) {
    let _ = PUSHED.try_with(|pushed| pushed.borrow_mut().push(context));
}

/// Removes the context that was pushed last. Returns whether there was one.
pub(super) fn pop() -> bool {
    PUSHED
        .try_with(|pushed| pushed.borrow_mut().pop())
        .is_ok_and(|popped| popped.is_some())
}

pub(super) fn place(acl: &Acl) -> Result<Place> {
    let own = own(acl)?;
    Ok(match pushed().or(own) {
        None => Place::NoContext,
        wanted if wanted == own => Place::Caller,
        Some(wanted) => Place::Driver(wanted),
    })
}

type Job = Box<dyn FnOnce() + Send>;

/// Calls of AscendCL, whose result goes elsewhere.
type Work = Box<dyn FnOnce(&Acl) -> Result<()> + Send>;

/// What came of calls on the driver's thread.
#[derive(Default)]
struct Outcome {
    result: Mutex<Option<Result<()>>>,
    known: Condvar,
}

/// Sets an outcome. If it is dropped before, as where a job panics, no thread has made the calls.
struct Setter(Arc<Outcome>);

impl Setter {
    fn set(&self, result: Result<()>) {
        self.0.result.lock().get_or_insert(result);
        self.0.known.notify_one();
    }
}

impl Drop for Setter {
    fn drop(&mut self) {
        self.set(Err(no_thread()));
    }
}

/// A thread for calls in contexts that the calling thread does not have. The first such call creates it.
#[derive(Default)]
pub(super) struct Worker {
    jobs: Mutex<Option<Sender<Job>>>,
}

fn no_thread() -> DriverError {
    DriverError {
        call: "pthread_create",
        code: 0,
        failure: Failure::Other,
    }
}

/// Makes `context` current to this thread, which belongs to the driver.
fn enter(acl: &Acl, context: Option<Context>) -> Result<()> {
    if let Some(context) = context {
        let code = code!(acl, aclrtSetCurrentContext(context.0));
        check_context("aclrtSetCurrentContext", code)?;
    }
    // Memory calls of this thread must not invalidate the application's captures. Devices without capture refuse the
    // call, which does no harm.
    let mut mode = RELAXED;
    let _ = code!(acl, aclmdlRICaptureThreadExchangeMode(&mut mode));
    Ok(())
}

/// Runs `job` in `context`.
fn in_context<T>(acl: &Acl, context: Option<Context>, job: impl FnOnce(&Acl) -> Result<T>) -> Result<T> {
    enter(acl, context)?;
    job(acl).map_err(|error| match error.failure {
        // The calling thread had a context just before.
        Failure::NoContext => DriverError {
            failure: Failure::ContextDestroyed,
            ..error
        },
        _ => error,
    })
}

impl Worker {
    /// Runs `job` on the driver's thread, in `context` if one is given, and waits for it.
    pub(super) fn run<T: Send + 'static>(
        &self,
        acl: &Arc<Acl>,
        context: Option<Context>,
        job: impl FnOnce(&Acl) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let result = Arc::new(Mutex::new(None));
        let slot = result.clone();
        let work = move |acl: &Acl| job(acl).map(|value| *slot.lock() = Some(value));
        self.run_erased(acl, context, Box::new(work))?;
        let value = result.lock().take();
        value.ok_or_else(no_thread)
    }

    /// As [`Worker::run`]. It has no type parameter, so that the library has its closures once.
    fn run_erased(&self, acl: &Arc<Acl>, context: Option<Context>, work: Work) -> Result<()> {
        let outcome = Arc::new(Outcome::default());
        let (setter, acl) = (Setter(outcome.clone()), acl.clone());
        self.hand_over(Box::new(move || setter.set(in_context(&acl, context, work))))?;
        let mut result = outcome.result.lock();
        loop {
            match result.take() {
                Some(result) => return result,
                None => outcome.known.wait(&mut result),
            }
        }
    }

    fn hand_over(&self, job: Job) -> Result<()> {
        let mut jobs = self.jobs.lock();
        let sender = match &*jobs {
            Some(sender) => sender,
            None => jobs.insert(start()?),
        };
        if let Err(unsent) = sender.send(job) {
            // The thread has ended, for example by a panic. A new one replaces it.
            jobs.insert(start()?).send(unsent.0).map_err(|_| no_thread())?;
        }
        Ok(())
    }

    /// Runs `job`, which may never return, in `context` on a new thread, and waits for it.
    pub(super) fn run_long<T: Send>(
        acl: &Acl,
        context: Context,
        job: impl FnOnce(&Acl) -> Result<T> + Send,
    ) -> Result<T> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("trtalloc-acl-sync".into());
            let running = thread
                .spawn_scoped(scope, || in_context(acl, Some(context), job))
                .map_err(|_| no_thread())?;
            running.join().map_err(|_| no_thread())?
        })
    }
}

fn start() -> Result<Sender<Job>> {
    let (sender, jobs) = channel::<Job>();
    let run = move || jobs.into_iter().for_each(|job| job());
    let thread = std::thread::Builder::new().name("trtalloc-acl".into());
    thread.spawn(run).map_err(|_| no_thread())?;
    Ok(sender)
}
