//! What a snapshot says, whoever wrote it: the memory of each device, and what happened to it.

use std::collections::HashMap;
use std::hash::Hash;

use crate::record::state;
use crate::stats::Stats;

/// Things that are written once and have numbers.
#[derive(Debug, Clone)]
pub struct Numbered<T> {
    list: Vec<T>,
    numbers: HashMap<T, u32>,
}

impl<T: Clone + Eq + Hash> Numbered<T> {
    /// With `first` as number 0.
    pub(super) fn new(first: T) -> Numbered<T> {
        Numbered {
            numbers: HashMap::from([(first.clone(), 0)]),
            list: vec![first],
        }
    }

    /// The number of `one`, which is the next one where it was not there yet.
    pub(super) fn number(&mut self, one: T) -> u32 {
        if let Some(number) = self.numbers.get(&one) {
            return *number;
        }
        let number = self.list.len() as u32;
        self.list.push(one.clone());
        self.numbers.insert(one, number);
        number
    }

    /// All of them, in the order of their numbers.
    pub fn all(&self) -> &[T] {
        &self.list
    }
}

/// A place in a program; its texts by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function.
    pub name: u32,
    /// The file.
    pub filename: u32,
    /// The line; 0: unknown.
    pub line: u32,
}

/// What events and blocks refer to by number. Number 0 is the empty text, a frame without a name, the empty stack.
#[derive(Debug, Clone)]
pub struct Names {
    /// Functions, files, and tags.
    pub texts: Numbered<String>,
    /// Frames of stacks.
    pub frames: Numbered<Frame>,
    /// Stacks: frames by number, innermost first.
    pub stacks: Numbered<Vec<u32>>,
}

impl Default for Names {
    fn default() -> Names {
        let frame = Frame {
            name: 0,
            filename: 0,
            line: 0,
        };
        Names {
            texts: Numbered::new(String::new()),
            frames: Numbered::new(frame),
            stacks: Numbered::new(Vec::new()),
        }
    }
}

impl Names {
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

    pub(super) fn frame(&mut self, name: &str, filename: &str, line: u32) -> u32 {
        let (name, filename) = (
            self.texts.number(name.to_owned()),
            self.texts.number(filename.to_owned()),
        );
        self.frames.number(Frame { name, filename, line })
    }
}

/// What an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum What {
    /// A block was handed out.
    Alloc = 0,
    /// A block was taken back.
    FreeRequested = 1,
    /// It became free.
    FreeCompleted = 2,
    /// Memory was obtained from the driver.
    SegmentAlloc = 3,
    /// It was given back.
    SegmentFree = 4,
    /// Memory was mapped.
    SegmentMap = 5,
    /// It was unmapped.
    SegmentUnmap = 6,
    /// A request was refused.
    Oom = 7,
    /// Something that changes no memory: a snapshot was taken, somebody left a word.
    Note = 8,
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub what: What,
    /// Where; for [`What::Oom`] the bytes free on the device.
    pub address: u64,
    /// Bytes; of blocks as they were asked for.
    pub size: u64,
    /// The stream's handle.
    pub stream: u64,
    /// Microseconds since 1970, never less than those of the event before; 0 where nobody wrote them.
    pub time: u64,
    /// The stack.
    pub stack: u32,
    /// The tag, or what a note says; a text.
    pub tag: u32,
}

/// A segment with its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The handle of the stream whose blocks it has; 0 where it is everybody's.
    pub stream: u64,
    /// What it consists of; stacks and tags are numbers of [`Names`].
    pub memory: state::Segment,
}

/// What the allocator itself counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Its statistics.
    pub stats: Stats,
    /// Bytes held that have no address.
    pub kept: u64,
}

/// A device.
#[derive(Debug, Clone, Default)]
pub struct Device {
    /// Its number.
    pub number: i32,
    /// Its memory at the end, in the order of addresses.
    pub segments: Vec<Segment>,
    /// What happened until then, oldest first.
    pub events: Vec<Event>,
    /// What the allocator counted, where it told.
    pub figures: Option<Figures>,
}

/// How a history of ours was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    /// The library's version.
    pub version: String,
    /// `off`, `state` or `all`.
    pub mode: String,
    /// The most events that are kept.
    pub max_entries: u64,
    /// Events that were forgotten for want of room.
    pub dropped: u64,
    /// Events that fitted nothing and were left out.
    pub left_out: u64,
}

/// All that a snapshot says.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Stacks, frames and texts.
    pub names: Names,
    /// Devices that have memory or a history, in the order of their numbers.
    pub devices: Vec<Device>,
    /// How it was recorded, where trtalloc did.
    pub recording: Option<Recording>,
}
