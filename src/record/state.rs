//! What one device's memory is at one moment, as the pool tells it.

use crate::stats::Stats;

/// What a piece of a segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceState {
    /// Handed out.
    Allocated,
    /// Freed, and not even its own stream may reuse it.
    Pending,
    /// Free: for everybody, or for the stream that freed it.
    Inactive,
}

/// A piece of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes asked for; 0 where it is not a block.
    pub requested: u64,
    /// What it is.
    pub state: PieceState,
    /// Its allocation's stack; 0 is none.
    pub stack: u32,
    /// Its tag; 0 is none.
    pub tag: u32,
}

/// A contiguous range that memory backs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Whether it is mapped, so that it can grow and shrink; else it is one allocation of the driver's.
    pub expandable: bool,
    /// What lies in it, in the order of addresses and without gaps.
    pub pieces: Vec<Piece>,
}

/// One device.
#[derive(Debug, Clone, Default)]
pub struct Device {
    /// Its number.
    pub device: i32,
    /// Its segments, in the order of addresses.
    pub segments: Vec<Segment>,
    /// Bytes held that have no address.
    pub kept: u64,
    /// The pool's figures.
    pub stats: Stats,
}

impl Segment {
    /// Appends a piece; free pieces become one with the free piece before.
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

    /// Bytes of pieces that are handed out, of those and pending ones, and what was asked for of the latter.
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
