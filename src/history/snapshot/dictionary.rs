//! Writes PyTorch's snapshot dictionary, key by key. PyTorch's viewers read no other keys. The keys of this library are
//! under `trtalloc`, and in an event `thread`, `default_stream` and `resized`.

use std::collections::HashMap;
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
pub(in crate::history::snapshot) fn write(snapshot: &Snapshot, sink: &mut dyn Sink) -> Result<()> {
    let history = replayable_history(snapshot);
    let frames = Symbolizer::default().frames(history.stacks(snapshot));
    let table = if sink.references() { Vec::new() } else { frames.stacks() };
    let mut writer = Writer {
        sink,
        numbers: (0..).zip(&table).map(|(number, stack)| (*stack, number)).collect(),
        table,
        frames,
    };
    writer.sink.begin()?;
    writer.top(snapshot, &history.traces, history.left_out)?;
    writer.sink.end()
}

struct Writer<'a> {
    // Not generic, so that the code is there once for all formats.
    sink: &'a mut dyn Sink,
    frames: NamedFrames,
    /// The stacks in the order of the file's table, and the number of each. A format with references has no table.
    table: Vec<u32>,
    numbers: HashMap<u32, u64>,
}

/// Blocks to which PyTorch gives a segment for small ones, in bytes.
const SMALL_BLOCK: u64 = 1 << 20;
/// The size of such a segment in PyTorch. Segments for large blocks are larger.
const SMALL_SEGMENT: u64 = 2 << 20;

/// The kind that PyTorch gives to a segment. There a segment has small blocks or large ones; here it may have both, and is
/// large then.
fn segment_type(segment: &Segment) -> &'static str {
    let blocks = segment
        .pieces
        .iter()
        .filter(|piece| piece.state != PieceState::Inactive);
    let small = match blocks.map(|piece| piece.requested).max() {
        Some(largest) => largest <= SMALL_BLOCK,
        None => segment.size <= SMALL_SEGMENT,
    };
    if small { "small" } else { "large" }
}

/// The stream of each allocation's last block at an address, as the history has it.
pub(in crate::history) fn block_streams(trace: &[Event]) -> HashMap<u64, u64> {
    let allocations = trace.iter().filter(|event| event.action == Action::Alloc);
    allocations.map(|event| (event.address, event.stream)).collect()
}

/// The stream that all blocks of a segment were allocated on; 0 where they have several, or the history does not have all.
pub(in crate::history) fn segment_stream(segment: &Segment, streams: &HashMap<u64, u64>) -> u64 {
    let blocks = segment
        .pieces
        .iter()
        .filter(|piece| piece.state != PieceState::Inactive);
    let mut streams = blocks.map(|piece| streams.get(&piece.address).copied().unwrap_or(0));
    let Some(first) = streams.next() else { return 0 };
    if streams.all(|stream| stream == first) {
        first
    } else {
        0
    }
}

impl Writer<'_> {
    fn top(&mut self, snapshot: &Snapshot, traces: &[Vec<Event>], left_out: u64) -> Result<()> {
        self.sink.begin_dict(None)?;
        if !self.sink.references() {
            self.tables()?;
        }
        self.sink.key("segments")?;
        self.sink.begin_list(None)?;
        for device in &snapshot.devices {
            let trace = usize::try_from(device.device)
                .ok()
                .and_then(|number| traces.get(number));
            let streams = trace.map(|trace| block_streams(trace)).unwrap_or_default();
            for segment in &device.segments {
                self.sink.item()?;
                self.segment(device.device, segment, segment_stream(segment, &streams))?;
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

    fn segment(&mut self, device: i32, segment: &Segment, stream: u64) -> Result<()> {
        let (allocated, active, requested) = segment.sums();
        self.sink.begin_dict(None)?;
        self.integers([
            ("device", device as u64),
            ("address", segment.address),
            ("total_size", segment.size),
            ("stream", stream),
            ("allocated_size", allocated),
            ("active_size", active),
            ("requested_size", requested),
        ])?;
        self.text("segment_type", segment_type(segment))?;
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
            Action::Snapshot => "snapshot",
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
        if event.thread > 0 {
            self.integers([("thread", event.thread.into())])?;
        }
        for (key, mark) in [("default_stream", event.default_stream), ("resized", event.resized)] {
            if mark {
                self.sink.key(key)?;
                self.sink.boolean(true)?;
            }
        }
        let tag = tag_text(event.tag).unwrap_or_default();
        if self.sink.references() {
            self.text("compile_context", "N/A")?;
            self.sink.key("pool_id")?;
            self.sink.pair((0, 0))?;
        }
        if self.sink.references() || !tag.is_empty() {
            self.text("user_metadata", &tag)?;
        }
        self.stack(event.stack)?;
        self.sink.end_dict()
    }

    /// The frames of all stacks, and the stacks as lists of frames by number. The first stack is empty.
    fn tables(&mut self) -> Result<()> {
        self.sink.key("frames")?;
        self.sink.begin_list(None)?;
        for number in 0..self.frames.count() {
            self.sink.item()?;
            self.frame(number)?;
        }
        self.sink.end_list()?;
        self.sink.key("stacks")?;
        self.sink.begin_list(None)?;
        let Writer {
            sink, frames, table, ..
        } = self;
        for stack in table {
            sink.item()?;
            sink.begin_list(None)?;
            for frame in frames.of(*stack) {
                sink.item()?;
                sink.integer(i64::from(*frame))?;
            }
            sink.end_list()?;
        }
        self.sink.end_list()
    }

    fn frame(&mut self, number: u32) -> Result<()> {
        let Writer { sink, frames, .. } = self;
        let frame = frames.frame(number);
        sink.begin_dict(Some(SharedValue::Frame(number)))?;
        sink.key("name")?;
        sink.text(&frame.name)?;
        sink.key("filename")?;
        sink.text(&frame.filename)?;
        sink.key("line")?;
        sink.integer(i64::from(frame.line))?;
        sink.end_dict()
    }

    /// The frames of a stack, innermost first, or its number in the table.
    fn stack(&mut self, stack: u32) -> Result<()> {
        if !self.sink.references() {
            return match self.numbers.get(&stack) {
                Some(number) if stack != 0 => self.integers([("stack", *number)]),
                _ => Ok(()),
            };
        }
        self.sink.key("frames")?;
        if self.sink.again(SharedValue::Stack(stack))? {
            return Ok(());
        }
        self.sink.begin_list(Some(SharedValue::Stack(stack)))?;
        for at in 0..self.frames.of(stack).len() {
            let number = self.frames.of(stack)[at];
            self.sink.item()?;
            if !self.sink.again(SharedValue::Frame(number))? {
                self.frame(number)?;
            }
        }
        self.sink.end_list()
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
            ("lost_stacks", history.lost_stacks),
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
