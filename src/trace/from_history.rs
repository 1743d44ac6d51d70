//! A trace of what a program did, from the history in a snapshot.

use std::collections::HashMap;

use super::{Trace, TraceBlock};
use crate::history::report::Report;
use crate::history::report::model::{EventKind, ReportDevice, ReportEvent};
use crate::history::state::PieceState;
use crate::support::error::{Error, Result};

/// A trace, and what the history did not say.
#[derive(Debug)]
pub struct Recorded {
    /// The allocations, resizes and frees in their order, with their times and threads. Where the history does not mark
    /// resizes, they are frees and allocations.
    pub trace: Trace,
    /// The device.
    pub device: i32,
    /// Blocks that were allocated before the history begins; the trace begins with them.
    pub before: usize,
    /// Blocks whose free is missing: another block was allocated at their address. They are freed before that.
    pub unfreed: usize,
    /// Requests that were refused; the trace does not have them.
    pub refused: usize,
}

/// A block that was there before the history begins.
struct Before {
    address: u64,
    size: u64,
    stream: u64,
}

/// The trace of one device. Without a number, of the only device with a history.
///
/// # Errors
///
/// [`Error::InvalidArgument`] where there is no history, or where several devices have one and none is named.
pub fn from_history(report: &Report, device: Option<i32>) -> Result<Recorded> {
    let device = chosen(report, device)?;
    let is_of_block = |event: &&ReportEvent| {
        let of_free = matches!(event.what, EventKind::FreeRequested | EventKind::FreeCompleted);
        of_free || event.what == EventKind::Alloc
    };
    let mut rows = Rows {
        trace: Trace::new(),
        live: HashMap::new(),
        resized: HashMap::new(),
        // PyTorch has no request without a stream, and its default stream is 0.
        has_default: report.recording.is_none(),
        begun: device.events.iter().find(is_of_block).map_or(0, |event| event.time),
        has_times: device.events.iter().any(|event| event.time > 0),
    };
    let before = before(device);
    if rows.has_times {
        rows.trace.set_time(0);
    }
    for block in &before {
        let stream = rows.stream(block.stream, false)?;
        rows.alloc(block.address, block.size, stream);
    }
    let resized = resized(&device.events);
    let (mut unfreed, mut refused) = (0, 0);
    for (at, event) in device.events.iter().enumerate() {
        match event.what {
            EventKind::Alloc if event.size > 0 => {}
            EventKind::FreeRequested | EventKind::FreeCompleted if rows.live.contains_key(&event.address) => {}
            what => {
                refused += usize::from(what == EventKind::Oom);
                continue;
            }
        }
        rows.call_of(event);
        let stream = rows.stream(event.stream, event.default_stream)?;
        if event.what == EventKind::Alloc {
            unfreed += usize::from(rows.free(event.address, stream));
            match rows.resized.remove(&at) {
                Some(block) => rows.resize(block, event, stream),
                None => rows.alloc(event.address, event.size, stream),
            }
        } else if let Some(&allocation) = resized.get(&at) {
            rows.keep(event.address, allocation);
        } else {
            rows.free(event.address, stream);
        }
    }
    Ok(Recorded {
        trace: rows.trace,
        device: device.number,
        before: before.len(),
        unfreed,
        refused,
    })
}

fn chosen(report: &Report, device: Option<i32>) -> Result<&ReportDevice> {
    let is_of_block = |event: &ReportEvent| event.what == EventKind::Alloc || event.what == EventKind::FreeRequested;
    let has_history = |of: &&ReportDevice| of.events.iter().any(is_of_block);
    let found: Vec<&ReportDevice> = report.devices.iter().filter(has_history).collect();
    let numbers = || {
        let numbers: Vec<String> = found.iter().map(|of| of.number.to_string()).collect();
        numbers.join(", ")
    };
    let invalid = |text: String| Err(Error::InvalidArgument(text));
    match (&found[..], device) {
        ([], _) => invalid("the snapshot has no history of allocations; the option history=all records one".into()),
        (_, Some(number)) => match found.iter().find(|of| of.number == number) {
            Some(of) => Ok(of),
            None => invalid(format!("device {number} has no history; there is one of {}", numbers())),
        },
        ([one], None) => Ok(one),
        (_, None) => invalid(format!(
            "several devices have a history: choose one by --device: {}",
            numbers()
        )),
    }
}

/// For each free that is the first part of a resize, the index of the allocation that is the second one.
fn resized(events: &[ReportEvent]) -> HashMap<usize, usize> {
    let (mut last_frees, mut resized) = (HashMap::new(), HashMap::new());
    for (at, event) in events.iter().enumerate() {
        match event.what {
            EventKind::FreeRequested if event.thread > 0 => {
                last_frees.insert(event.thread, at);
            }
            EventKind::Alloc if event.resized && event.size > 0 => {
                let free = last_frees.remove(&event.thread);
                resized.extend(free.map(|free| (free, at)));
            }
            _ => {}
        }
    }
    resized
}

/// The blocks that the history frees and did not allocate, in the order of their frees, and those that it does not mention.
fn before(device: &ReportDevice) -> Vec<Before> {
    let (mut live, mut before) = (HashMap::new(), Vec::new());
    for event in &device.events {
        match event.what {
            EventKind::Alloc => {
                live.insert(event.address, ());
            }
            EventKind::FreeRequested if live.remove(&event.address).is_none() => before.push(Before {
                address: event.address,
                size: event.size,
                stream: event.stream,
            }),
            // A history that knows no requested frees.
            EventKind::FreeCompleted => {
                live.remove(&event.address);
            }
            _ => {}
        }
    }
    for segment in &device.segments {
        let allocated = segment
            .memory
            .pieces
            .iter()
            .filter(|piece| piece.state == PieceState::Allocated);
        let older = allocated.filter(|piece| !live.contains_key(&piece.address));
        before.extend(older.map(|piece| Before {
            address: piece.address,
            size: if piece.requested > 0 {
                piece.requested
            } else {
                piece.size
            },
            stream: segment.stream,
        }));
    }
    before.retain(|block| block.size > 0);
    before
}

struct Rows {
    trace: Trace,
    /// The block at each address.
    live: HashMap<u64, TraceBlock>,
    /// Blocks that are being resized, by the index of the event that ends it.
    resized: HashMap<usize, TraceBlock>,
    has_default: bool,
    /// The time of the first call.
    begun: u64,
    has_times: bool,
}

impl Rows {
    /// The rows that follow have the thread and the time of this event.
    fn call_of(&mut self, event: &ReportEvent) {
        // After 65,535 threads, further ones are unknown. The report's times never decrease.
        let _ = self.trace.set_thread((event.thread > 0).then_some(event.thread.into()));
        if self.has_times {
            let _ = self.trace.set_time(event.time.saturating_sub(self.begun));
        }
    }

    fn stream(&mut self, handle: u64, is_default: bool) -> Result<Option<u16>> {
        if handle == 0 && !is_default && !self.has_default {
            return Ok(None);
        }
        let stream = self.trace.stream(handle);
        stream
            .map(Some)
            .ok_or_else(|| Error::Unsupported("the history has more than 65,535 streams".into()))
    }

    fn alloc(&mut self, address: u64, size: u64, stream: Option<u16>) {
        let block = self.trace.alloc(size, stream);
        if let Some(other) = self.live.insert(address, block) {
            self.trace.free(other, stream);
        }
    }

    /// Frees the block at `address`; returns whether there was one.
    fn free(&mut self, address: u64, stream: Option<u16>) -> bool {
        let block = self.live.remove(&address);
        block.map(|block| self.trace.free(block, stream)).is_some()
    }

    /// The block at `address` lives on as that of the event number `allocation`.
    fn keep(&mut self, address: u64, allocation: usize) {
        if let Some(block) = self.live.remove(&address) {
            self.resized.insert(allocation, block);
        }
    }

    fn resize(&mut self, block: TraceBlock, event: &ReportEvent, stream: Option<u16>) {
        self.trace.realloc(&block, event.size, stream);
        self.live.insert(event.address, block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::report::model::RecordingInfo;
    use crate::trace::OpKind;

    fn event(what: EventKind, address: u64, size: u64, stream: u64) -> ReportEvent {
        ReportEvent {
            what,
            address,
            size,
            stream,
            default_stream: false,
            resized: false,
            thread: 0,
            time: 0,
            stack: 0,
            tag: 0,
        }
    }

    fn report(events: Vec<ReportEvent>) -> Report {
        let device = ReportDevice {
            number: 3,
            events,
            ..ReportDevice::default()
        };
        Report {
            devices: vec![device],
            recording: Some(RecordingInfo::default()),
            ..Report::default()
        }
    }

    #[test]
    fn order_sizes_and_streams_are_those_of_the_history() {
        use EventKind::{Alloc, FreeCompleted, FreeRequested, Oom, SegmentMap};
        let events = vec![
            event(SegmentMap, 0, 1 << 21, 0),
            event(Alloc, 100, 10, 7),
            // It was there before.
            event(FreeRequested, 900, 90, 0),
            event(FreeCompleted, 900, 90, 0),
            event(Oom, 5, 50, 7),
            event(FreeRequested, 100, 10, 7),
            event(FreeCompleted, 100, 10, 7),
            event(Alloc, 100, 20, 0),
            // The free of the block before is missing.
            event(Alloc, 100, 30, 7),
        ];
        let recorded = from_history(&report(events.clone()), None).unwrap();
        assert_eq!((recorded.device, recorded.before), (3, 1));
        assert_eq!((recorded.unfreed, recorded.refused), (1, 1));
        let ops = recorded.trace.ops().iter().map(|op| (op.kind, op.bytes, op.stream));
        let alloc = OpKind::Alloc { resizable: false };
        assert_eq!(
            ops.collect::<Vec<_>>(),
            [
                (alloc, 90, None),
                (alloc, 10, Some(0)),
                (OpKind::Free, 90, None),
                (OpKind::Free, 10, Some(0)),
                (alloc, 20, None),
                (OpKind::Free, 20, Some(0)),
                (alloc, 30, Some(0)),
            ]
        );
        assert_eq!(recorded.trace.streams(), [7]);
        // In a file of PyTorch's, 0 is its default stream.
        let mut theirs = report(events);
        theirs.recording = None;
        assert_eq!(from_history(&theirs, None).unwrap().trace.streams(), [0, 7]);
    }

    #[test]
    fn a_resize_is_one_row_and_the_default_stream_is_a_stream() {
        use EventKind::{Alloc, FreeCompleted, FreeRequested, SegmentMap};
        let by = |thread, time, event| ReportEvent { thread, time, ..event };
        let resized = |event| ReportEvent { resized: true, ..event };
        let on_default = |event| ReportEvent {
            default_stream: true,
            ..event
        };
        let events = vec![
            by(5, 1_000, event(Alloc, 100, 10, 7)),
            by(6, 1_001, on_default(event(Alloc, 200, 20, 0))),
            // One moves, while the other thread frees and allocates.
            by(5, 1_004, event(FreeRequested, 100, 10, 0)),
            by(6, 1_005, on_default(event(FreeRequested, 200, 20, 0))),
            by(6, 1_005, on_default(event(FreeCompleted, 200, 20, 0))),
            by(6, 1_006, event(Alloc, 200, 40, 0)),
            by(5, 1_007, event(SegmentMap, 300, 99, 0)),
            by(5, 1_008, resized(event(Alloc, 300, 30, 0))),
            by(9, 1_009, event(FreeCompleted, 100, 10, 0)),
            by(5, 1_020, event(FreeRequested, 300, 30, 7)),
            // The thread is unknown, so the block before is, too.
            by(0, 1_030, resized(event(Alloc, 300, 50, 0))),
        ];
        let recorded = from_history(&report(events), None).unwrap();
        let trace = &recorded.trace;
        let ops = trace
            .ops()
            .iter()
            .map(|op| (op.kind, op.bytes, op.stream, op.thread, op.time));
        let alloc = |resizable| OpKind::Alloc { resizable };
        assert_eq!(
            ops.collect::<Vec<_>>(),
            [
                (alloc(true), 10, Some(0), Some(0), 0),
                (alloc(false), 20, Some(1), Some(1), 1),
                (OpKind::Free, 20, Some(1), Some(1), 5),
                (alloc(false), 40, None, Some(1), 6),
                (OpKind::Realloc, 30, None, Some(0), 8),
                (OpKind::Free, 30, Some(0), Some(0), 20),
                (alloc(false), 50, None, None, 30),
            ]
        );
        assert_eq!((trace.streams(), trace.threads()), (&[7, 0][..], &[5, 6][..]));
        assert_eq!((recorded.before, recorded.unfreed), (0, 0));
    }

    #[test]
    fn one_event_is_a_trace_of_one_row() {
        let of = |what, size| from_history(&report(vec![event(what, 100, size, 7)]), None);
        let alloc = of(EventKind::Alloc, 10).unwrap().trace;
        assert_eq!((alloc.ops().len(), alloc.leftovers().count()), (1, 1));
        // The block is older than the history.
        let free = of(EventKind::FreeRequested, 10).unwrap();
        assert_eq!((free.trace.ops().len(), free.before), (2, 1));
        assert_eq!(of(EventKind::Alloc, 0).unwrap().trace.ops().len(), 0);
    }

    /// As many threads as come and go, and half a million events, in seconds.
    #[test]
    fn a_long_history_takes_seconds() {
        let pair = |at: u64| {
            let by = |event| ReportEvent {
                thread: 1 + at as u32,
                time: at,
                ..event
            };
            let address = at % 1000 * 512;
            [
                by(event(EventKind::Alloc, address, 512, 7)),
                by(event(EventKind::FreeRequested, address, 512, 7)),
            ]
        };
        let report = report((0..250_000).flat_map(pair).collect());
        let begun = std::time::Instant::now();
        let trace = from_history(&report, None).unwrap().trace;
        let took = begun.elapsed();
        assert!(took.as_secs() < 20, "{took:?}");
        assert_eq!((trace.ops().len(), trace.threads().len()), (500_000, 65_535));
        let known = trace.ops().iter().filter(|op| op.thread.is_some()).count();
        assert_eq!(known, 2 * 65_535);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// Events become rows and the rows become text, and all of the calls is there: order, sizes, streams, threads, times.
        #[test]
        fn nothing_of_the_calls_is_lost(
            calls in proptest::collection::vec((0u8..3, 0usize..64, 1u64..1 << 40, 0u64..4, 0u32..4, 0u64..1 << 30), 0..100),
        ) {
            let (mut events, mut expected, mut live) = (Vec::new(), Vec::new(), Vec::<(u64, u64)>::new());
            let (mut time, mut next) = (17, 0);
            for (kind, which, size, stream, thread, later) in calls {
                time += later;
                // Stream 1 stands for the legacy default stream, 0 for none.
                let call = |what, address, size, stream| ReportEvent {
                    thread,
                    time,
                    default_stream: stream == 1,
                    ..event(what, address, size, if stream == 1 { 0 } else { stream })
                };
                let row = |name, size, stream: u64| (name, size, stream, thread, time);
                next += 1 << 41;
                match kind {
                    1 if !live.is_empty() => {
                        let (address, size) = live.swap_remove(which % live.len());
                        events.push(call(EventKind::FreeRequested, address, size, stream));
                        events.push(call(EventKind::FreeCompleted, address, size, 0));
                        expected.push(row("free", size, stream));
                    }
                    // A resize needs a thread, and names no stream.
                    2 if !live.is_empty() && thread > 0 => {
                        let at = which % live.len();
                        let (address, before) = live[at];
                        let to = if size % 2 == 0 { address } else { next };
                        events.push(call(EventKind::FreeRequested, address, before, 0));
                        events.push(call(EventKind::FreeCompleted, address, before, 0));
                        events.push(ReportEvent { resized: true, ..call(EventKind::Alloc, to, size, 0) });
                        live[at] = (to, size);
                        expected.push(row("realloc", size, 0));
                    }
                    _ => {
                        events.push(call(EventKind::Alloc, next, size, stream));
                        live.push((next, size));
                        expected.push(row("alloc", size, stream));
                    }
                }
            }
            if !expected.is_empty() {
                let trace = from_history(&report(events), None).unwrap().trace;
                let mut text = Vec::new();
                crate::trace::csv::write(&trace, &mut text).unwrap();
                let trace = crate::trace::csv::read(&text[..]).unwrap();
                let begun = expected[0].4;
                let rows = trace.ops().iter().map(|op| {
                    let name = match op.kind {
                        OpKind::Alloc { .. } => "alloc",
                        OpKind::Free => "free",
                        OpKind::Realloc => "realloc",
                    };
                    let stream = op.stream.map_or(0, |at| trace.streams()[at as usize].max(1));
                    let thread = op.thread.map_or(0, |at| trace.threads()[at as usize] as u32);
                    (name, op.bytes, stream, thread, op.time + begun)
                });
                proptest::prop_assert_eq!(rows.collect::<Vec<_>>(), expected);
                proptest::prop_assert_eq!(trace.leftovers().count(), live.len());
            }
        }
    }

    #[test]
    fn a_device_with_a_history_is_needed() {
        let wrong = |report: &Report, device| from_history(report, device).unwrap_err().to_string();
        assert!(wrong(&Report::default(), None).contains("no history"));
        let mut two = report(vec![event(EventKind::Alloc, 1, 1, 1)]);
        assert!(wrong(&two, Some(0)).contains("device 0 has no history; there is one of 3"));
        two.devices.insert(
            0,
            ReportDevice {
                number: 1,
                ..two.devices[0].clone()
            },
        );
        assert!(wrong(&two, None).contains("--device: 1, 3"));
        assert_eq!(from_history(&two, Some(1)).unwrap().device, 1);
    }
}
