//! The lifetimes of blocks and mapped ranges, from the memory at the end and the events before it.
//!
//! As in PyTorch's viewer, the history is followed backwards from the state at the end. The beginning is incomplete:
//! a ring forgets its oldest events, and memory may be in use when recording begins.

use std::collections::{BTreeMap, HashMap};

use super::model::{EventKind, ReportDevice};
use crate::history::state::PieceState;
use crate::support::sort;

/// The moment of what never happens.
pub const NEVER: u32 = u32::MAX;

/// A block's lifetime. A moment is a number of events: 0 is before the first event, and the last moment is after the
/// last event. A state holds from its first moment until before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Its address.
    pub address: u64,
    /// Its size: from the memory at the end, or else the requested size rounded up.
    pub size: u64,
    /// Bytes requested.
    pub requested: u64,
    /// The handle of the stream it was allocated on.
    pub stream: u64,
    /// The stack of its allocation.
    pub stack: u32,
    /// Its tag.
    pub tag: u32,
    /// The first moment at which it is allocated; 0: before the history began.
    pub start: u32,
    /// The first moment at which it is freed.
    pub freed: u32,
    /// The first moment at which it is reusable.
    pub end: u32,
}

/// A range of addresses that memory backs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappedRange {
    /// Its address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Whether it forms one segment with adjacent expandable ranges.
    pub expandable: bool,
    /// The first moment at which it is mapped; 0: before the history began.
    pub start: u32,
    /// The first moment at which it is unmapped.
    pub end: u32,
}

/// All blocks and mapped ranges of a device over time.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    /// Blocks, those from before the history by address, then in the order of their allocation.
    pub lives: Vec<Life>,
    /// Mapped ranges, in the same order.
    pub ranges: Vec<MappedRange>,
    /// How many events cannot have happened as recorded, and were ignored.
    pub misfits: u64,
}

/// The mapped ranges at one point of the way back, by start: their end, whether they are expandable, and when they
/// are unmapped.
type Mapped = BTreeMap<u64, (u64, bool, u32)>;

impl Timeline {
    /// Follows the history of `device`.
    pub fn of(device: &ReportDevice) -> Timeline {
        let mut timeline = Timeline::default();
        let (mut live, mut mapped) = timeline.end(device);
        let granule = granule(device);
        for (at, event) in device.events.iter().enumerate().rev() {
            let moment = at as u32 + 1;
            let (address, size) = (event.address, event.size);
            let life = |freed, end| Life {
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
                EventKind::FreeCompleted => {
                    let number = timeline.lives.len() as u32;
                    timeline.lives.push(life(moment, moment));
                    if let Some(later) = live.insert(address, number) {
                        // The block that is there later must have been allocated after this free. Its allocation was
                        // not recorded.
                        timeline.lives[later as usize].start = moment;
                        timeline.misfits += 1;
                    }
                }
                EventKind::FreeRequested => {
                    match live.get(&address).map(|number| &mut timeline.lives[*number as usize]) {
                        Some(life) if life.freed == 0 || life.freed == life.end && life.end != NEVER => {
                            life.freed = moment;
                        }
                        _ => timeline.misfits += 1,
                    }
                }
                EventKind::Alloc => match live.remove(&address).map(|number| &mut timeline.lives[number as usize]) {
                    Some(life) => {
                        life.start = moment;
                        life.stream = event.stream;
                        life.stack = if event.stack == 0 { life.stack } else { event.stack };
                        life.tag = if event.tag == 0 { life.tag } else { event.tag };
                    }
                    None => timeline.misfits += 1,
                },
                EventKind::SegmentAlloc | EventKind::SegmentMap => {
                    timeline.undo_map(&mut mapped, address, size, moment)
                }
                EventKind::SegmentFree | EventKind::SegmentUnmap => {
                    let expandable = event.what == EventKind::SegmentUnmap;
                    timeline.misfits += u64::from(!add(&mut mapped, address, size, expandable, moment));
                }
                EventKind::Oom | EventKind::Note => {}
            }
        }
        // Blocks without an allocation were there before the history began.
        for number in live.into_values() {
            timeline.lives[number as usize].start = 0;
        }
        for (start, (end, expandable, gone)) in mapped {
            timeline.range(start, end, expandable, 0, gone);
        }
        sort::by_key(&mut timeline.lives, |life| (life.start.into(), life.address));
        sort::by_key(&mut timeline.ranges, |range| (range.start.into(), range.address));
        timeline
    }

    /// Adds the blocks and ranges that are there at the end.
    fn end(&mut self, device: &ReportDevice) -> (HashMap<u64, u32>, Mapped) {
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
        self.ranges.push(MappedRange {
            address,
            size: end - address,
            expandable,
            start,
            end: gone,
        });
    }

    /// Undoes the mapping of a range at `moment`.
    fn undo_map(&mut self, mapped: &mut Mapped, address: u64, size: u64, moment: u32) {
        if size == 0 {
            self.misfits += 1;
            return;
        }
        let end = address + size;
        let first = mapped
            .range(..=address)
            .next_back()
            .filter(|(_, (reach, ..))| *reach > address);
        let from = first.map_or(address, |(start, _)| *start);
        let parts: Vec<u64> = mapped.range(from..end).map(|(start, _)| *start).collect();
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

/// Adds a range that was mapped until `gone`; returns false where a part of it is there.
fn add(mapped: &mut Mapped, address: u64, size: u64, expandable: bool, gone: u32) -> bool {
    let end = address + size;
    let before = mapped.range(..end).next_back();
    if size == 0 || before.is_some_and(|(_, (reach, ..))| *reach > address) {
        return false;
    }
    mapped.insert(address, (end, expandable, gone));
    true
}

/// The granularity to which sizes are rounded up: 512 bytes, as in PyTorch and CUDA, or less where block addresses
/// are less aligned.
fn granule(device: &ReportDevice) -> u64 {
    let pieces = device.segments.iter().flat_map(|segment| &segment.memory.pieces);
    let blocks = pieces.map(|piece| piece.address);
    let about_blocks = |what| {
        matches!(
            what,
            EventKind::Alloc | EventKind::FreeRequested | EventKind::FreeCompleted
        )
    };
    let events = device.events.iter().filter(|event| about_blocks(event.what));
    let all = blocks.chain(events.map(|event| event.address));
    1 << all.fold(512, |bits, address| bits | address).trailing_zeros()
}
