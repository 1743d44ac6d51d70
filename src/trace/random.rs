//! Random numbers from a seed. They are the same on every machine, so they are whole numbers only.

/// splitmix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence for `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A uniform number in `0 .. bound`; 0 where `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A uniform number in `low ..= high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in `percent` of 100 calls.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A number from the distribution with these deciles (0 %, 10 %, … 100 %), uniform between two of them.
    pub fn from_deciles(&mut self, deciles: &[u64; 11]) -> u64 {
        let decile = self.below(10) as usize;
        self.between(deciles[decile], deciles[decile + 1])
    }
}
