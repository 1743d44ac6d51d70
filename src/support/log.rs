//! Logging: one line for each message on stderr, as in `trtalloc: warn: message key=value`.
//!
//! It works while thread-locals are being destroyed, and in a process that has closed its stderr. It writes nothing
//! to stdout.

use std::fmt::Write;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::support::config::{Config, LogLevel};
use crate::support::stderr;

pub(crate) use crate::support::stderr::line;

/// The number of a [`LogLevel`], or [`UNSET`].
static LEVEL: AtomicUsize = AtomicUsize::new(UNSET);

const UNSET: usize = usize::MAX;

/// Writes messages of `level` and above to stderr from now on. The process has one level; the last call sets it. If the
/// process has a `tracing` subscriber already (a Rust program that links this crate), that subscriber gets the messages
/// instead.
pub fn init(level: LogLevel) {
    LEVEL.store(level as usize, Ordering::Relaxed);
    // The first call sets the subscriber; later calls make call sites query the level again.
    if tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Stderr)).is_err() {
        tracing::callsite::rebuild_interest_cache();
    }
}

/// Sets the environment's level, if none was set yet.
pub(crate) fn init_from_environment() {
    if LEVEL.load(Ordering::Relaxed) == UNSET {
        init(Config::environment_log_level());
    }
}

/// Logs flags of a request that this library does not know, once for each bit. A newer TensorRT may set such flags;
/// they are ignored.
#[cold]
pub(crate) fn unknown_flags(bits: u32) {
    static NOTED: AtomicU32 = AtomicU32::new(0);
    if bits & !NOTED.fetch_or(bits, Ordering::Relaxed) != 0 {
        init_from_environment();
        tracing::warn!("flags {bits:#x} are not known; they are ignored");
    }
}

fn filter() -> LevelFilter {
    match LEVEL.load(Ordering::Relaxed) {
        0 | UNSET => LevelFilter::OFF,
        1 => LevelFilter::ERROR,
        2 => LevelFilter::WARN,
        3 => LevelFilter::INFO,
        4 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

/// The subscriber. It formats into a string of its own and stores nothing, so it needs no thread-local.
struct Stderr;

impl Stderr {
    fn wants(metadata: &Metadata<'_>) -> bool {
        // The program may contain other crates that use `tracing`; this log is for trtalloc only.
        metadata.is_event() && *metadata.level() <= filter() && metadata.target().starts_with("trtalloc")
    }
}

impl<S: Subscriber> Layer<S> for Stderr {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if Stderr::wants(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        Stderr::wants(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(filter())
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        stderr::line(&format_event(event));
    }
}

fn format_event(event: &Event<'_>) -> String {
    let level = match *event.metadata().level() {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    };
    let mut fields = Fields::default();
    event.record(&mut fields);
    format!("trtalloc: {level}: {}{}", fields.message, fields.rest)
}

/// A message and its fields, in any order.
#[derive(Default)]
struct Fields {
    message: String,
    rest: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.rest, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value}"),
            name => write!(self.rest, " {name}={value}"),
        };
    }
}
