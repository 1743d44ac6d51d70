//! The life of every block and of every mapped range, from the memory at the end and the events before it.
//!
//! As PyTorch's viewer does it, the history is followed backwards from what is there at the end, since the beginning is the
//! part that is missing: a ring forgets its oldest events, and a recording begins when memory is in use already.

use std::collections::{BTreeMap, HashMap};

use super::model::{Device, What};
use crate::record::state::PieceState;

/// Never, as a moment.
pub const NEVER: u32 = u32::MAX;

/// A block from its allocation to its end. Moments count events: something is so at a moment where it begins at or before it
/// and ends after it; 0 is before the first event, and the last moment is behind the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Where it lies.
    pub address: u64,
    /// Bytes it takes up: as the memory at the end says, else what was asked for, rounded up.
    pub size: u64,
    /// Bytes that were asked for.
    pub requested: u64,
    /// The handle of the stream it was allocated on.
    pub stream: u64,
    /// Its allocation's stack.
    pub stack: u32,
    /// Its tag.
    pub tag: u32,
    /// The first moment at which it is there; 0: from before the history.
    pub start: u32,
    /// The first at which it is freed but not free.
    pub freed: u32,
    /// The first at which it is free.
    pub end: u32,
}

/// A range of addresses with memory behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Whether it is one with neighbours that are, too.
    pub expandable: bool,
    /// The first moment at which it is there; 0: from before the history.
    pub start: u32,
    /// The first at which it is not.
    pub end: u32,
}

/// All lives of a device.
#[derive(Debug, Clone, Default)]
pub struct Course {
    /// Blocks: those from before the history by address, then in the order of their allocation.
    pub lives: Vec<Life>,
    /// Mapped ranges, likewise.
    pub ranges: Vec<Range>,
    /// Events that cannot have happened as they are told, and were passed over.
    pub misfits: u64,
}

/// A range as it is while one goes backwards: its end, whether it is expandable, and when it is gone.
type Mapped = BTreeMap<u64, (u64, bool, u32)>;

impl Course {
    /// Follows the history of `device`.
    pub fn of(device: &Device) -> Course {
        let mut course = Course::default();
        let (mut live, mut mapped) = course.end(device);
        let granule = granule(device);
        for (at, event) in device.events.iter().enumerate().rev() {
            let moment = at as u32 + 1;
            let (address, size) = (event.address, event.size);
            let begun = |freed, end| Life {
                address,
                size: size.checked_next_multiple_of(granule).unwrap_or(size),
                requested: size,
                stream: event.stream,
                stack: 0,
                tag: 0,
                start: NEVER,
                freed,
                end,
            };
            match event.what {
                What::FreeCompleted => {
                    let number = course.lives.len() as u32;
                    course.lives.push(begun(moment, moment));
                    if let Some(later) = live.insert(address, number) {
                        // What lies there later must have begun since; when, nobody told.
                        course.lives[later as usize].start = moment;
                        course.misfits += 1;
                    }
                }
                What::FreeRequested => match live.get(&address).map(|number| &mut course.lives[*number as usize]) {
                    Some(life) if life.freed == 0 || life.freed == life.end && life.end != NEVER => {
                        life.freed = moment;
                    }
                    _ => course.misfits += 1,
                },
                What::Alloc => match live.remove(&address).map(|number| &mut course.lives[number as usize]) {
                    Some(life) => {
                        life.start = moment;
                        life.stream = event.stream;
                        life.stack = if event.stack == 0 { life.stack } else { event.stack };
                        life.tag = if event.tag == 0 { life.tag } else { event.tag };
                    }
                    None => course.misfits += 1,
                },
                What::SegmentAlloc | What::SegmentMap => course.unmapped(&mut mapped, address, size, moment),
                What::SegmentFree | What::SegmentUnmap => {
                    let expandable = event.what == What::SegmentUnmap;
                    course.misfits += u64::from(!add(&mut mapped, address, size, expandable, moment));
                }
                What::Oom | What::Note => {}
            }
        }
        // What is left was there before.
        for number in live.into_values() {
            course.lives[number as usize].start = 0;
        }
        for (start, (end, expandable, gone)) in mapped {
            course.range(start, end, expandable, 0, gone);
        }
        course.lives.sort_by_key(|life| (life.start, life.address));
        course.ranges.sort_by_key(|range| (range.start, range.address));
        course
    }

    /// What there is at the end.
    fn end(&mut self, device: &Device) -> (HashMap<u64, u32>, Mapped) {
        let (mut live, mut mapped) = (HashMap::new(), Mapped::new());
        for segment in &device.segments {
            let memory = &segment.memory;
            mapped.insert(memory.address, (memory.address + memory.size, memory.expandable, NEVER));
            for piece in memory.pieces.iter().filter(|piece| piece.state != PieceState::Inactive) {
                live.insert(piece.address, self.lives.len() as u32);
                self.lives.push(Life {
                    address: piece.address,
                    size: piece.size,
                    requested: piece.requested,
                    stream: segment.stream,
                    stack: piece.stack,
                    tag: piece.tag,
                    start: NEVER,
                    freed: if piece.state == PieceState::Pending { 0 } else { NEVER },
                    end: NEVER,
                });
            }
        }
        (live, mapped)
    }

    fn range(&mut self, address: u64, end: u64, expandable: bool, start: u32, gone: u32) {
        self.ranges.push(Range {
            address,
            size: end - address,
            expandable,
            start,
            end: gone,
        });
    }

    /// Before this moment the range was not there.
    fn unmapped(&mut self, mapped: &mut Mapped, address: u64, size: u64, moment: u32) {
        let end = address + size;
        let first = mapped
            .range(..=address)
            .next_back()
            .filter(|(_, (reach, ..))| *reach > address);
        let from = first.map_or(address, |(start, _)| *start);
        let parts: Vec<u64> = mapped.range(from..end.max(from)).map(|(start, _)| *start).collect();
        let mut covered = 0;
        for start in parts {
            let Some((reach, expandable, gone)) = mapped.remove(&start) else {
                continue;
            };
            let (low, high) = (start.max(address), reach.min(end));
            if start < low {
                mapped.insert(start, (low, expandable, gone));
            }
            if high < reach {
                mapped.insert(high, (reach, expandable, gone));
            }
            covered += high - low;
            self.range(low, high, expandable, moment, gone);
        }
        self.misfits += u64::from(covered != size);
    }
}

/// Adds what was there before it was unmapped; false where a part of it is there.
fn add(mapped: &mut Mapped, address: u64, size: u64, expandable: bool, gone: u32) -> bool {
    let end = address + size;
    let before = mapped.range(..end).next_back();
    if size == 0 || before.is_some_and(|(_, (reach, ..))| *reach > address) {
        return false;
    }
    mapped.insert(address, (end, expandable, gone));
    true
}

/// What sizes are rounded up to: 512 bytes, as PyTorch and CUDA have it, or less where blocks begin at less.
fn granule(device: &Device) -> u64 {
    let pieces = device.segments.iter().flat_map(|segment| &segment.memory.pieces);
    let blocks = pieces.map(|piece| piece.address);
    let about_blocks = |what| matches!(what, What::Alloc | What::FreeRequested | What::FreeCompleted);
    let events = device.events.iter().filter(|event| about_blocks(event.what));
    let all = blocks.chain(events.map(|event| event.address));
    1 << all.fold(512, |bits, address| bits | address).trailing_zeros()
}
