//! A bounded wait for all work in a context, on drivers without context events (before CUDA 12.5).
//!
//! `cuCtxSynchronize` takes no limit, and never returns behind a kernel that never ends. So a thread of its own makes
//! the call, and the request waits for that thread.

use std::sync::Arc;
use std::time::Duration;

use super::oneshot::{Receiver, channel};
use super::sets::SetId;
use crate::driver::{Context, Result};
use crate::pool::driver_calls::DriverCalls;
use crate::support::process;
use crate::sync::broken;

/// A synchronization that has begun.
pub struct Synchronization {
    /// The context to synchronize.
    pub context: Context,
    /// The last batch that it is for.
    pub batch: SetId,
    outcome: Receiver<Result<()>>,
}

impl Synchronization {
    /// Begins one. None where no thread can be started: the calling thread cannot make a call that may never return. The
    /// thread blocks all signals, since these are for the application's threads.
    pub fn begin(calls: &Arc<DriverCalls>, context: Context, batch: SetId) -> Option<Synchronization> {
        if broken("a thread can be started") {
            return None;
        }
        let (sender, outcome) = channel();
        let calls = calls.clone();
        let work = move || sender.send(synchronize(&calls, context));
        let thread = std::thread::Builder::new().name("trtalloc-sync".into());
        process::without_signals(|| thread.spawn(work)).ok()?;
        Some(Synchronization {
            context,
            batch,
            outcome,
        })
    }

    /// Waits at most `limit`; none where that was too short.
    pub fn wait(&self, limit: Duration) -> Option<Result<()>> {
        self.outcome.receive(limit).unwrap_or_else(|_| Some(Err(ended())))
    }

    /// The result; none while the synchronization runs.
    pub fn poll(&self) -> Option<Result<()>> {
        self.wait(Duration::ZERO)
    }
}

fn synchronize(calls: &DriverCalls, context: Context) -> Result<()> {
    let _entered = calls.enter(context)?;
    calls.submit(|driver| driver.context_synchronize())
}

/// The thread ended without sending a result.
fn ended() -> crate::driver::DriverError {
    crate::driver::DriverError::refused("cuCtxSynchronize", crate::driver::Failure::Other)
}
