//! In which context a call is made, and on which thread.
//!
//! AscendCL has one context for each thread and no way to take it back: `aclrtSetCurrentContext` of none is refused, and a
//! reset of the device would end it for the whole process. So nothing here ever changes the context of a thread that is not its own. A
//! context that the pool pushes is noted; while it is not the one the thread has, calls that need it are made by a thread of
//! the driver's.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel, sync_channel};

use parking_lot::Mutex;

use super::super::{Context, DriverError, Failure, Result};
use super::failure::{CONTEXT_NULL, check, check_context};
use super::functions::Acl;

/// `ACL_MODEL_RI_CAPTURE_MODE_RELAXED`.
pub(super) const RELAXED: u32 = 2;

thread_local! {
    /// What was pushed on this thread, the last on top.
    static PUSHED: RefCell<Vec<Context>> = const { RefCell::new(Vec::new()) };
}

/// Where calls of this thread are to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Here: this thread has the context that is wanted.
    Here,
    /// By the driver's thread, in that context.
    Beside(Context),
    /// This thread has no context, and none was pushed.
    Nowhere,
}

/// The context that this thread itself has.
pub(super) fn own(acl: &Acl) -> Result<Option<Context>> {
    let mut context = 0usize;
    match code!(acl, aclrtGetCurrentContext(&mut context)) {
        CONTEXT_NULL => Ok(None),
        code => check("aclrtGetCurrentContext", code).map(|()| (context != 0).then_some(Context(context))),
    }
}

/// The context that was pushed last; none where this thread is ending.
pub(super) fn pushed() -> Option<Context> {
    PUSHED
        .try_with(|pushed| pushed.borrow().last().copied())
        .unwrap_or(None)
}

pub(super) fn push(context: Context) {
    let _ = PUSHED.try_with(|pushed| pushed.borrow_mut().push(context));
}

/// Whether there was one.
pub(super) fn pop() -> bool {
    PUSHED
        .try_with(|pushed| pushed.borrow_mut().pop())
        .is_ok_and(|popped| popped.is_some())
}

pub(super) fn place(acl: &Acl) -> Result<Place> {
    let own = own(acl)?;
    Ok(match pushed().or(own) {
        None => Place::Nowhere,
        wanted if wanted == own => Place::Here,
        Some(wanted) => Place::Beside(wanted),
    })
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread for calls in contexts that their callers do not have. It is made at the first such call.
#[derive(Default)]
pub(super) struct Beside {
    jobs: Mutex<Option<Sender<Job>>>,
}

fn no_thread() -> DriverError {
    DriverError {
        call: "pthread_create",
        code: 0,
        failure: Failure::Other,
    }
}

/// Makes `context` that of this thread, whose context no other code uses.
fn enter(acl: &Acl, context: Option<Context>) -> Result<()> {
    if let Some(context) = context {
        let code = code!(acl, aclrtSetCurrentContext(context.0));
        check_context("aclrtSetCurrentContext", code)?;
    }
    // Memory calls of this thread are to end no capture of another's. Where the mode cannot be set, it does not matter.
    let mut mode = RELAXED;
    let _ = code!(acl, aclmdlRICaptureThreadExchangeMode(&mut mode));
    Ok(())
}

/// Runs `job` in `context`.
fn in_context<T>(acl: &Acl, context: Option<Context>, job: impl FnOnce(&Acl) -> Result<T>) -> Result<T> {
    enter(acl, context)?;
    job(acl).map_err(|error| match error.failure {
        // It had one just now.
        Failure::NoContext => DriverError {
            failure: Failure::ContextDestroyed,
            ..error
        },
        _ => error,
    })
}

impl Beside {
    /// Runs `job` on the thread, in `context` where one is named, and waits for it.
    pub(super) fn run<T: Send + 'static>(
        &self,
        acl: &Arc<Acl>,
        context: Option<Context>,
        job: impl FnOnce(&Acl) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sender, outcome) = sync_channel(1);
        let acl = acl.clone();
        self.hand_over(Box::new(move || {
            // The receiver waits below, and there is room for the one result.
            let _ = sender.send(in_context(&acl, context, job));
        }))?;
        outcome.recv().map_err(|_| no_thread())?
    }

    fn hand_over(&self, job: Job) -> Result<()> {
        let mut jobs = self.jobs.lock();
        let sender = match &*jobs {
            Some(sender) => sender,
            None => jobs.insert(start()?),
        };
        if let Err(unsent) = sender.send(job) {
            // The thread has ended, as by a panic: another takes its place.
            jobs.insert(start()?).send(unsent.0).map_err(|_| no_thread())?;
        }
        Ok(())
    }

    /// Runs `job`, which may take for ever, in `context` on a thread of its own, and waits for it.
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
