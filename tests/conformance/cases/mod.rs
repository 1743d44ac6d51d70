//! The cases. A case gets a [`crate::world::Setup`], makes worlds of it and finishes them.

pub mod bounds;
pub mod external;
pub mod graphs;
pub mod limits;
pub mod options;
pub mod requests;
pub mod resizing;
pub mod rmm;
pub mod sharing;
pub mod streams;
pub mod unseen_captures;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// A small random number generator with the same sequence in each run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end
    }
}
