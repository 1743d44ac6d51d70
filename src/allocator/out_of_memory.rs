//! Out of memory: the handler, the event, the log and its throttling, the snapshot.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::*;
use crate::history::event::MAX_BYTES;
use crate::history::report::{bytes, printed_alike};
use crate::history::state::PieceState;
use crate::history::{Action, Event, describe};
use crate::pool::counters;
use crate::support::sort;
use crate::support::stats::TagStats;
use crate::sync::HashMap;

/// A function that is called with the device and the bytes of a request that is about to be refused. True requests
/// another attempt.
pub type OomHandler = Arc<dyn Fn(i32, u64) -> bool + Send + Sync>;

/// The maximum number of attempts that a handler may request for one allocation.
const TRIES: u32 = 100;
/// The pauses between the attempts of a request that waits for other threads' frees.
const SHORTEST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// The minimum time between two lines in the log.
const QUIET: Duration = Duration::from_secs(10);
/// The minimum time between two lines about requests of the same size.
const AGAIN: Duration = Duration::from_secs(60);
/// How many sizes of refusals are remembered.
const REMEMBERED: usize = 16;
/// How many holders the log names.
const NAMED: usize = 3;

thread_local! {
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
    /// Whether a request is being attempted again.
    static RETRYING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread attempts a request again whose first attempt ran out of memory.
pub(super) fn is_another_attempt() -> bool {
    RETRYING.try_with(Cell::get).unwrap_or(true)
}

/// While this lives, requests of this thread that run out of memory are neither reported nor passed to the handler.
pub(super) struct Retrying;

impl Retrying {
    pub(super) fn begin() -> Retrying {
        let _ = RETRYING.try_with(|trying| trying.set(true));
        Retrying
    }
}

impl Drop for Retrying {
    fn drop(&mut self) {
        let _ = RETRYING.try_with(|trying| trying.set(false));
    }
}

#[derive(Default)]
pub(super) struct OutOfMemory {
    handler: Mutex<Option<OomHandler>>,
    throttle: Mutex<LogThrottle>,
    snapshot_taken: AtomicBool,
}

/// The recent refusals.
#[derive(Default)]
struct LogThrottle {
    sizes: Vec<((i32, u64), Instant)>,
    last: Option<Instant>,
    unreported: u64,
}

impl LogThrottle {
    /// The number of refusals since the last line, if this one is to be logged; else `None`.
    fn raise(&mut self, device: i32, size: u64, now: Instant) -> Option<u64> {
        self.sizes.retain(|(_, since)| now.duration_since(*since) < AGAIN);
        let again = self.sizes.iter().any(|(known, _)| *known == (device, size));
        if !again {
            self.sizes.truncate(REMEMBERED - 1);
            self.sizes.insert(0, ((device, size), now));
        }
        if again || self.last.is_some_and(|last| now.duration_since(last) < QUIET) {
            self.unreported += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unreported))
    }
}

impl Allocator {
    /// Sets the out-of-memory handler; `None` removes it. It runs on the requesting thread, which holds no lock, so it
    /// may allocate, free, trim and unload. A request of its own that runs out of memory does not call it again.
    pub fn on_oom(&self, handler: Option<OomHandler>) {
        *self.out_of_memory.handler.lock() = handler;
    }

    /// Handles a request that ran out of memory: runs `again` for as long as the budget and `retry_ms` allow, then as
    /// long as the handler requests it, then reports the refusal.
    #[cold]
    #[inline(never)]
    pub(super) fn retry_after_handler<T>(
        &self,
        outcome: &mut Result<T>,
        request: &Request,
        again: impl Fn() -> Result<T>,
    ) {
        // The outer call attempts the request again.
        if is_another_attempt() {
            return;
        }
        let device = self.device_of(request);
        #[cfg(not(loom))]
        self.wait_for_budget(outcome, (device, request.size), &again);
        self.wait_for_frees(outcome, (device, request.size), &again);
        for _ in 0..TRIES {
            if !matches!(outcome, Err(Error::OutOfMemory(_))) || !self.call_handler(device, request.size) {
                break;
            }
            let _trying = Retrying::begin();
            *outcome = again();
        }
        if let Err(Error::OutOfMemory(reason)) = outcome {
            self.report_refusal(device, request, reason);
            if let Some(pool) = self.existing_pool(device) {
                reason.push_str(&largest_tags(pool));
            }
        }
    }

    /// Attempts a request of so many bytes on a device again and again, until other threads have freed enough or `retry_ms`
    /// has passed. Only the first attempt counts as out of memory. A request that the limit or the device can never hold
    /// does not wait.
    fn wait_for_frees<T>(&self, outcome: &mut Result<T>, (device, size): (i32, u64), again: &impl Fn() -> Result<T>) {
        let Some(pool) = self.pool(device).ok().filter(|_| self.config.retry_ms > 0) else {
            return;
        };
        let deadline = Instant::now() + Duration::from_millis(self.config.retry_ms);
        let mut pause = SHORTEST_PAUSE;
        while matches!(outcome, Err(Error::OutOfMemory(_))) && pool.may_ever_hold(size) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(pause.min(left));
            pause = (2 * pause).min(LONGEST_PAUSE);
            let _trying = Retrying::begin();
            *outcome = counters::uncounted(again);
        }
    }

    /// Refuses a request before it reaches a pool. A request for more than any device has is out of memory like any
    /// other: it counts, and the handler is called.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse(&self, request: &Request, error: Error) -> Result<u64> {
        if matches!(error, Error::OutOfMemory(_)) {
            self.pool(self.device_of(request))?.count_refused();
        }
        self.with_handler(request, || Err(error.clone()))
    }

    /// Refuses a resize in the same way, for a block that is in a pool.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse_resize(&self, address: u64, alignment: u64, new_size: u64, error: Error) -> Result<u64> {
        if matches!(error, Error::OutOfMemory(_)) {
            self.pool_at(address).ok_or_else(|| foreign(address))?.count_refused();
        }
        self.resize_with_handler(Err(error), address, alignment, new_size)
    }

    /// The request that corresponds to a resize.
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

    fn call_handler(&self, device: i32, size: u64) -> bool {
        let Some(handler) = self.out_of_memory.handler.lock().clone() else {
            return false;
        };
        if IN_HANDLER
            .try_with(|with_handler| with_handler.replace(true))
            .unwrap_or(true)
        {
            return false;
        }
        let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| handler(device, size)));
        let _ = IN_HANDLER.try_with(|with_handler| with_handler.set(false));
        again.unwrap_or(false)
    }

    /// The device of a request, as far as it is known without a driver call that could fail again.
    pub(super) fn device_of(&self, request: &Request) -> i32 {
        let of_stream = || {
            let key = self.key(request.stream?).ok()??;
            self.served_by(key, |served| served.device)
        };
        request
            .device
            .or_else(of_stream)
            .or_else(|| self.device(None).ok())
            .unwrap_or(0)
    }

    /// Reports a refusal as an event, a line in the log and a snapshot, each where the options request it and not too
    /// often. A request beyond the maximum, or one that was refused before, is usually a builder's attempt to find out
    /// what it may have, so no warning is logged.
    fn report_refusal(&self, device: i32, request: &Request, reason: &str) {
        let Some(pool) = self.existing_pool(device) else { return };
        let (free, total) = pool.device_memory();
        if self.recorder.is_on() {
            // A program may request any number of bytes, and no format of a snapshot has 64 bits without a sign.
            let event = Event::new(Action::Oom, device, free, request.size.min(MAX_BYTES));
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
                "the request exceeds the limit or the device"
            );
            return;
        }
        // The lock is released before names are looked up and the line is written.
        let raised = self
            .out_of_memory
            .throttle
            .lock()
            .raise(device, request.size, Instant::now());
        if let Some(unreported) = raised {
            let limit = match stats.limit {
                0 => "no limit".to_owned(),
                limit => format!("limit {}", bytes(limit)),
            };
            let unreported = match unreported {
                0 => String::new(),
                count => format!("; {count} more refused since the last line"),
            };
            let headroom = headroom(reason);
            tracing::warn!(
                "out of memory on device {device}: {} requested, {}; in use {}, pending {}, free {}, {limit}{headroom}, {} free on \
                 the device; {}{unreported}",
                bytes(request.size),
                lacking(request.size, reason),
                bytes(stats.allocated),
                bytes(stats.pending),
                bytes(stats.cached),
                bytes(free),
                self.holders(pool),
            );
        }
        if let Some(path) = self.config.snapshot_path("snapshot_on_oom")
            && !self.out_of_memory.snapshot_taken.swap(true, Ordering::Relaxed)
        {
            // The environment's option holds for each allocator, and what the first one wrote stays.
            static WRITTEN: parking_lot::Mutex<Vec<std::path::PathBuf>> = parking_lot::Mutex::new(Vec::new());
            let mut written = WRITTEN.lock();
            let before = written.iter().filter(|other| **other == path).count();
            written.push(path.clone());
            drop(written);
            let path = output_at_exit::numbered(path, before as u32);
            match self.write_snapshot(&path) {
                Ok(()) => tracing::warn!("snapshot at the first refusal: {}", path.display()),
                Err(error) => tracing::warn!("snapshot at the first refusal: {error}"),
            }
        }
    }

    /// The largest holders: by tag, and by the stack of their allocations if it was recorded, else by size.
    fn holders(&self, pool: &Pool) -> String {
        let tags = largest_of(pool.tag_stats());
        let tags: Vec<String> = tags
            .iter()
            .map(|of| format!("`{}` {}", tags::printable(of.tag), bytes(of.allocated)))
            .collect();
        let by_tag = match tags.is_empty() {
            true => "held ".to_owned(),
            false => format!("held by tag {}; ", tags.join(", ")),
        };
        let Some(held) = pool.inspect(Duration::from_millis(100)) else {
            return format!("{by_tag}by blocks that are in use by a call that does not end");
        };
        let device = held.device();
        drop(held);
        let mut holders: HashMap<(u32, u64), (u64, u64)> = Default::default();
        for piece in device.segments.iter().flat_map(|segment| &segment.pieces) {
            if piece.state == PieceState::Allocated {
                let key = (
                    piece.stack,
                    if piece.stack == 0 { printed_alike(piece.size) } else { 0 },
                );
                let (count, bytes) = holders.entry(key).or_default();
                *count += 1;
                *bytes += piece.size;
            }
        }
        let mut holders: Vec<_> = holders.into_iter().collect();
        sort::by_key(&mut holders, |((stack, size), (_, bytes))| {
            // Those without a stack come first, by their size.
            let kind = if *stack == 0 {
                *size
            } else {
                1 << 63 | u64::from(*stack)
            };
            (!*bytes, kind)
        });
        holders.truncate(NAMED);
        let stacks: Vec<u32> = holders.iter().map(|((stack, _), _)| *stack).collect();
        let named: Vec<String> = holders
            .iter()
            .zip(describe(&stacks))
            .map(|(((stack, size), (count, held)), name)| match stack {
                0 => format!("{count} of {}", bytes(*size)),
                _ => format!("{} in {count} from {name}", bytes(*held)),
            })
            .collect();
        match holders.first() {
            None => format!("{by_tag}by no block"),
            Some(((0, _), _)) => format!("{by_tag}by size {}", named.join(", ")),
            Some(_) => format!("{by_tag}by stack {}", named.join(", ")),
        }
    }
}

/// What a refused request lacked, in the log's units. `reason` repeats the pool's figures, or a tag's, where these are
/// the cause; what it says after them, and any other reason, is kept.
fn lacking(size: u64, reason: &str) -> String {
    // What a tag holds is among the holders.
    let of_tag = || {
        let (tag, figures) = reason.split_once(" bytes for tag ")?.1.rsplit_once(", which holds ")?;
        let (limit, lacking) = figures.split_once(" of at most ")?.1.split_once(": ")?;
        Some(format!(
            "{} for tag {tag}, which may hold {}",
            with_unit(lacking),
            with_unit(limit)
        ))
    };
    if !reason.contains(" bytes on device ") {
        let reason = reason.strip_prefix(&format!("{size} bytes ")).unwrap_or(reason);
        return of_tag().unwrap_or_else(|| in_units(reason));
    }
    let (figures, cause) = match reason.split_once("; ") {
        Some((figures, cause)) => (figures, Some(cause)),
        None => (reason, None),
    };
    let lacking = match figures.split_once(" available, which is ") {
        Some((_, lacking)) => with_unit(lacking),
        None => "which are available, but not in one piece or not before other work has completed".to_owned(),
    };
    match cause {
        Some(cause) => format!("{lacking} ({})", in_units(cause)),
        None => lacking,
    }
}

/// The headroom that a reason names, as a part of the line in the log; empty where there is none.
fn headroom(reason: &str) -> String {
    match reason
        .split_once(", headroom ")
        .and_then(|(_, behind)| behind.split_once(" bytes"))
    {
        Some((count, _)) => format!(", headroom {}", with_unit(count)),
        None => String::new(),
    }
}

/// A text that begins with a count of bytes, with a unit for it.
fn with_unit(text: &str) -> String {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    match text[..end].parse() {
        Ok(count) => bytes(count) + &text[end..],
        Err(_) => text.to_owned(),
    }
}

/// A text with units for its counts of bytes.
fn in_units(text: &str) -> String {
    let mut parts = text.split(" bytes");
    let mut read = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = read.len() - read.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        match read[read.len() - digits..].parse() {
            Ok(count) => read.replace_range(read.len() - digits.., &bytes(count)),
            Err(_) => read.push_str(" bytes"),
        }
        read.push_str(part);
    }
    read
}

/// The tags that hold the most, the largest first.
fn largest_of(mut tags: Vec<TagStats>) -> Vec<TagStats> {
    tags.retain(|of| of.allocated > 0);
    sort::by_key(&mut tags, |of| (!of.allocated, 0));
    tags.truncate(NAMED);
    tags
}

/// The tags that hold the most; nothing where there are none.
fn largest_tags(pool: &Pool) -> String {
    let of_tag = |of: &TagStats| format!("`{}` {}", tags::printable(of.tag), of.allocated);
    let named: Vec<String> = largest_of(pool.tag_stats()).iter().map(of_tag).collect();
    match named.is_empty() {
        true => String::new(),
        false => format!("; by tag {}", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_units_and_stand_once() {
        let of_pool = "5000000 bytes on device 0: 9437184 allocated, 0 pending, 9437184 reserved, limit 10485760 bytes, 1048576 \
                       available, which is 3951424 too few";
        assert_eq!(lacking(5_000_000, of_pool), "3.8 MiB too few");
        assert_eq!(headroom(of_pool), "");
        let of_headroom =
            "5 bytes on device 0: 0 reserved, limit none, headroom 2147483648 bytes, 0 available, which is 5 too few";
        assert_eq!(headroom(of_headroom), ", headroom 2.0 GiB");
        let scattered = "5000000 bytes on device 0: 0 allocated, limit none, 6291456 available, but not in one piece or not \
                         before other work has completed; cuMemCreate failed with 2 (OutOfMemory)";
        assert_eq!(
            lacking(5_000_000, scattered),
            "which are available, but not in one piece or not before other work has completed (cuMemCreate failed with 2 \
             (OutOfMemory))"
        );
        let of_tag = "4194304 bytes for tag `b-2048`, which holds 6291456 of at most 8388608: 2097152 too many";
        assert_eq!(
            lacking(4 << 20, of_tag),
            "2.0 MiB too many for tag `b-2048`, which may hold 8.0 MiB"
        );
        for other in ["more than 1048576 blocks at once", "so many bytes"] {
            assert_eq!(lacking(1, other), other);
        }
        assert_eq!(lacking(1, "a host without 4096 bytes"), "a host without 4.0 KiB");
        let beyond = "1152921504606846977 bytes are more than any device has";
        assert_eq!(lacking((1 << 60) + 1, beyond), "are more than any device has");
        let budget =
            "5 bytes on device 0: 7 available, which is 4 too few; share_budget a:4096: 8192 bytes of it are free";
        assert_eq!(
            lacking(5, budget),
            "4 B too few (share_budget a:4096: 8.0 KiB of it are free)"
        );
    }

    #[test]
    fn repeated_and_frequent_refusals_are_not_logged() {
        let mut throttle = LogThrottle::default();
        let start = Instant::now();
        assert_eq!(throttle.raise(0, 100, start), Some(0));
        assert_eq!(
            throttle.raise(0, 100, start + QUIET),
            None,
            "a size that was refused before"
        );
        assert_eq!(throttle.raise(0, 50, start + QUIET / 2), None, "too soon");
        assert_eq!(throttle.raise(1, 100, start + QUIET), Some(2), "another device");
        for size in 0..100 {
            throttle.raise(0, size, start + QUIET);
        }
        assert_eq!(
            throttle.raise(1, 100, start + 3 * QUIET),
            Some(100),
            "forgotten among others"
        );
        assert_eq!(throttle.raise(1, 100, start + 4 * QUIET), None, "the same again");
        let later = start + 3 * QUIET + AGAIN;
        assert_eq!(throttle.raise(1, 100, later), Some(1), "a minute later");
    }
}
