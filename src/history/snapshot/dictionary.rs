//! Writes PyTorch's snapshot dictionary, key by key. PyTorch's viewers read no other keys; the keys of this library
//! are under `trtalloc`.

use std::io::Result;

use super::Snapshot;
use super::consistent::replayable;
use super::sink::{SharedValue, Sink};
use crate::history::event::{Action, Event};
use crate::history::state::{DeviceState, Piece, PieceState, Segment};
use crate::history::symbols::{NamedFrames, Symbolizer};
use crate::history::tag_text;

/// A history that a viewer can replay.
pub(in crate::history) struct Replayable {
    /// The events of each device, from device 0.
    pub(in crate::history) traces: Vec<Vec<Event>>,
    /// How many events were left out because they fit no state.
    pub(in crate::history) left_out: u64,
}

impl Replayable {
    /// The stacks that the history and the memory refer to.
    pub(in crate::history) fn stacks<'a>(&'a self, snapshot: &'a Snapshot) -> impl Iterator<Item = u32> + 'a {
        let segments = snapshot.devices.iter().flat_map(|device| &device.segments);
        let pieces = segments.flat_map(|segment| segment.pieces.iter().map(|piece| piece.stack));
        pieces.chain(self.traces.iter().flatten().map(|event| event.stack))
    }
}

/// Makes the history of each device consistent with its memory.
pub(in crate::history) fn replayable_history(snapshot: &Snapshot) -> Replayable {
    let count = snapshot
        .devices
        .iter()
        .map(|device| device.device)
        .chain(snapshot.history.events.iter().map(|event| event.device))
        .max()
        .map_or(1, |device| device.max(0) + 1);
    let mut left_out = 0;
    let trace = |number| {
        let nothing = DeviceState {
            device: number,
            ..DeviceState::default()
        };
        let device = snapshot.devices.iter().find(|device| device.device == number);
        let (events, missing) = replayable(device.unwrap_or(&nothing), &snapshot.history.events);
        left_out += missing;
        events
    };
    let traces = (0..count).map(trace).collect();
    Replayable { traces, left_out }
}

/// Writes the whole dictionary.
pub(in crate::history::snapshot) fn write(snapshot: &Snapshot, sink: &mut impl Sink) -> Result<()> {
    let history = replayable_history(snapshot);
    let mut writer = Writer {
        frames: Symbolizer::default().frames(history.stacks(snapshot)),
        sink,
    };
    writer.sink.begin()?;
    writer.top(snapshot, &history.traces, history.left_out)?;
    writer.sink.end()
}

struct Writer<'a, S> {
    sink: &'a mut S,
    frames: NamedFrames,
}

impl<S: Sink> Writer<'_, S> {
    fn top(&mut self, snapshot: &Snapshot, traces: &[Vec<Event>], left_out: u64) -> Result<()> {
        self.sink.begin_dict(None)?;
        self.sink.key("segments")?;
        self.sink.begin_list(None)?;
        for device in &snapshot.devices {
            for segment in &device.segments {
                self.sink.item()?;
                self.segment(device.device, segment)?;
            }
        }
        self.sink.end_list()?;
        self.sink.key("device_traces")?;
        self.sink.begin_list(None)?;
        for trace in traces {
            self.sink.item()?;
            self.sink.begin_list(None)?;
            for event in trace {
                self.sink.item()?;
                self.entry(event)?;
            }
            self.sink.end_list()?;
        }
        self.sink.end_list()?;
        self.sink.key("allocator_settings")?;
        self.settings(snapshot.expandable)?;
        self.sink.key("external_annotations")?;
        self.sink.begin_list(None)?;
        self.sink.end_list()?;
        self.sink.key("trtalloc")?;
        self.extension(snapshot, left_out)?;
        self.sink.end_dict()
    }

    fn integers<const N: usize>(&mut self, values: [(&'static str, u64); N]) -> Result<()> {
        for (key, value) in values {
            self.sink.key(key)?;
            self.sink.integer(value as i64)?;
        }
        Ok(())
    }

    fn text(&mut self, key: &'static str, text: &str) -> Result<()> {
        self.sink.key(key)?;
        self.sink.text(text)
    }

    fn segment(&mut self, device: i32, segment: &Segment) -> Result<()> {
        let (allocated, active, requested) = segment.sums();
        self.sink.begin_dict(None)?;
        self.integers([
            ("device", device as u64),
            ("address", segment.address),
            ("total_size", segment.size),
            ("stream", 0),
            ("allocated_size", allocated),
            ("active_size", active),
            ("requested_size", requested),
        ])?;
        self.text("segment_type", "large")?;
        self.sink.key("segment_pool_id")?;
        self.sink.pair((0, 0))?;
        self.sink.key("is_expandable")?;
        self.sink.boolean(segment.expandable)?;
        self.stack(0)?;
        self.sink.key("blocks")?;
        self.sink.begin_list(None)?;
        for piece in &segment.pieces {
            self.sink.item()?;
            self.block(piece)?;
        }
        self.sink.end_list()?;
        self.sink.end_dict()
    }

    fn block(&mut self, piece: &Piece) -> Result<()> {
        self.sink.begin_dict(None)?;
        self.integers([
            ("address", piece.address),
            ("size", piece.size),
            ("requested_size", piece.requested),
        ])?;
        let state = match piece.state {
            PieceState::Allocated => "active_allocated",
            PieceState::Pending => "active_pending_free",
            PieceState::Inactive => "inactive",
        };
        self.text("state", state)?;
        if let Some(tag) = tag_text(piece.tag) {
            self.text("tag", &tag)?;
        }
        self.stack(piece.stack)?;
        self.sink.end_dict()
    }

    fn entry(&mut self, event: &Event) -> Result<()> {
        let action = match event.action {
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted | Action::Freed | Action::RangeCompleted => "free_completed",
            Action::SegmentAlloc => "segment_alloc",
            Action::SegmentFree => "segment_free",
            Action::SegmentMap => "segment_map",
            Action::SegmentUnmap => "segment_unmap",
            Action::Oom => "oom",
        };
        self.sink.begin_dict(None)?;
        self.text("action", action)?;
        let place = match event.action {
            Action::Oom => "device_free",
            _ => "addr",
        };
        self.integers([
            (place, event.address),
            ("size", event.size),
            ("stream", event.stream),
            ("time_us", event.time),
        ])?;
        self.text("compile_context", "N/A")?;
        self.text("user_metadata", &tag_text(event.tag).unwrap_or_default())?;
        self.sink.key("pool_id")?;
        self.sink.pair((0, 0))?;
        self.stack(event.stack)?;
        self.sink.end_dict()
    }

    /// The frames of a stack, innermost first.
    fn stack(&mut self, stack: u32) -> Result<()> {
        self.sink.key("frames")?;
        if self.sink.again(SharedValue::Stack(stack))? {
            return Ok(());
        }
        self.sink.begin_list(Some(SharedValue::Stack(stack)))?;
        let Writer { sink, frames } = self;
        for number in frames.of(stack) {
            sink.item()?;
            if sink.again(SharedValue::Frame(*number))? {
                continue;
            }
            let frame = frames.frame(*number);
            sink.begin_dict(Some(SharedValue::Frame(*number)))?;
            sink.key("name")?;
            sink.text(&frame.name)?;
            sink.key("filename")?;
            sink.text(&frame.filename)?;
            sink.key("line")?;
            sink.integer(i64::from(frame.line))?;
            sink.end_dict()?;
        }
        sink.end_list()
    }

    fn settings(&mut self, expandable: bool) -> Result<()> {
        const DIVISIONS: [&str; 16] = [
            "1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384", "32768",
        ];
        self.sink.begin_dict(None)?;
        self.text("PYTORCH_CUDA_ALLOC_CONF", "")?;
        self.sink.key("max_split_size")?;
        self.sink.integer(-1)?;
        self.sink.key("garbage_collection_threshold")?;
        self.sink.float(0.0)?;
        for (key, value) in [
            ("expandable_segments", expandable),
            ("pinned_use_cuda_host_register", false),
            ("release_lock_on_cudamalloc", false),
        ] {
            self.sink.key(key)?;
            self.sink.boolean(value)?;
        }
        self.integers([("pinned_num_register_threads", 1)])?;
        self.sink.key("roundup_power2_divisions")?;
        self.sink.begin_dict(None)?;
        for size in DIVISIONS {
            self.integers([(size, 0)])?;
        }
        self.sink.end_dict()?;
        self.sink.end_dict()
    }

    /// Writes what PyTorch has no key for.
    fn extension(&mut self, snapshot: &Snapshot, left_out: u64) -> Result<()> {
        let history = &snapshot.history;
        self.sink.begin_dict(None)?;
        self.text("version", env!("CARGO_PKG_VERSION"))?;
        self.text("history", history.options.mode.name())?;
        self.integers([
            ("max_entries", history.options.max_entries),
            ("dropped", history.dropped),
            ("left_out", left_out),
        ])?;
        self.sink.key("devices")?;
        self.sink.begin_list(None)?;
        for device in &snapshot.devices {
            let stats = &device.stats;
            self.sink.item()?;
            self.sink.begin_dict(None)?;
            self.integers([
                ("device", device.device as u64),
                ("allocated", stats.allocated),
                ("allocated_peak", stats.allocated_peak),
                ("requested", stats.requested),
                ("cached", stats.cached),
                ("pending", stats.pending),
                ("reserved", stats.reserved),
                ("reserved_peak", stats.reserved_peak),
                ("limit", stats.limit),
                ("kept", device.cached_handle_bytes),
                ("allocations", stats.allocations),
                ("frees", stats.frees),
                ("out_of_memory", stats.out_of_memory),
            ])?;
            self.sink.end_dict()?;
        }
        self.sink.end_list()?;
        self.sink.end_dict()
    }
}
