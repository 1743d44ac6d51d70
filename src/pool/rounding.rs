//! The rounding rule: how a block is cut out of a larger range.

/// Bytes requested → bytes allocated: `round` up, add `tail`, start at multiples of `start`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundingRule {
    /// Lengths are rounded up to this power of two.
    pub round: u64,
    /// Bytes added behind the rounded length, which the owner may access.
    pub tail: u64,
    /// Blocks start at multiples of this power of two. It is the granule of the free-space bookkeeping.
    pub start: u64,
}

impl RoundingRule {
    /// CUDA: any length, starts at multiples of 512 bytes.
    pub const CUDA: RoundingRule = RoundingRule {
        round: 1,
        tail: 0,
        start: 512,
    };

    /// Ascend: 32-byte lengths with `pad` bytes behind them, starts at multiples of 64 (device) or 128 (where media
    /// output feeds a model).
    pub const fn ascend(pad: u64, start: u64) -> RoundingRule {
        RoundingRule {
            round: 32,
            tail: pad,
            start,
        }
    }

    /// The bytes that the owner of `length` bytes may access; none where it overflows.
    pub fn extent(&self, length: u64) -> Option<u64> {
        align_up(length, self.round)?.checked_add(self.tail)
    }

    /// The bytes allocated for `length` bytes: the distance to the next block. None where it overflows.
    pub fn stride(&self, length: u64) -> Option<u64> {
        align_up(self.extent(length)?, self.start)
    }
}

/// The next multiple of `to`, a power of two; none where it overflows.
#[inline]
pub fn align_up(value: u64, to: u64) -> Option<u64> {
    debug_assert!(to.is_power_of_two());
    Some(value.checked_add(to - 1)? & !(to - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_follows_ascends_example_and_cudas_granule() {
        let device = RoundingRule::ascend(32, 64);
        assert_eq!((device.extent(1000), device.stride(1000)), (Some(1056), Some(1088)));
        assert_eq!(RoundingRule::ascend(32, 128).stride(1000), Some(1152));
        assert_eq!(RoundingRule::CUDA.stride(1), Some(512));
        assert_eq!(RoundingRule::CUDA.stride(512), Some(512));
        assert_eq!(RoundingRule::CUDA.stride(u64::MAX), None);
    }
}
