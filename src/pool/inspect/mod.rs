//! Inspection of all of a pool's memory at one moment, for snapshots.
//!
//! Uses: dedicated, free_space, physical, reclaim, stream_cache.

mod marks;
mod stats;
mod validate;

pub(in crate::pool) use marks::Marks;

use crate::history::Mark;
use crate::history::state::{DeviceState, Piece, PieceState, Segment};
use crate::pool::dedicated::Cell;
use crate::pool::free_space::{NodeId, Tile};
use crate::pool::reclaim::sets::{Freed, Set};
use crate::pool::stream_cache::block::{Block, BlockState};
use crate::pool::{Core, Pool};
use crate::support::sort;
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;

/// A pool whose lock is held, so that nothing in it changes.
pub struct Inspection<'a> {
    pool: &'a Pool,
    core: MutexGuard<'a, Core>,
}

impl Pool {
    /// Takes the pool's lock for an inspection; none where it could not be had in that time.
    pub fn inspect(&self, patience: std::time::Duration) -> Option<Inspection<'_>> {
        let core = self.core.try_lock_for(patience)?;
        Some(Inspection { pool: self, core })
    }

    /// Stores the mark of a live block of the pool's range.
    pub fn remember(&self, id: NodeId, mark: Mark) {
        self.marks.set(id, mark);
    }

    /// Stores the mark of the live dedicated allocation at `address`.
    pub fn remember_dedicated(&self, address: u64, mark: Mark) {
        self.marks.dedicated.lock().insert(address, mark);
    }

    /// Forgets `address` as the start of a dedicated allocation, which has moved.
    pub fn forget(&self, address: u64) {
        self.marks.forget(address);
    }

    /// The requested bytes of the block at `address`.
    pub fn requested(&self, address: u64) -> Option<u64> {
        let requested = match self.find(address) {
            Some((_, block)) => &block.requested,
            None => &self.dedicated.find(address)?.requested,
        };
        Some(requested.load(Ordering::Relaxed))
    }

    /// Bytes free on the device, and its memory in total; 0 where the driver does not return them.
    pub fn device_memory(&self) -> (u64, u64) {
        let info = self.in_own_context(|| self.calls.query(|driver| driver.memory_info(self.device)));
        info.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// The memory of the dedicated allocation at `address`: start, bytes, and whether it is mapped. None for other
    /// blocks.
    pub fn extent(&self, address: u64) -> Option<(u64, u64, bool)> {
        match self.addresses.offset(address) {
            Some(_) => None,
            None => self.dedicated.find(address).map(Cell::extent),
        }
    }
}

impl Inspection<'_> {
    /// The state of all memory. The caches of every stream are locked too, and statistics were taken before.
    pub fn device(&self) -> DeviceState {
        let recorder = &self.pool.recorder;
        let mut segments: Vec<Segment> = self.range_segments();
        let dedicated = self.pool.marks.dedicated.lock();
        for (_, cell) in self.pool.dedicated.all() {
            let Some((address, extent)) = cell.place() else {
                continue;
            };
            let stack = recorder.stack_of(dedicated.get(&address).copied().unwrap_or_default());
            let size = cell.size.load(Ordering::Relaxed);
            let piece = Piece {
                address,
                size,
                requested: cell.requested.load(Ordering::Relaxed),
                state: PieceState::Allocated,
                stack,
                tag: cell.tag.load(Ordering::Relaxed),
            };
            segments.push(segment(extent, piece));
        }
        let sets = self.core.reclaimer.pending.sets.iter();
        for freed in sets.flat_map(Set::pieces) {
            if let Freed::Dedicated(block) = freed {
                let piece = Piece {
                    address: block.address,
                    size: block.size,
                    requested: block.requested,
                    state: PieceState::Pending,
                    stack: 0,
                    tag: 0,
                };
                segments.push(segment(block.extent(), piece));
            }
        }
        sort::by_key(&mut segments, |segment| (segment.address, 0));
        DeviceState {
            device: self.pool.device,
            segments,
            cached_handle_bytes: self.core.memory.physical.cached_bytes()
                + self.core.memory.physical.cached_range_bytes(),
            ..DeviceState::default()
        }
    }

    /// The segments of the pool's address range.
    fn range_segments(&self) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut tiles = self.core.memory.free_space.tiles().peekable();
        for (offset, size, expandable) in self.core.memory.physical.ranges() {
            let Some(address) = self.pool.addresses.address(offset) else {
                continue;
            };
            let mut segment = Segment {
                address,
                size,
                expandable,
                pieces: Vec::new(),
            };
            while let Some(tile) = tiles.next_if(|tile| tile.offset < offset + size) {
                if tile.offset >= offset {
                    segment.push(self.piece(&tile, address + (tile.offset - offset)));
                }
            }
            segments.push(segment);
        }
        segments
    }

    fn piece(&self, tile: &Tile, address: u64) -> Piece {
        let piece = Piece {
            address,
            size: tile.size,
            requested: 0,
            state: PieceState::Inactive,
            stack: 0,
            tag: 0,
        };
        let block = self.pool.blocks.find(tile.id);
        let requested = || block.map_or(0, |block| block.requested.load(Ordering::Relaxed));
        match tile.free {
            Some(owner) if self.core.reclaimer.graphs.owns(owner) => Piece {
                requested: tile.size,
                state: PieceState::Pending,
                ..piece
            },
            Some(_) => piece,
            None => match block.map_or(BlockState::None, Block::state) {
                BlockState::Cached => piece,
                BlockState::Live => Piece {
                    requested: requested(),
                    state: PieceState::Allocated,
                    stack: self.pool.recorder.stack_of(self.pool.marks.get(tile.id)),
                    tag: block.map_or(0, |block| block.tag.load(Ordering::Relaxed)),
                    ..piece
                },
                BlockState::Pending | BlockState::Claimed => Piece {
                    requested: requested().min(tile.size),
                    state: PieceState::Pending,
                    ..piece
                },
                // What a graph has left; the requested bytes of its blocks are not known any more.
                BlockState::None => Piece {
                    requested: tile.size,
                    state: PieceState::Pending,
                    ..piece
                },
            },
        }
    }
}

/// A dedicated allocation as a segment.
fn segment((address, size, expandable): (u64, u64, bool), block: Piece) -> Segment {
    let mut segment = Segment {
        address,
        size,
        expandable,
        pieces: Vec::new(),
    };
    let room = |address: u64, size: u64| Piece {
        address,
        size,
        requested: 0,
        state: PieceState::Inactive,
        stack: 0,
        tag: 0,
    };
    let (start, end) = (block.address.max(address), address + size);
    if start > address {
        segment.push(room(address, start - address));
    }
    let bytes = block.size.min(end - start);
    if bytes > 0 {
        segment.push(Piece {
            address: start,
            size: bytes,
            ..block
        });
    }
    if start + bytes < end {
        segment.push(room(start + bytes, end - start - bytes));
    }
    segment
}
