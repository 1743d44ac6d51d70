//! One event of a history, and its encoding in a ring's slot.

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Action {
    /// A block was allocated.
    Alloc = 1,
    /// A block was freed and is not yet reusable.
    FreeRequested = 2,
    /// A freed block became reusable.
    FreeCompleted = 3,
    /// Both at once: a block was freed and its own stream may reuse it.
    Freed = 4,
    /// Memory was allocated from the driver, at an address that the driver chose.
    SegmentAlloc = 5,
    /// Such memory was returned to the driver.
    SegmentFree = 6,
    /// Memory was mapped into the reservation.
    SegmentMap = 7,
    /// A mapped range was unmapped.
    SegmentUnmap = 8,
    /// A request was refused because memory ran out.
    Oom = 9,
    /// Everything that was pending in a range became free.
    RangeCompleted = 10,
    /// A snapshot was taken.
    Snapshot = 11,
}

impl Action {
    const ALL: [Action; 11] = [
        Action::Alloc,
        Action::FreeRequested,
        Action::FreeCompleted,
        Action::Freed,
        Action::SegmentAlloc,
        Action::SegmentFree,
        Action::SegmentMap,
        Action::SegmentUnmap,
        Action::Oom,
        Action::RangeCompleted,
        Action::Snapshot,
    ];
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub action: Action,
    /// On which device.
    pub device: i32,
    /// The address; for [`Action::Oom`], the bytes free on the device.
    pub address: u64,
    /// Bytes: a block's requested size, a segment's actual size; for [`Action::Snapshot`], the bytes in use and pending.
    pub size: u64,
    /// The stream's handle; 0 where there was none.
    pub stream: u64,
    /// The stack's number; 0 if it has none.
    pub stack: u32,
    /// The tag's number; 0 if it has none.
    pub tag: u32,
    /// Microseconds since 1970; 0 until the event is read from the ring.
    pub time: u64,
}

/// An event's encoding in a slot.
pub(in crate::history) type Words = [u64; 6];

impl Event {
    /// An event without a stream, a stack and a tag.
    pub fn new(action: Action, device: i32, address: u64, size: u64) -> Event {
        Event {
            action,
            device,
            address,
            size,
            stream: 0,
            stack: 0,
            tag: 0,
            time: 0,
        }
    }

    /// The same event on a stream.
    pub fn on(self, stream: u64) -> Event {
        Event { stream, ..self }
    }

    pub(in crate::history) fn words(&self, ticks: u64) -> Words {
        [
            ticks,
            self.address,
            self.size,
            self.stream,
            u64::from(self.stack) << 32 | u64::from(self.tag),
            u64::from(self.device as u32) << 32 | self.action as u64,
        ]
    }

    pub(in crate::history) fn from_words(words: &Words, time: impl Fn(u64) -> u64) -> Event {
        let [ticks, address, size, stream, marks, what] = *words;
        Event {
            action: Action::ALL[(what as u8).clamp(1, 11) as usize - 1],
            device: (what >> 32) as i32,
            address,
            size,
            stream,
            stack: (marks >> 32) as u32,
            tag: marks as u32,
            time: time(ticks),
        }
    }
}
