//! The state of one device's memory at one moment.

use crate::support::stats::Stats;

/// The state of a piece of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceState {
    /// Allocated.
    Allocated,
    /// Freed and not yet reusable, not even by its own stream.
    Pending,
    /// Free, for every stream or for the stream that freed it.
    Inactive,
}

/// A part of a segment: a block, or free memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Its address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes requested; 0 where the piece is no block.
    pub requested: u64,
    /// Its state.
    pub state: PieceState,
    /// The stack of its allocation; 0 if it has none.
    pub stack: u32,
    /// Its tag; 0 if it has none.
    pub tag: u32,
}

/// A contiguous range of addresses that memory backs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Whether it is mapped, so that it can grow and shrink; else it is one allocation from the driver.
    pub expandable: bool,
    /// Its pieces, sorted by address and without gaps.
    pub pieces: Vec<Piece>,
}

/// One device.
#[derive(Debug, Clone, Default)]
pub struct DeviceState {
    /// Its number.
    pub device: i32,
    /// Its segments, sorted by address.
    pub segments: Vec<Segment>,
    /// Bytes of cached handles, which have no address.
    pub cached_handle_bytes: u64,
    /// The pool's statistics.
    pub stats: Stats,
}

impl Segment {
    /// Appends a piece; merges a free piece with a free piece before it.
    #[doc(hidden)]
    pub fn push(&mut self, piece: Piece) {
        if let Some(last) = self.pieces.last_mut()
            && piece.state == PieceState::Inactive
            && last.state == PieceState::Inactive
        {
            last.size += piece.size;
            return;
        }
        self.pieces.push(piece);
    }

    /// The bytes allocated, the bytes allocated or pending, and the bytes requested for the latter.
    pub fn sums(&self) -> (u64, u64, u64) {
        let (mut allocated, mut active, mut requested) = (0, 0, 0);
        for piece in &self.pieces {
            match piece.state {
                PieceState::Allocated => allocated += piece.size,
                PieceState::Pending => {}
                PieceState::Inactive => continue,
            }
            active += piece.size;
            requested += piece.requested;
        }
        (allocated, active, requested)
    }
}
