//! Converts a snapshot's dictionary, of PyTorch or trtalloc, to a [`Report`].
//!
//! PyTorch has changed its keys over the years. Optional keys that are missing count as empty: stacks, times,
//! streams, metadata. A value of a wrong type is an error. A file can refer to one list many times; the work for that
//! is bounded by the file's length.

use std::collections::{BTreeMap, HashMap};

use super::model::{
    AllocatorFigures, EventKind, NameTable, RecordingInfo, Report, ReportDevice, ReportEvent, ReportFrame,
    ReportSegment,
};
use super::names::cut;
use super::values::{Fault, Value, Values};
use crate::history::event::MAX_BYTES;
use crate::history::state::{self, Piece, PieceState};
use crate::support::sort;

type Devices = BTreeMap<i32, ReportDevice>;

struct Reader<'a> {
    values: &'a Values<'a>,
    names: NameTable,
    /// Texts and stacks that were converted before. Each is converted once, however often the file refers to it.
    texts: HashMap<u32, u32>,
    stacks: HashMap<u32, u32>,
    /// The frames and the stacks of a file that refers to them by number.
    frame_table: &'a [Value],
    stack_table: &'a [Value],
    /// How many bytes the entries that follow may take.
    room: usize,
}

/// The maximum length of a name in characters. A report looks through the names of each stack's frames.
const MAX_NAME: usize = 1 << 13;

/// How many bytes the entries of a report may take for each byte of the file: twice as many as those of PyTorch's snapshots.
const BYTES: usize = 8;
/// What they may take however small the file is.
const SMALL: usize = 4096;

/// Converts the dictionary `top` of a file with this many bytes.
pub(in crate::history::report) fn report(values: &Values<'_>, top: Value, bytes: usize) -> Result<Report, Fault> {
    let mut reader = Reader {
        values,
        names: NameTable::default(),
        texts: HashMap::new(),
        stacks: HashMap::new(),
        frame_table: &[],
        stack_table: &[],
        room: SMALL + bytes.saturating_mul(BYTES),
    };
    if let (Some(frames), Some(stacks)) = (reader.key(top, "frames"), reader.key(top, "stacks")) {
        reader.frame_table = reader.list(frames, "frames")?;
        reader.stack_table = reader.list(stacks, "stacks")?;
    }
    // PyTorch's oldest snapshots were the list of segments alone.
    let segments = match top {
        Value::List(_) => top,
        _ => reader
            .key(top, "segments")
            .ok_or("not a snapshot: it has no segments")?,
    };
    let mut devices = Devices::new();
    for segment in reader.list(segments, "segments")? {
        let number = reader.integer(*segment, "device")?.unwrap_or(0);
        let device = device(&mut devices, number)?;
        device.segments.push(reader.segment(*segment)?);
    }
    if let Some(traces) = reader.key(top, "device_traces") {
        for (number, trace) in reader.list(traces, "device_traces")?.iter().enumerate() {
            let trace = reader.list(*trace, "a device's trace")?;
            if trace.is_empty() {
                continue;
            }
            let device = device(&mut devices, number as i64)?;
            let mut time = 0;
            for entry in trace {
                let event = reader.event(*entry, time)?;
                time = event.time;
                device.events.push(event);
            }
        }
    }
    let extension = reader.key(top, "trtalloc");
    let recording = extension
        .map(|extension| reader.recording(extension, &mut devices))
        .transpose()?;
    for device in devices.values_mut() {
        sort::by_key(&mut device.segments, |segment| (segment.memory.address, 0));
        if let Some(pair) = device.segments.windows(2).find(|pair| overlap(pair)) {
            let address = pair[1].memory.address;
            return Err(format!("two segments overlap at {address:#x}"));
        }
    }
    Ok(Report {
        names: reader.names,
        devices: devices.into_values().collect(),
        recording,
    })
}

fn overlap(pair: &[ReportSegment]) -> bool {
    pair[1].memory.address - pair[0].memory.address < pair[0].memory.size
}

fn device(devices: &mut Devices, number: i64) -> Result<&mut ReportDevice, Fault> {
    let number = i32::try_from(number)
        .ok()
        .filter(|number| (0..1 << 16).contains(number));
    let number = number.ok_or("a device's number is out of range")?;
    Ok(devices.entry(number).or_insert_with(|| ReportDevice {
        number,
        ..ReportDevice::default()
    }))
}

impl<'a> Reader<'a> {
    fn key(&self, dict: Value, key: &str) -> Option<Value> {
        self.values.get(dict, key).filter(|value| *value != Value::None)
    }

    /// Counts one more entry, which takes that many bytes of the report. Where they are many more than the file's, the file
    /// refers to the same list repeatedly.
    fn entry(&mut self, bytes: usize) -> Result<(), Fault> {
        let left = self.room.checked_sub(bytes);
        self.room = left.ok_or("it refers to the same list over and over")?;
        self.values.check_steps()
    }

    fn list(&self, value: Value, what: &str) -> Result<&'a [Value], Fault> {
        self.values.items(value).ok_or_else(|| format!("{what}: no list"))
    }

    fn text(&self, dict: Value, key: &str) -> &'a str {
        self.key(dict, key)
            .and_then(|value| self.values.as_text(value))
            .unwrap_or_default()
    }

    /// The number of a text; 0 where the key is missing.
    fn name(&mut self, dict: Value, key: &str) -> u32 {
        let Some(Value::Text(text)) = self.key(dict, key) else {
            return 0;
        };
        let (values, names) = (self.values, &mut self.names);
        let number = || {
            let text = values.as_text(Value::Text(text)).unwrap_or_default();
            names.texts.number(cut(text, MAX_NAME).into_owned())
        };
        *self.texts.entry(text).or_insert_with(number)
    }

    fn integer(&self, dict: Value, key: &str) -> Result<Option<i64>, Fault> {
        match self.key(dict, key) {
            None => Ok(None),
            Some(Value::Int(value)) => Ok(Some(value)),
            Some(Value::Large(value)) => Ok(Some(value as i64)),
            Some(_) => Err(format!("{key}: no number")),
        }
    }

    /// An address or a handle: all 64 bits count.
    fn word(&self, dict: Value, key: &str) -> Result<Option<u64>, Fault> {
        Ok(self.integer(dict, key)?.map(|value| value as u64))
    }

    fn bytes(&self, dict: Value, key: &str) -> Result<Option<u64>, Fault> {
        let Some(value) = self.integer(dict, key)? else {
            return Ok(None);
        };
        match u64::try_from(value) {
            Ok(value @ ..=MAX_BYTES) => Ok(Some(value)),
            _ => Err(format!("{key}: {value} bytes is out of range")),
        }
    }

    fn segment(&mut self, dict: Value) -> Result<ReportSegment, Fault> {
        self.entry(size_of::<ReportSegment>())?;
        let address = self.word(dict, "address")?.ok_or("a segment without an address")?;
        let size = self.bytes(dict, "total_size")?.ok_or("a segment without a size")?;
        let end = address.checked_add(size).filter(|end| *end > address);
        let end = end.ok_or("a segment that ends before it begins")?;
        let mut at = address;
        let mut pieces = Vec::new();
        let blocks = self.key(dict, "blocks").ok_or("a segment without blocks")?;
        for block in self.list(blocks, "blocks")? {
            self.entry(size_of::<Piece>())?;
            let piece = self.block(*block, at)?;
            at = piece
                .address
                .checked_add(piece.size)
                .filter(|end| *end > at && piece.address >= at)
                .ok_or_else(|| format!("the block at {:#x} does not follow the one before it", piece.address))?;
            if at > end {
                return Err(format!("the block at {:#x} is longer than its segment", piece.address));
            }
            pieces.push(piece);
        }
        let expandable = self.key(dict, "is_expandable") == Some(Value::Bool(true));
        Ok(ReportSegment {
            stream: self.word(dict, "stream")?.unwrap_or(0),
            memory: state::Segment {
                address,
                size,
                expandable,
                pieces,
            },
        })
    }

    /// Converts a block, which begins at `at` unless it has an address.
    fn block(&mut self, dict: Value, at: u64) -> Result<Piece, Fault> {
        let state = match self.text(dict, "state") {
            "active_allocated" => PieceState::Allocated,
            "active_pending_free" | "active_awaiting_free" => PieceState::Pending,
            "inactive" => PieceState::Inactive,
            _ => return Err("a block in an unknown state".into()),
        };
        let size = self.bytes(dict, "size")?.ok_or("a block without a size")?;
        // Until 2023 PyTorch wrote a block's details into its history.
        let last = self
            .key(dict, "history")
            .and_then(|history| self.values.items(history)?.first().copied());
        let requested = match (self.bytes(dict, "requested_size")?, last) {
            (Some(requested), _) => requested,
            (None, Some(last)) => self.bytes(last, "real_size")?.unwrap_or(size),
            (None, None) => size,
        };
        let tag = match self.name(dict, "tag") {
            0 => self.name(dict, "user_metadata"),
            tag => tag,
        };
        let stack = self.stack(dict)?;
        Ok(Piece {
            address: self.word(dict, "address")?.unwrap_or(at),
            size,
            requested: if state == PieceState::Inactive { 0 } else { requested },
            state,
            stack: if stack == 0 {
                last.map_or(Ok(0), |last| self.stack(last))?
            } else {
                stack
            },
            tag,
        })
    }

    fn event(&mut self, dict: Value, before: u64) -> Result<ReportEvent, Fault> {
        self.entry(size_of::<ReportEvent>())?;
        let action = self.text(dict, "action");
        let what = match action {
            "alloc" => EventKind::Alloc,
            // Before 2023 PyTorch had one event for both.
            "free" | "free_completed" => EventKind::FreeCompleted,
            "free_requested" => EventKind::FreeRequested,
            "segment_alloc" => EventKind::SegmentAlloc,
            "segment_free" => EventKind::SegmentFree,
            "segment_map" => EventKind::SegmentMap,
            "segment_unmap" => EventKind::SegmentUnmap,
            "oom" => EventKind::Oom,
            "" => return Err("an event without an action".into()),
            _ => EventKind::Note,
        };
        let place = if what == EventKind::Oom { "device_free" } else { "addr" };
        let address = self.word(dict, place)?;
        let size = self.bytes(dict, "size")?;
        let (address, size) = match what {
            EventKind::Oom | EventKind::Note => (address.unwrap_or(0), size.unwrap_or(0)),
            _ => {
                let address = address.ok_or("an event without an address")?;
                let size = size.ok_or("an event without a size")?;
                address
                    .checked_add(size)
                    .ok_or("an event beyond the end of the address space")?;
                (address, size)
            }
        };
        let tag = match (what, self.name(dict, "user_metadata")) {
            (EventKind::Note, 0) => self.name(dict, "action"),
            (_, tag) => tag,
        };
        Ok(ReportEvent {
            what,
            address,
            size,
            stream: self.word(dict, "stream")?.unwrap_or(0),
            default_stream: self.key(dict, "default_stream") == Some(Value::Bool(true)),
            resized: self.key(dict, "resized") == Some(Value::Bool(true)),
            thread: self
                .integer(dict, "thread")?
                .and_then(|number| u32::try_from(number).ok())
                .unwrap_or(0),
            time: self.word(dict, "time_us")?.unwrap_or(0).max(before),
            stack: self.stack(dict)?,
            tag,
        })
    }

    /// The stack in the key `frames`, or the one of the table that the key `stack` has the number of.
    fn stack(&mut self, dict: Value) -> Result<u32, Fault> {
        let (frames, of_table) = match (self.key(dict, "frames"), self.integer(dict, "stack")?) {
            (Some(frames), _) => (frames, false),
            (None, None) => return Ok(0),
            (None, Some(number)) => {
                let stack = usize::try_from(number)
                    .ok()
                    .and_then(|number| self.stack_table.get(number));
                (*stack.ok_or("a stack that the file does not have")?, true)
            }
        };
        let Value::List(list) = frames else {
            return Err("frames: no list".into());
        };
        if let Some(known) = self.stacks.get(&list) {
            return Ok(*known);
        }
        let mut numbers = Vec::new();
        for frame in self.list(frames, "frames")? {
            // A stack is there twice.
            self.entry(2 * size_of::<u32>())?;
            let frame = match frame {
                Value::Int(number) if of_table => {
                    let frame = usize::try_from(*number)
                        .ok()
                        .and_then(|number| self.frame_table.get(number));
                    *frame.ok_or("a frame that the file does not have")?
                }
                frame => *frame,
            };
            let line = self.integer(frame, "line")?.unwrap_or(0);
            let frame = ReportFrame {
                name: self.name(frame, "name"),
                filename: self.name(frame, "filename"),
                line: u32::try_from(line).unwrap_or(0),
            };
            numbers.push(self.names.frames.number(frame));
        }
        let number = self.names.stacks.number(numbers);
        self.stacks.insert(list, number);
        Ok(number)
    }

    fn recording(&mut self, extension: Value, devices: &mut Devices) -> Result<RecordingInfo, Fault> {
        let count = |key| Ok::<u64, Fault>(self.word(extension, key)?.unwrap_or(0));
        let recording = RecordingInfo {
            version: self.text(extension, "version").to_owned(),
            mode: self.text(extension, "history").to_owned(),
            max_entries: count("max_entries")?,
            dropped: count("dropped")?,
            left_out: count("left_out")?,
            lost_stacks: count("lost_stacks")?,
        };
        let figures = self
            .key(extension, "devices")
            .map(|list| self.list(list, "devices"))
            .transpose()?;
        for of in figures.unwrap_or_default() {
            self.entry(1)?;
            let number = self.integer(*of, "device")?.unwrap_or(0);
            let count = |key| Ok::<u64, Fault>(self.word(*of, key)?.unwrap_or(0));
            let mut figures = AllocatorFigures::default();
            let stats = &mut figures.stats;
            for (key, value) in [
                ("allocated", &mut stats.allocated),
                ("allocated_peak", &mut stats.allocated_peak),
                ("requested", &mut stats.requested),
                ("cached", &mut stats.cached),
                ("pending", &mut stats.pending),
                ("reserved", &mut stats.reserved),
                ("reserved_peak", &mut stats.reserved_peak),
                ("limit", &mut stats.limit),
                ("allocations", &mut stats.allocations),
                ("frees", &mut stats.frees),
                ("out_of_memory", &mut stats.out_of_memory),
                ("kept", &mut figures.cached_handle_bytes),
            ] {
                *value = count(key)?;
            }
            device(devices, number)?.figures = Some(figures);
        }
        Ok(recording)
    }
}
