//! Out of memory: who is asked for more, who is told, and who is not disturbed.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::*;
use crate::record::state::PieceState;
use crate::record::{Action, Event, describe};
use crate::sync::HashMap;

/// Called with the device and the bytes of a request that cannot be met; true asks for another try.
pub type OomHandler = Arc<dyn Fn(i32, u64) -> bool + Send + Sync>;

/// How often a handler may ask for another try of one request.
const TRIES: u32 = 100;
/// The least time between two lines in the log.
const QUIET: Duration = Duration::from_secs(10);
/// And between two about requests of the same size.
const AGAIN: Duration = Duration::from_secs(60);
/// Refusals whose sizes are remembered.
const REMEMBERED: usize = 16;
/// Holders that are named.
const NAMED: usize = 3;

thread_local! {
    static ASKING: Cell<bool> = const { Cell::new(false) };
    /// A request that could not be met is tried once more.
    static TRYING: Cell<bool> = const { Cell::new(false) };
}

/// As long as this lives, this thread's requests that cannot be met are nobody else's concern.
struct Trying;

impl Trying {
    fn begin() -> Trying {
        let _ = TRYING.try_with(|trying| trying.set(true));
        Trying
    }
}

impl Drop for Trying {
    fn drop(&mut self) {
        let _ = TRYING.try_with(|trying| trying.set(false));
    }
}

#[derive(Default)]
pub(super) struct Short {
    handler: Mutex<Option<OomHandler>>,
    alarms: Mutex<Alarms>,
    snapshot_taken: AtomicBool,
}

/// What was refused lately.
#[derive(Default)]
struct Alarms {
    sizes: Vec<((i32, u64), Instant)>,
    last: Option<Instant>,
    unsaid: u64,
}

impl Alarms {
    /// How many were kept quiet before this one; none where this one is to be kept quiet too.
    fn raise(&mut self, device: i32, size: u64, now: Instant) -> Option<u64> {
        self.sizes.retain(|(_, since)| now.duration_since(*since) < AGAIN);
        let again = self.sizes.iter().any(|(known, _)| *known == (device, size));
        if !again {
            self.sizes.truncate(REMEMBERED - 1);
            self.sizes.insert(0, ((device, size), now));
        }
        if again || self.last.is_some_and(|last| now.duration_since(last) < QUIET) {
            self.unsaid += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

impl Allocator {
    /// Sets what is called when a request cannot be met; none: nothing. It is called on the requesting thread, which holds
    /// no lock: it may allocate, free, trim and unload. A request of its own that cannot be met does not call it again.
    pub fn on_oom(&self, handler: Option<OomHandler>) {
        *self.short.handler.lock() = handler;
    }

    /// A request could not be met: `again`, as long as the handler wants it; else it is told.
    #[cold]
    #[inline(never)]
    pub(super) fn insist<T>(&self, outcome: &mut Result<T>, request: Request, again: impl Fn() -> Result<T>) {
        // Whoever tries again asks again.
        if TRYING.try_with(Cell::get).unwrap_or(true) {
            return;
        }
        let device = self.device_of(&request);
        for _ in 0..TRIES {
            if !matches!(outcome, Err(Error::OutOfMemory(_))) || !self.ask_handler(device, request.size) {
                break;
            }
            let _trying = Trying::begin();
            *outcome = again();
        }
        if let Err(Error::OutOfMemory(reason)) = outcome {
            self.tell_refused(device, &request, reason);
        }
    }

    /// A request that was refused before any pool was asked. One for more than any device has is out of memory like any other: it
    /// counts, and the handler is asked.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse(&self, request: Request, error: Error) -> Result<u64> {
        if matches!(error, Error::OutOfMemory(_)) {
            self.pool(self.device_of(&request))?.count_refused();
        }
        self.asking(request, || Err(error.clone()))
    }

    /// A resize likewise, of a block that is in a pool.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse_resize(&self, address: u64, alignment: u64, new_size: u64, error: Error) -> Result<u64> {
        if matches!(error, Error::OutOfMemory(_)) {
            self.pool_at(address).ok_or_else(|| foreign(address))?.count_refused();
        }
        self.resize_asking(Err(error), address, alignment, new_size)
    }

    /// A resize, as the request it would be.
    #[cold]
    pub(super) fn resize_request(&self, address: u64, new_size: u64) -> Request {
        Request {
            size: new_size,
            alignment: 0,
            flags: RESIZABLE,
            stream: None,
            device: self.pool_at(address).map(|pool| pool.device),
        }
    }

    fn ask_handler(&self, device: i32, size: u64) -> bool {
        let Some(handler) = self.short.handler.lock().clone() else {
            return false;
        };
        if ASKING.try_with(|asking| asking.replace(true)).unwrap_or(true) {
            return false;
        }
        let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| handler(device, size)));
        let _ = ASKING.try_with(|asking| asking.set(false));
        again.unwrap_or(false)
    }

    /// The device a request was for, as far as that is known without a driver call that could fail anew.
    fn device_of(&self, request: &Request) -> i32 {
        let of_stream = || {
            let key = self.key(request.stream?).ok()??;
            let inner = self.caches.get(key).inner.lock();
            inner.generation.as_ref().map(|generation| generation.device)
        };
        request
            .device
            .or_else(of_stream)
            .or_else(|| self.device(None).ok())
            .unwrap_or(0)
    }

    /// An event, a line in the log, a snapshot: each where it is wanted and not too often. A request for more than there can
    /// be is a builder's, that tries what it may have; so is one that was refused before.
    fn tell_refused(&self, device: i32, request: &Request, reason: &str) {
        let Some(pool) = self.made(device) else { return };
        let (free, total) = pool.device_memory();
        if self.recorder.is_on() {
            let event = Event::new(Action::Oom, device, free, request.size);
            self.recorder.happened(event.on(Stream::recorded(request.stream)));
        }
        let stats = pool.stats();
        let most = if stats.limit == 0 {
            total
        } else {
            stats.limit.min(total)
        };
        let hopeless = most > 0 && request.size > most;
        if hopeless {
            tracing::debug!(
                device,
                size = request.size,
                most,
                "more was asked for than there can be"
            );
            return;
        }
        // Not held while names are looked up and the line is written.
        let raised = self.short.alarms.lock().raise(device, request.size, Instant::now());
        if let Some(unsaid) = raised {
            let limit = if stats.limit == 0 {
                "none".to_owned()
            } else {
                stats.limit.to_string()
            };
            let holders = self.holders(pool);
            tracing::warn!(
                "out of memory on device {device}: {} bytes asked for; limit {limit}, allocated {}, cached {}, pending {}, \
                 reserved {}, free on the device {free}; held by {holders}; refusals not said since the last: {unsaid}; the \
                 reason: {reason}",
                request.size,
                stats.allocated,
                stats.cached,
                stats.pending,
                stats.reserved,
            );
        }
        if let Some(path) = self.config.snapshot_path("snapshot_on_oom")
            && !self.short.snapshot_taken.swap(true, Ordering::Relaxed)
        {
            match self.write_snapshot(&path) {
                Ok(()) => tracing::warn!("snapshot at the first refusal: {}", path.display()),
                Err(error) => tracing::warn!("snapshot at the first refusal: {error}"),
            }
        }
    }

    /// The biggest holders: by where they were allocated, if that was recorded; else by size.
    fn holders(&self, pool: &Pool) -> String {
        let Some(held) = pool.hold(Duration::from_millis(100)) else {
            return "unknown".into();
        };
        let device = held.device();
        drop(held);
        let mut holders: HashMap<(u32, u64), (u64, u64)> = Default::default();
        for piece in device.segments.iter().flat_map(|segment| &segment.pieces) {
            if piece.state == PieceState::Allocated {
                let key = (piece.stack, if piece.stack == 0 { piece.size } else { 0 });
                let (count, bytes) = holders.entry(key).or_default();
                *count += 1;
                *bytes += piece.size;
            }
        }
        let mut holders: Vec<_> = holders.into_iter().collect();
        holders.sort_by_key(|(key, (_, bytes))| (std::cmp::Reverse(*bytes), *key));
        let named: Vec<String> = holders
            .into_iter()
            .take(NAMED)
            .map(|((stack, size), (count, bytes))| match stack {
                0 => format!("{count} of {size} bytes"),
                _ => format!("{count} of together {bytes} bytes from {}", describe(stack)),
            })
            .collect();
        if named.is_empty() {
            "nobody".into()
        } else {
            named.join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_again_and_too_many_in_a_row_are_quiet() {
        let mut alarms = Alarms::default();
        let start = Instant::now();
        assert_eq!(alarms.raise(0, 100, start), Some(0));
        assert_eq!(
            alarms.raise(0, 100, start + QUIET),
            None,
            "a size that was refused before"
        );
        assert_eq!(alarms.raise(0, 50, start + QUIET / 2), None, "too soon");
        assert_eq!(alarms.raise(1, 100, start + QUIET), Some(2), "another device");
        for size in 0..100 {
            alarms.raise(0, size, start + QUIET);
        }
        assert_eq!(
            alarms.raise(1, 100, start + 3 * QUIET),
            Some(100),
            "forgotten among others"
        );
        assert_eq!(alarms.raise(1, 100, start + 4 * QUIET), None, "the same again");
        let later = start + 3 * QUIET + AGAIN;
        assert_eq!(alarms.raise(1, 100, later), Some(1), "a minute later");
    }
}
