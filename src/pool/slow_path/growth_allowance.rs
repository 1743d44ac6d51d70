//! The growth allowance: how much may be created beyond the needs ([`FreeSpace::needs_with`]), or beyond the peak in use if
//! that is more.
//!
//! At 1.04 times that, a workload that repeats moves hardly any handles once it is warm. Random sizes, large ones
//! among small, never reach that state: free memory is always in pieces, and each request moves many handles, which
//! costs tens of microseconds each on a GPU. Such a pool gets a larger allowance, step by step, for as long as that
//! continues. Moves for blocks that are large enough to be worth them do not count.
//!
//! [`FreeSpace::needs_with`]: crate::pool::free_space::FreeSpace::needs_with

use crate::pool::free_space::Owner;
use crate::pool::{Core, Pool, Want};

/// The smallest growth allowance beyond the peak in use. At 1.04 × a few pages, moving handles would scatter the mapped
/// segments before the pool has grown.
const MIN_ALLOWANCE: u64 = 10 << 20;

/// How many requests are counted together.
const WINDOW: u64 = 4096;

/// The most handles that may be moved among them before the allowance grows: one for ten requests.
const MANY: u64 = WINDOW / 10;

/// The most that one request counts, so that a single large one does not raise the allowance.
const MAX_COUNTED: u64 = 32;

/// The bytes of a request that pay for one handle that is moved for it: the driver takes about as long to move a handle
/// as the device takes to process these bytes a few times.
const MOVED: u64 = 16 << 20;

/// For each step, the part of the peak that may be created beyond it: one in this many.
const PARTS: [u64; 6] = [25, 16, 10, 7, 5, 3];

/// The growth allowance of one pool, and the moves that decide it.
#[derive(Default)]
pub struct GrowthAllowance {
    requests: u64,
    /// Handles moved until the last request.
    remaps: u64,
    /// Bytes of the last request.
    size: u64,
    /// The moves that count, of the requests counted together now.
    moved: u64,
    step: usize,
}

impl GrowthAllowance {
    /// Counts a request for `size` bytes that missed its stream's cache; `remaps` is the number of handles moved until
    /// now.
    pub fn request(&mut self, remaps: u64, size: u64) {
        let paid = std::mem::replace(&mut self.size, size) / MOVED;
        let moved = remaps - std::mem::replace(&mut self.remaps, remaps);
        self.moved += moved.saturating_sub(paid).min(MAX_COUNTED);
        self.requests += 1;
        if self.moved > MANY && self.step + 1 < PARTS.len() {
            self.step += 1;
        } else if self.requests < WINDOW {
            return;
        }
        (self.requests, self.moved) = (0, 0);
    }

    /// One part in this many of the peak may be created beyond it.
    pub fn part(&self) -> u64 {
        PARTS[self.step]
    }

    /// Resets the allowance, because memory should go back to the driver.
    pub fn reset(&mut self) {
        self.step = 0;
    }
}

impl Pool {
    /// Bytes that a request in the name of `owner` may create beyond what is reserved, as long as it grows within the
    /// allowance. None while another process waits for a part of the budget: the phase *share* creates what the request
    /// needs.
    pub(in crate::pool) fn growth_allowance(&self, core: &Core, owner: Owner, want: &Want) -> u64 {
        let physical = &core.memory.physical;
        if self.calls.others_wait() {
            return 0;
        }
        let peak = (self.in_use() + want.size)
            .max(self.in_use.peak())
            .max(core.memory.free_space.needs_with(owner, want.size));
        (peak + (peak / core.allowance.part()).max(MIN_ALLOWANCE))
            .saturating_sub(physical.reserved())
            .min(physical.room_below_limit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowance_grows_only_while_much_is_moved() {
        let (mut allowance, mut large) = (GrowthAllowance::default(), GrowthAllowance::default());
        let mut remaps = 0;
        let mut run = |allowance: &mut GrowthAllowance, every: u64, handles: u64| {
            for request in 0..2 * WINDOW {
                remaps += if request % every == 0 { handles } else { 0 };
                allowance.request(remaps, 0);
            }
            allowance.part()
        };
        assert_eq!(run(&mut allowance, 16, 1), 25);
        for request in 1..2 * WINDOW {
            large.request(request * 32, 512 << 20);
        }
        assert_eq!(large.part(), 25, "as many as large blocks are worth");
        for request in 2 * WINDOW..4 * WINDOW {
            large.request(request * 64, 512 << 20);
        }
        assert!(large.part() < 25, "more");
        assert_eq!(run(&mut allowance, WINDOW, 10_000), 25, "one large request");
        assert!(run(&mut allowance, 8, 1) < 25);
        let after = allowance.part();
        assert_eq!(run(&mut allowance, 16, 1), after);
        assert_eq!(run(&mut allowance, 1, 1), 3);
        allowance.reset();
        assert_eq!(allowance.part(), 25);
    }
}
