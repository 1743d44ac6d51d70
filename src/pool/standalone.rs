//! Blocks with a range of their own: resizable ones, guarded ones, and passed-through ones.
//!
//! A resizable block has room to grow; its pages are committed ahead in proportion. When the room is used up its handles are
//! mapped a second time in a larger range, and nothing is copied. The old range stays mapped until the block is freed and
//! its grace is over, since a captured graph may hold the old address.

use super::calls::Calls;
use super::lost::Lost;
use super::mapping::Mapping;
use super::rule::align_up;
use crate::driver::{Handle, Result};

const ROOM: u64 = 64 << 20;

/// Address space of one block.
#[derive(Debug, Clone, Copy)]
struct Range {
    base: u64,
    size: u64,
    /// Bytes mapped, from its start.
    mapped: u64,
}

/// What the memory is.
#[derive(Debug)]
enum Memory {
    /// One allocation of the driver's malloc.
    Malloc(u64),
    /// Handles mapped one behind the other, from the start of each range; the last range is the current one.
    Mapped {
        ranges: Vec<Range>,
        handles: Vec<(Handle, u64)>,
        committed: u64,
    },
}

/// One such block.
#[derive(Debug)]
pub struct Standalone {
    memory: Memory,
    /// Where the block starts.
    pub address: u64,
    /// Bytes in use.
    pub size: u64,
    /// Bytes asked for.
    pub requested: u64,
    /// Whether it may be resized.
    pub resizable: bool,
    /// Whether `record_stream` declared other streams.
    pub shared: bool,
    /// The capture it belongs to, by the pool's own number; 0 is none.
    pub capture: u32,
    /// The tag it was allocated under; 0 is none.
    pub tag: crate::tags::Tag,
}

/// What became of a request to grow.
#[derive(Debug, PartialEq, Eq)]
pub enum Grown {
    /// Done, at the same address.
    InPlace,
    /// Done, at another address: the same memory.
    Moved,
    /// `create` bytes of new memory did not suffice; nothing changed.
    Short,
}

impl Standalone {
    /// One allocation of the driver's malloc.
    pub fn malloc(calls: &Calls, mapping: &mut Mapping, size: u64, requested: u64) -> Result<Standalone> {
        let address = calls.malloc(size)?;
        mapping.account(size, true);
        Ok(Standalone {
            memory: Memory::Malloc(address),
            address,
            size,
            requested,
            resizable: false,
            shared: false,
            capture: 0,
            tag: 0,
        })
    }

    /// A block whose end lies at an unmapped page, as far as `align` allows. None where `create` bytes do not suffice.
    pub fn guarded(
        calls: &Calls,
        mapping: &mut Mapping,
        size: u64,
        requested: u64,
        align: u64,
        create: u64,
    ) -> Result<Option<Standalone>> {
        let Some(bytes) = align_up(size, mapping.page) else {
            return Ok(None);
        };
        let Some(mut block) = Self::mapped(calls, mapping, bytes, bytes + mapping.page, create)? else {
            return Ok(None);
        };
        block.address = (block.address + bytes - size) / align * align;
        (block.size, block.requested) = (size, requested);
        Ok(Some(block))
    }

    /// A block that can grow. None where `create` bytes do not suffice.
    pub fn resizable(
        calls: &Calls,
        mapping: &mut Mapping,
        size: u64,
        requested: u64,
        create: u64,
    ) -> Result<Option<Standalone>> {
        let Some(room) = size
            .checked_mul(4)
            .and_then(|room| align_up(room.max(ROOM), mapping.page))
        else {
            return Ok(None);
        };
        let Some(least) = align_up(size, mapping.page) else {
            return Ok(None);
        };
        let ahead = ahead(size, mapping.page).min(room);
        for bytes in [ahead, least] {
            if let Some(mut block) = Self::mapped(calls, mapping, bytes, room, create)? {
                (block.size, block.requested, block.resizable) = (size, requested, true);
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    fn mapped(calls: &Calls, mapping: &mut Mapping, bytes: u64, room: u64, create: u64) -> Result<Option<Standalone>> {
        let base = calls.submit(|driver| driver.reserve(room, mapping.page))?;
        let memory = Memory::Mapped {
            ranges: vec![Range {
                base,
                size: room,
                mapped: 0,
            }],
            handles: Vec::new(),
            committed: 0,
        };
        let mut block = Standalone {
            memory,
            address: base,
            size: 0,
            requested: 0,
            resizable: false,
            shared: false,
            capture: 0,
            tag: 0,
        };
        match block.commit(calls, mapping, bytes, create) {
            Ok(true) => Ok(Some(block)),
            outcome => {
                mapping.give_up(Lost {
                    reservations: vec![(base, room)],
                    ..Lost::default()
                });
                outcome.map(|_| None)
            }
        }
    }

    /// Bytes of memory behind it.
    pub fn committed(&self) -> u64 {
        match &self.memory {
            Memory::Malloc(_) => self.size,
            Memory::Mapped { committed, .. } => *committed,
        }
    }

    /// Changes the size to `size` bytes; what the driver refuses leaves everything as it was.
    pub fn resize(
        &mut self,
        calls: &Calls,
        mapping: &mut Mapping,
        size: u64,
        requested: u64,
        create: u64,
    ) -> Result<Grown> {
        let page = mapping.page;
        let Memory::Mapped { ranges, committed, .. } = &self.memory else {
            return Ok(Grown::Short);
        };
        let (room, had) = (ranges[ranges.len() - 1].size, *committed);
        let mut grown = Grown::InPlace;
        if size > had {
            let Some(least) = align_up(size, page) else {
                return Ok(Grown::Short);
            };
            if least > room {
                let Some(larger) = size.checked_mul(4).and_then(|room| align_up(room, page)) else {
                    return Ok(Grown::Short);
                };
                self.relocate(calls, mapping, larger.max(room * 2))?;
                grown = Grown::Moved;
            }
            let Memory::Mapped { ranges, .. } = &self.memory else {
                return Ok(Grown::Short);
            };
            let most = ranges[ranges.len() - 1].size;
            let mut enough = Ok(false);
            for bytes in [ahead(size, page).min(most), least] {
                enough = self.commit(calls, mapping, bytes - had, create);
                if matches!(enough, Ok(true)) {
                    break;
                }
            }
            if !matches!(enough, Ok(true)) {
                if grown == Grown::Moved {
                    self.drop_last_range(mapping);
                }
                return enough.map(|_| Grown::Short);
            }
        }
        (self.size, self.requested) = (size, requested);
        if let (Grown::Moved, Memory::Mapped { ranges, .. }) = (&grown, &self.memory) {
            self.address = ranges[ranges.len() - 1].base;
        }
        Ok(grown)
    }

    /// Maps `bytes` more behind what the current range holds. False where there is not that much.
    fn commit(&mut self, calls: &Calls, mapping: &mut Mapping, bytes: u64, create: u64) -> Result<bool> {
        const LARGEST: u64 = 1 << 30;
        let Memory::Mapped {
            ranges,
            handles,
            committed,
        } = &mut self.memory
        else {
            return Ok(false);
        };
        let last = ranges.len() - 1;
        let Range { base, size: room, .. } = ranges[last];
        if *committed + bytes > room {
            return Ok(false);
        }
        let (mut added, mut outcome) = (Vec::new(), Ok(true));
        let reserved = mapping.reserved();
        let mut at = *committed;
        let mut left = bytes;
        let mut create = create;
        while left > 0 && matches!(outcome, Ok(true)) {
            let size = mapping.largest_kept(left).unwrap_or(left.min(LARGEST));
            let before = mapping.reserved();
            outcome = match mapping.handle(size, create) {
                Ok(Some(handle)) => {
                    create -= mapping.reserved() - before;
                    let mapped = calls.submit(|driver| driver.map(base + at, size, handle));
                    match mapped {
                        Ok(()) => added.push((handle, size)),
                        Err(_) => mapping.return_handle(handle, size),
                    }
                    mapped.map(|()| true)
                }
                Ok(None) => Ok(false),
                Err(error) => Err(error),
            };
            (at, left) = (at + size, left - size);
        }
        if matches!(outcome, Ok(true)) {
            let range = (base + *committed, bytes);
            outcome = calls
                .submit(|driver| driver.set_access(range.0, range.1, mapping.access()))
                .map(|()| true);
        }
        if matches!(outcome, Ok(true)) {
            handles.append(&mut added);
            *committed += bytes;
            ranges[last].mapped = *committed;
        } else {
            let mut at = *committed;
            for (handle, size) in added {
                mapping.give_up(Lost {
                    mappings: vec![(base + at, size)],
                    handles: vec![(handle, size)],
                    ..Lost::default()
                });
                at += size;
            }
            // What was created for this and has no use now does not stay.
            mapping.release_kept(reserved);
        }
        outcome
    }

    /// Maps every handle once more, in a range of `room` bytes.
    fn relocate(&mut self, calls: &Calls, mapping: &mut Mapping, room: u64) -> Result<()> {
        let Memory::Mapped {
            ranges,
            handles,
            committed,
        } = &mut self.memory
        else {
            return Ok(());
        };
        let base = calls.submit(|driver| driver.reserve(room, mapping.page))?;
        let mut at = 0;
        let mut outcome = Ok(());
        for (handle, size) in handles.iter() {
            outcome = calls.submit(|driver| driver.map(base + at, *size, *handle));
            if outcome.is_err() {
                break;
            }
            at += size;
        }
        if outcome.is_ok() {
            outcome = calls.submit(|driver| driver.set_access(base, *committed, mapping.access()));
        }
        if outcome.is_err() {
            mapping.give_up(Lost {
                mappings: if at > 0 { vec![(base, at)] } else { Vec::new() },
                reservations: vec![(base, room)],
                ..Lost::default()
            });
            return outcome;
        }
        ranges.push(Range {
            base,
            size: room,
            mapped: *committed,
        });
        Ok(())
    }

    /// Undoes [`Standalone::relocate`].
    fn drop_last_range(&mut self, mapping: &mut Mapping) {
        let Memory::Mapped { ranges, .. } = &mut self.memory else {
            return;
        };
        if let Some(Range { base, size, mapped }) = ranges.pop() {
            mapping.give_up(Lost {
                mappings: vec![(base, mapped)],
                reservations: vec![(base, size)],
                ..Lost::default()
            });
        }
    }

    /// Gives everything back, when nothing uses the block any more: handles are kept by `mapping`.
    pub fn destroy(self, mapping: &mut Mapping) {
        mapping.give_up(match self.memory {
            Memory::Malloc(address) => Lost {
                allocations: vec![(address, self.size)],
                ..Lost::default()
            },
            Memory::Mapped { ranges, handles, .. } => Lost {
                mappings: ranges.iter().map(|range| (range.base, range.mapped)).collect(),
                reservations: ranges.iter().map(|range| (range.base, range.size)).collect(),
                handles,
                ..Lost::default()
            },
        });
    }
}

/// Bytes committed for `size`: a sixteenth ahead, in whole pages.
fn ahead(size: u64, page: u64) -> u64 {
    size.checked_add(size / 16)
        .and_then(|ahead| align_up(ahead, page))
        .unwrap_or(u64::MAX / page * page)
}
