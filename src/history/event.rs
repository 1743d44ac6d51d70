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

/// More bytes than any device has. A snapshot is read only if its sizes are not beyond.
pub const MAX_BYTES: u64 = 1 << 48;

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
    /// The stream's handle; 0 for the legacy default stream, and where there was none.
    pub stream: u64,
    /// Whether there was a stream, and it was the legacy default stream.
    pub default_stream: bool,
    /// Whether an allocation is the second part of a resize. The first one is the last free of the same thread.
    pub resized: bool,
    /// The kernel's number of the thread that made the call; 0: unknown.
    pub thread: u32,
    /// The stack's number; 0 if it has none.
    pub stack: u32,
    /// The tag's number; 0 if it has none.
    pub tag: u32,
    /// Microseconds since 1970; 0 until the event is read from the ring.
    pub time: u64,
}

/// An event's encoding in a slot.
pub(in crate::history) type Words = [u64; 6];

/// The parts of the last word: eight bits of the action, then the thread and two marks, then the device. The kernel has
/// at most four million threads, so 22 bits are enough.
const THREAD_SHIFT: u32 = 8;
const THREAD_MASK: u64 = (1 << 22) - 1;
const DEFAULT_STREAM_SHIFT: u32 = 30;
const RESIZED_SHIFT: u32 = 31;

impl Event {
    /// An event without a stream, a stack and a tag.
    #[doc(hidden)]
    pub fn new(action: Action, device: i32, address: u64, size: u64) -> Event {
        Event {
            action,
            device,
            address,
            size,
            stream: 0,
            default_stream: false,
            resized: false,
            thread: 0,
            stack: 0,
            tag: 0,
            time: 0,
        }
    }

    /// The same event on the stream with that handle, 0 for the legacy default stream, or without a stream.
    #[doc(hidden)]
    pub fn on(self, stream: Option<u64>) -> Event {
        Event {
            stream: stream.unwrap_or(0),
            default_stream: stream == Some(0),
            ..self
        }
    }

    /// The encoding of this event with that stack and thread in place of its own.
    #[inline]
    pub(in crate::history) fn words(&self, ticks: u64, stack: u32, thread: u32) -> Words {
        let what = u64::from(self.device as u32) << 32
            | u64::from(self.resized) << RESIZED_SHIFT
            | u64::from(self.default_stream) << DEFAULT_STREAM_SHIFT
            | (u64::from(thread) & THREAD_MASK) << THREAD_SHIFT
            | self.action as u64;
        [
            ticks,
            self.address,
            self.size,
            self.stream,
            u64::from(stack) << 32 | u64::from(self.tag),
            what,
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
            default_stream: what >> DEFAULT_STREAM_SHIFT & 1 != 0,
            resized: what >> RESIZED_SHIFT & 1 != 0,
            thread: (what >> THREAD_SHIFT & THREAD_MASK) as u32,
            stack: (marks >> 32) as u32,
            tag: marks as u32,
            time: time(ticks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_keeps_every_part_of_an_event() {
        for action in Action::ALL {
            for (device, thread, stream, resized) in [
                (0, 0, None, false),
                (-1, 1, Some(0), true),
                (i32::MAX, (1 << 22) - 1, Some(u64::MAX), false),
            ] {
                let event = Event {
                    thread,
                    resized,
                    stack: 0xfedc_ba98,
                    tag: 0x7654_3210,
                    time: 5,
                    ..Event::new(action, device, u64::MAX, 1 << 47).on(stream)
                };
                assert_eq!(
                    Event::from_words(&event.words(5, event.stack, thread), |ticks| ticks),
                    event
                );
            }
        }
    }

    #[test]
    fn the_default_stream_is_not_the_same_as_no_stream() {
        let event = Event::new(Action::Alloc, 0, 512, 512);
        assert_ne!(event.on(Some(0)), event.on(None));
        assert_eq!((event.on(Some(0)).stream, event.on(Some(7)).default_stream), (0, false));
    }
}
