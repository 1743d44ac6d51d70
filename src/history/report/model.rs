//! The content of a snapshot, whichever program wrote it: the memory of each device, and its history.

use std::collections::HashMap;
use std::hash::Hash;

use crate::history::state;
use crate::support::stats::Stats;

/// A list of distinct values, each with a number.
#[derive(Debug, Clone)]
pub struct Numbered<T> {
    list: Vec<T>,
    numbers: HashMap<T, u32>,
}

impl<T: Clone + Eq + Hash> Numbered<T> {
    /// A list with `first` as number 0.
    pub(in crate::history::report) fn new(first: T) -> Numbered<T> {
        Numbered {
            numbers: HashMap::from([(first.clone(), 0)]),
            list: vec![first],
        }
    }

    /// The number of `one`, which is added where it is new.
    pub(in crate::history::report) fn number(&mut self, one: T) -> u32 {
        if let Some(number) = self.numbers.get(&one) {
            return *number;
        }
        let number = self.list.len() as u32;
        self.list.push(one.clone());
        self.numbers.insert(one, number);
        number
    }

    /// All values, in the order of their numbers.
    pub fn all(&self) -> &[T] {
        &self.list
    }
}

/// A position in a program. Its texts are numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReportFrame {
    /// The function.
    pub name: u32,
    /// The file.
    pub filename: u32,
    /// The line; 0: unknown.
    pub line: u32,
}

/// The values that events and blocks refer to by number. Number 0 is the empty text, a frame without a name, and the
/// empty stack.
#[derive(Debug, Clone)]
pub struct NameTable {
    /// Functions, files, and tags.
    pub texts: Numbered<String>,
    /// Frames of stacks.
    pub frames: Numbered<ReportFrame>,
    /// Stacks: frames by number, innermost first.
    pub stacks: Numbered<Vec<u32>>,
}

impl Default for NameTable {
    fn default() -> NameTable {
        let frame = ReportFrame {
            name: 0,
            filename: 0,
            line: 0,
        };
        NameTable {
            texts: Numbered::new(String::new()),
            frames: Numbered::new(frame),
            stacks: Numbered::new(Vec::new()),
        }
    }
}

impl NameTable {
    /// The text of that number.
    pub fn text(&self, number: u32) -> &str {
        self.texts.all().get(number as usize).map_or("", String::as_str)
    }

    /// The frames of a stack, innermost first: function, file and line.
    pub fn stack(&self, number: u32) -> impl Iterator<Item = (&str, &str, u32)> {
        let frames = self.stacks.all().get(number as usize).map_or(&[][..], Vec::as_slice);
        frames.iter().map(|frame| {
            let frame = self.frames.all()[*frame as usize];
            (self.text(frame.name), self.text(frame.filename), frame.line)
        })
    }

    pub(in crate::history::report) fn frame(&mut self, name: &str, filename: &str, line: u32) -> u32 {
        let (name, filename) = (
            self.texts.number(name.to_owned()),
            self.texts.number(filename.to_owned()),
        );
        self.frames.number(ReportFrame { name, filename, line })
    }
}

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum EventKind {
    /// A block was allocated.
    Alloc = 0,
    /// A block was freed.
    FreeRequested = 1,
    /// A freed block became reusable.
    FreeCompleted = 2,
    /// Memory was allocated from the driver.
    SegmentAlloc = 3,
    /// Memory was returned to the driver.
    SegmentFree = 4,
    /// Memory was mapped.
    SegmentMap = 5,
    /// Memory was unmapped.
    SegmentUnmap = 6,
    /// A request was refused.
    Oom = 7,
    /// An event that changes no memory, as a snapshot or an annotation.
    Note = 8,
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportEvent {
    /// What happened.
    pub what: EventKind,
    /// The address; for [`EventKind::Oom`] the bytes free on the device.
    pub address: u64,
    /// Bytes; for blocks, the requested size.
    pub size: u64,
    /// The stream's handle.
    pub stream: u64,
    /// Whether there was a stream where the handle is 0: the legacy default stream.
    pub default_stream: bool,
    /// Whether an allocation is the second part of a resize. The first one is the last free of the same thread.
    pub resized: bool,
    /// The number of the thread that made the call; 0 where the file has none.
    pub thread: u32,
    /// Microseconds since 1970, at least those of the event before; 0 where the file has none.
    pub time: u64,
    /// The stack.
    pub stack: u32,
    /// The tag or a note's text, as a number of [`NameTable`].
    pub tag: u32,
}

/// A segment with its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportSegment {
    /// The handle of the stream that owns it; 0 where all streams share it.
    pub stream: u64,
    /// Its memory; stacks and tags are numbers of [`NameTable`].
    pub memory: state::Segment,
}

/// The allocator's own figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AllocatorFigures {
    /// Its statistics.
    pub stats: Stats,
    /// Bytes of cached handles, which have no address.
    pub cached_handle_bytes: u64,
}

/// A device.
#[derive(Debug, Clone, Default)]
pub struct ReportDevice {
    /// Its number.
    pub number: i32,
    /// Its memory at the end, sorted by address.
    pub segments: Vec<ReportSegment>,
    /// Its history, oldest first.
    pub events: Vec<ReportEvent>,
    /// The allocator's figures, where the file has them.
    pub figures: Option<AllocatorFigures>,
}

/// The options and losses of a recording by trtalloc.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordingInfo {
    /// The library's version.
    pub version: String,
    /// `off`, `state` or `all`.
    pub mode: String,
    /// The maximum number of events.
    pub max_entries: u64,
    /// How many events the ring overwrote.
    pub dropped: u64,
    /// How many events were left out because they fit no state.
    pub left_out: u64,
    /// How many calls have no stack because the process had too many.
    pub lost_stacks: u64,
}

/// A snapshot's content.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Stacks, frames and texts.
    pub names: NameTable,
    /// The devices that have memory or a history, sorted by number.
    pub devices: Vec<ReportDevice>,
    /// How the history was recorded, where trtalloc recorded it.
    pub recording: Option<RecordingInfo>,
}
