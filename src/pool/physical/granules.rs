//! What the driver takes for single allocations of its malloc. It takes whole granules: a large allocation has granules of its
//! own, and small ones share those that they lie in.

use std::collections::HashMap;

use crate::pool::rounding::align_up;

/// The granules that small allocations share.
pub struct Granules {
    size: u64,
    /// By number: the address over the size.
    shared: HashMap<u64, Shared>,
}

#[derive(Default)]
struct Shared {
    allocations: u32,
    bytes: u64,
}

impl Granules {
    /// Granules of `size` bytes, without allocations.
    pub fn new(size: u64) -> Granules {
        let shared = HashMap::new();
        Granules { size, shared }
    }

    /// CUDA's documents do not say which allocations share granules. Where more do than this takes for small, more is counted
    /// than the driver takes.
    fn is_small(&self, bytes: u64) -> bool {
        bytes < self.size / 2
    }

    /// What the driver takes for an allocation that shares nothing.
    fn alone(&self, bytes: u64) -> u64 {
        align_up(bytes, self.size).unwrap_or(u64::MAX)
    }

    /// How many bytes a further allocation lacks, where the driver may take `at_most`. A small one may find room beside others.
    pub fn lacks(&self, bytes: u64, at_most: u64) -> u64 {
        let lacks = self.alone(bytes).saturating_sub(at_most);
        let fits = |shared: &Shared| shared.bytes + bytes <= self.size;
        match lacks > 0 && self.is_small(bytes) && self.shared.values().any(fits) {
            true => 0,
            false => lacks,
        }
    }

    /// Counts an allocation. Returns the bytes that the driver took for it.
    pub fn take(&mut self, address: u64, bytes: u64) -> u64 {
        if !self.is_small(bytes) {
            return self.alone(bytes);
        }
        let mut taken = 0;
        for (number, part) in self.parts(address, bytes) {
            let shared = self.shared.entry(number).or_default();
            taken += if shared.allocations == 0 { self.size } else { 0 };
            shared.allocations += 1;
            shared.bytes += part;
        }
        taken
    }

    /// Takes back [`Granules::take`]. Returns the bytes that the driver has again.
    pub fn give(&mut self, address: u64, bytes: u64) -> u64 {
        if !self.is_small(bytes) {
            return self.alone(bytes);
        }
        let mut given = 0;
        for (number, part) in self.parts(address, bytes) {
            if let Some(shared) = self.shared.get_mut(&number) {
                shared.allocations -= 1;
                shared.bytes -= part;
                if shared.allocations == 0 {
                    self.shared.remove(&number);
                    given += self.size;
                }
            }
        }
        given
    }

    /// The granules that a small allocation lies in, which are two at most, and its bytes in each.
    fn parts(&self, address: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let first = address / self.size;
        let in_first = bytes.min((first + 1) * self.size - address);
        let parts = [(first, in_first), (first + 1, bytes - in_first)];
        parts.into_iter().filter(|(_, part)| *part > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_allocations_share_granules() {
        const MIB: u64 = 1 << 20;
        let mut granules = Granules::new(2 * MIB);
        assert_eq!((granules.lacks(1, MIB), granules.lacks(1, 2 * MIB)), (MIB, 0));
        assert_eq!(granules.lacks(2 * MIB + 1, 2 * MIB), 2 * MIB);
        assert_eq!(granules.take(8 * MIB, 512), 2 * MIB);
        assert_eq!((granules.lacks(1, 0), granules.lacks(MIB, 0)), (0, 2 * MIB));
        assert_eq!(granules.take(8 * MIB + 512, 512), 0);
        // One that reaches into the next granule.
        assert_eq!(granules.take(10 * MIB - 512, 1024), 2 * MIB);
        assert_eq!(granules.give(8 * MIB, 512), 0);
        assert_eq!(granules.give(8 * MIB + 512, 512), 0);
        assert_eq!(granules.give(10 * MIB - 512, 1024), 4 * MIB);
        assert_eq!(granules.lacks(1, 0), 2 * MIB);
        assert_eq!(
            (granules.take(8 * MIB, 3 * MIB), granules.give(8 * MIB, 3 * MIB)),
            (4 * MIB, 4 * MIB)
        );
    }
}
