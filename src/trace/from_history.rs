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
    /// The allocations and frees in their order. A resize is a free and an allocation, as in the history.
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
    // PyTorch has no request without a stream, and its default stream is 0.
    let has_default = report.recording.is_none();
    let mut rows = Rows {
        trace: Trace::new(),
        live: HashMap::new(),
        has_default,
    };
    let before = before(device);
    for block in &before {
        rows.alloc(block.address, block.size, block.stream)?;
    }
    let (mut unfreed, mut refused) = (0, 0);
    for event in &device.events {
        match event.what {
            EventKind::Alloc if event.size > 0 => {
                unfreed += usize::from(rows.free(event.address, event.stream)?);
                rows.alloc(event.address, event.size, event.stream)?;
            }
            EventKind::FreeRequested | EventKind::FreeCompleted => {
                rows.free(event.address, event.stream)?;
            }
            EventKind::Oom => refused += 1,
            _ => {}
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
    live: HashMap<u64, TraceBlock>,
    has_default: bool,
}

impl Rows {
    fn stream(&mut self, handle: u64) -> Result<Option<u16>> {
        if handle == 0 && !self.has_default {
            return Ok(None);
        }
        let stream = self.trace.stream(handle);
        stream
            .map(Some)
            .ok_or_else(|| Error::Unsupported("the history has more than 65,535 streams".into()))
    }

    fn alloc(&mut self, address: u64, size: u64, stream: u64) -> Result<()> {
        let stream = self.stream(stream)?;
        let block = self.trace.alloc(size, stream);
        if let Some(other) = self.live.insert(address, block) {
            self.trace.free(other, stream);
        }
        Ok(())
    }

    /// Frees the block at `address`; returns whether there was one.
    fn free(&mut self, address: u64, stream: u64) -> Result<bool> {
        let Some(block) = self.live.remove(&address) else {
            return Ok(false);
        };
        let stream = self.stream(stream)?;
        self.trace.free(block, stream);
        Ok(true)
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
