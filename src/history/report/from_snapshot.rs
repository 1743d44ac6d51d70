//! Makes a report from a snapshot in memory. The result equals that of [`Report::read`] for the snapshot's file.

use std::collections::HashMap;

use super::model::{
    AllocatorFigures, EventKind, NameTable, RecordingInfo, Report, ReportDevice, ReportEvent, ReportSegment,
};
use crate::history::event;
use crate::history::snapshot::{Snapshot, block_streams, replayable_history, segment_stream};
use crate::history::state;
use crate::history::symbols::{NamedFrames, Symbolizer};
use crate::history::tag_text;
use crate::support::sort;

/// Converts this process's stacks and tags to the report's numbers.
struct Renumbered {
    names: NameTable,
    frames: NamedFrames,
    stacks: HashMap<u32, u32>,
    tags: HashMap<u32, u32>,
}

impl Renumbered {
    fn stack(&mut self, stack: u32) -> u32 {
        if let Some(number) = self.stacks.get(&stack) {
            return *number;
        }
        let frames = self.frames.of(stack).iter().map(|number| self.frames.frame(*number));
        let frames = frames
            .map(|frame| self.names.frame(&frame.name, &frame.filename, frame.line))
            .collect();
        let number = self.names.stacks.number(frames);
        self.stacks.insert(stack, number);
        number
    }

    fn tag(&mut self, tag: u32) -> u32 {
        let texts = &mut self.names.texts;
        let number = || texts.number(tag_text(tag).unwrap_or_default());
        *self.tags.entry(tag).or_insert_with(number)
    }
}

impl Report {
    /// The report of a snapshot.
    pub fn of(snapshot: &Snapshot) -> Report {
        let history = replayable_history(snapshot);
        let mut numbers = Renumbered {
            names: NameTable::default(),
            frames: Symbolizer::default().frames(history.stacks(snapshot)),
            stacks: HashMap::new(),
            tags: HashMap::new(),
        };
        let mut devices = Vec::new();
        for of in &snapshot.devices {
            let trace = usize::try_from(of.device)
                .ok()
                .and_then(|number| history.traces.get(number));
            let streams = trace.map(|trace| block_streams(trace)).unwrap_or_default();
            let segments = of.segments.iter().map(|segment| ReportSegment {
                stream: segment_stream(segment, &streams),
                memory: state::Segment {
                    pieces: segment.pieces.iter().map(|piece| numbers.piece(piece)).collect(),
                    ..*segment
                },
            });
            devices.push(ReportDevice {
                number: of.device,
                segments: segments.collect(),
                events: Vec::new(),
                figures: Some(AllocatorFigures {
                    stats: of.stats,
                    cached_handle_bytes: of.cached_handle_bytes,
                }),
            });
        }
        for (number, events) in (0..).zip(&history.traces) {
            if events.is_empty() {
                continue;
            }
            let at = devices
                .iter()
                .position(|device| device.number == number)
                .unwrap_or_else(|| {
                    devices.push(ReportDevice {
                        number,
                        ..ReportDevice::default()
                    });
                    devices.len() - 1
                });
            devices[at].events = events.iter().map(|event| numbers.event(event)).collect();
        }
        sort::by_key(&mut devices, |device| ((device.number as u64) ^ (1 << 63), 0));
        let recorded = &snapshot.history;
        Report {
            names: numbers.names,
            devices,
            recording: Some(RecordingInfo {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                mode: recorded.options.mode.name().to_owned(),
                max_entries: recorded.options.max_entries,
                dropped: recorded.dropped,
                left_out: history.left_out,
                lost_stacks: recorded.lost_stacks,
            }),
        }
    }
}

impl Renumbered {
    fn piece(&mut self, piece: &state::Piece) -> state::Piece {
        state::Piece {
            tag: self.tag(piece.tag),
            stack: self.stack(piece.stack),
            ..*piece
        }
    }

    fn event(&mut self, event: &event::Event) -> ReportEvent {
        ReportEvent {
            what: match event.action {
                event::Action::Alloc => EventKind::Alloc,
                event::Action::FreeRequested => EventKind::FreeRequested,
                event::Action::FreeCompleted | event::Action::Freed | event::Action::RangeCompleted => {
                    EventKind::FreeCompleted
                }
                event::Action::SegmentAlloc => EventKind::SegmentAlloc,
                event::Action::SegmentFree => EventKind::SegmentFree,
                event::Action::SegmentMap => EventKind::SegmentMap,
                event::Action::SegmentUnmap => EventKind::SegmentUnmap,
                event::Action::Oom => EventKind::Oom,
                event::Action::Snapshot => EventKind::Note,
            },
            address: event.address,
            size: event.size,
            stream: event.stream,
            default_stream: event.default_stream,
            resized: event.resized,
            thread: event.thread,
            time: event.time,
            tag: match event.action {
                event::Action::Snapshot => self.names.texts.number("snapshot".to_owned()),
                _ => self.tag(event.tag),
            },
            stack: self.stack(event.stack),
        }
    }
}
