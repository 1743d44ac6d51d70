//! The captures in which an allocator has memory, known to every allocator of the process.
//!
//! A call for one allocator may end a capture of which only another one knows. The driver does not report that a capture
//! has ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

// No model covers captures, and loom's lock cannot be in a static.
use parking_lot::Mutex;

use super::Context;

/// How long a capture counts as running at least after the last request inside it.
const LASTS: Duration = Duration::from_secs(2);

/// How long the registry keeps a capture whose allocator has forgotten it: longer than one counts as running.
const KEPT: Duration = Duration::from_secs(600);

/// A capture in which a pool has memory.
pub struct RunningCapture {
    /// The pool's device.
    device: i32,
    /// The context that was current to the first request inside it: most likely that of its stream.
    context: Context,
    /// When the last request was made inside it.
    last: Mutex<Instant>,
    is_over: Box<dyn Fn() -> bool + Send + Sync>,
}

impl RunningCapture {
    /// A request is made inside it now. `is_over` says whether the pool knows that it has ended.
    pub fn new(
        device: i32,
        context: Context,
        is_over: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Arc<RunningCapture> {
        Arc::new(RunningCapture {
            device,
            context,
            last: Mutex::new(Instant::now()),
            is_over: Box::new(is_over),
        })
    }

    /// Whether it is known to have ended.
    pub fn is_over(&self) -> bool {
        (self.is_over)()
    }

    fn quiet_for(&self) -> Duration {
        self.last.lock().elapsed()
    }
}

/// The captures that may run.
pub struct RunningCaptures(Mutex<Vec<Arc<RunningCapture>>>);

impl std::fmt::Debug for RunningCaptures {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{} captures", self.0.lock().len())
    }
}

impl RunningCaptures {
    /// None is known.
    pub(super) const fn new() -> RunningCaptures {
        RunningCaptures(Mutex::new(Vec::new()))
    }

    /// Every capture has ended. The caller must know that, as a test does between two simulated processes: a call of any
    /// allocator may end a capture that runs.
    pub fn forget(&self) {
        self.0.lock().clear();
    }

    /// A request is made inside `capture` now.
    pub fn request_inside(&self, capture: &Arc<RunningCapture>) {
        let mut list = self.0.lock();
        *capture.last.lock() = Instant::now();
        if !list.iter().any(|known| Arc::ptr_eq(known, capture)) {
            list.retain(|known| Arc::strong_count(known) > 1 || known.quiet_for() < KEPT.max(LASTS));
            list.push(capture.clone());
        }
    }

    /// The captures that may run and that a call of a pool may end: a pool of `device` that makes calls in the contexts for
    /// which `in_use` is true, and that waits for `wait` at most. Without a request inside it for two seconds, a capture counts
    /// as over. That is longer than a call waits for it, and than one that is made again at once.
    pub fn seen(&self, device: i32, wait: Duration, in_use: impl Fn(Context) -> bool) -> Vec<Arc<RunningCapture>> {
        let lasts = LASTS.max(wait.saturating_mul(2));
        let list = self.0.lock();
        let recent = list.iter().filter(|capture| capture.quiet_for() < lasts);
        let near = recent.filter(|capture| capture.device == device || in_use(capture.context));
        let near: Vec<_> = near.cloned().collect();
        drop(list);
        near.into_iter().filter(|capture| !capture.is_over()).collect()
    }
}
