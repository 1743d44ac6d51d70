//! Pseudorandom numbers, the same for the same seed.

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        let mut random = Random(seed);
        random.next();
        random
    }

    /// SplitMix64.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        match of.len() as u64 {
            0 => None,
            count => Some(of[self.below(count) as usize]),
        }
    }

    /// A size that an engine might request: mostly one of a few, sometimes any.
    pub fn size(&mut self, largest: u64) -> u64 {
        let size = match self.below(16) {
            0 => 1 + self.below(largest),
            1 => 1 + self.below(4096),
            2..=3 => 1 + self.below(2 << 20),
            _ => 512 << self.below(13),
        };
        size.min(largest)
    }
}
