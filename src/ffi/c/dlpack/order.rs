//! Which stream a handle means, and the order between a block's own stream and a consumer's.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::{self, Capture, Context, Driver, Event, Failure, Stream, pop_context, push_context};
use crate::support::error::{Error, Result};

/// Which stream a handle means. A default stream's handle means another stream in each context, and the per-thread one in each
/// thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The same stream everywhere.
    Stream,
    /// The legacy default stream of a context.
    OfContext(Context),
    /// The default stream of a thread, by its number, in a context.
    OfThread(Context, u64),
    /// A default stream, but the driver did not say which context was current.
    Unknown,
}

impl Meaning {
    /// What the handle means to this thread now. Without a current context that is the default stream of the device's primary
    /// context.
    pub(super) fn here(driver: &dyn Driver, device: i32, stream: Stream) -> Meaning {
        if !stream.is_default() {
            return Meaning::Stream;
        }
        match (in_context(driver, device, Ok), stream) {
            (Err(_), _) => Meaning::Unknown,
            (Ok(context), Stream::PER_THREAD) => Meaning::OfThread(context, thread_number()),
            (Ok(context), _) => Meaning::OfContext(context),
        }
    }

    /// Whether two handles of these meanings, which are equal or both default streams', are one stream's.
    pub(super) fn is(self, other: Meaning) -> bool {
        self == other && self != Meaning::Unknown
    }
}

/// A number of this thread that no other thread ever has.
fn thread_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    std::thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    if NUMBER.get() == 0 {
        NUMBER.set(NUMBERS.fetch_add(1, Ordering::Relaxed));
    }
    NUMBER.get()
}

/// Makes work queued on `consumer` from now on wait for what is queued on `own`, whose handle has that meaning.
pub(super) fn order(
    driver: &dyn Driver,
    device: i32,
    (own, meaning): (Stream, Meaning),
    consumer: Stream,
) -> Result<()> {
    let (context, is_named) = match meaning {
        Meaning::Stream => (driver.context_of(own)?, true),
        Meaning::OfContext(context) => (context, true),
        Meaning::OfThread(context, thread) if thread == thread_number() => (context, true),
        Meaning::OfThread(context, _) => (inside(driver, context, || covering_context(driver, context))?, false),
        Meaning::Unknown => return Err(cannot_be_named("its context is not known")),
    };
    let event = inside(driver, context, || {
        let event = driver.event_create()?;
        let recorded = match is_named {
            true => driver.event_record(event, own),
            false => record_context(driver, context, event),
        };
        if let Err(error) = recorded {
            let _ = driver.event_destroy(event);
            return Err(error.into());
        }
        Ok(event)
    })?;
    // The consumer's handle means a stream of this thread's context.
    let waits = in_context(driver, device, |_| driver.stream_wait_event(consumer, event));
    // The driver keeps the event until the wait is over.
    let _ = inside(driver, context, || Ok(driver.event_destroy(event)?));
    Ok(waits?)
}

/// The context whose event covers the streams of `context`, which is current. No call on this thread can name the default
/// stream of another thread. A context event would end a capture.
fn covering_context(driver: &dyn Driver, context: Context) -> Result<Context> {
    if !driver.features().context_events {
        return Err(cannot_be_named("the driver has no events of contexts (CUDA 12.5)"));
    }
    let captures = driver.look_for_capture(Stream::LEGACY)? != Capture::None;
    if captures || driver.capture_known().load(Ordering::Relaxed) {
        return Err(cannot_be_named("this process captures"));
    }
    Ok(driver.covering_context(context)?)
}

fn record_context(driver: &dyn Driver, context: Context, event: Event) -> driver::Result<()> {
    driver.context_record_event(context, event).inspect_err(|error| {
        if error.failure == Failure::Capture {
            driver.note_capture();
        }
    })
}

#[cold]
fn cannot_be_named(why: &str) -> Error {
    Error::Unsupported(format!(
        "the block's stream is the default stream of another thread or context, and {why}: export the block where it was \
         allocated, or wait for its work and export it without a stream"
    ))
}

/// Runs `work` with `context` current.
fn inside<T>(driver: &dyn Driver, context: Context, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = driver.current_context()?;
    if before == Some(context) {
        return work();
    }
    push_context(driver, before, context)?;
    let done = work();
    pop_context(driver, before, context);
    done
}

/// Runs `work` in the current context; without one, in the primary context of the device.
fn in_context<T>(
    driver: &dyn Driver,
    device: i32,
    work: impl FnOnce(Context) -> driver::Result<T>,
) -> driver::Result<T> {
    if let Some(context) = driver.current_context()? {
        return work(context);
    }
    let primary = driver.primary_retain(device)?;
    let done = push_context(driver, None, primary).and_then(|()| {
        let done = work(primary);
        pop_context(driver, None, primary);
        done
    });
    let _ = driver.primary_release(device);
    done
}
