//! Growth ahead: how much more than a request needs, and in which handles, while a pool is filled.
//!
//! A handle takes two driver calls, and each growth takes one more for access. A handle is moved or returned only whole,
//! so a block that lies in a part of it holds the rest. While what is requested also stays in use, as weights that a
//! server loads, nothing has to be moved, and calls are what counts. So a pool that rises grows ahead of its requests, in
//! one handle for each growth. Once blocks are freed between requests, handles are small again.

use crate::pool::free_space::FreeSpace;
use crate::pool::physical::{Ahead, PhysicalMemory};

/// A pool that rises grows ahead by one part in this many of what is in use.
const PART: u64 = 20;

/// A larger request is worth its own calls: growth ahead of it stays within the growth allowance, and its handles are
/// at most as large as `LARGEST_FOR_LARGE`, and one part in `PART_FOR_LARGE` of what is reserved.
const LARGE: u64 = 64 << 20;
const LARGEST_FOR_LARGE: u64 = 64 << 20;
const PART_FOR_LARGE: u64 = 16;
const AHEAD_OF_LARGE: u64 = 25;

/// Handles are as small as otherwise once reserved memory exceeds one part in so many of the limit, or of the device's
/// memory where there is no limit: what they cannot give up is missed there.
const PART_OF_LIMIT: u64 = 8;
const PART_OF_DEVICE: u64 = 2;

/// The last requests that count: one part in this many of what is reserved, and at least so many bytes. Of them, one part
/// in `FREED` may have been freed.
const WINDOW: u64 = 8;
const MIN_WINDOW: u64 = 4 << 20;
const FREED: i64 = 64;

/// Whether what is requested stays in use.
#[derive(Default)]
pub struct Rise {
    /// Bytes requested at misses, in total and until the last growth.
    missed: u64,
    seen: u64,
    /// Bytes in use at the last growth, with what it was for.
    used: u64,
    /// Bytes requested lately, and how many of them stayed in use.
    requested: i64,
    kept: i64,
    /// Growths since much was freed between two of them.
    growths: u32,
}

impl Rise {
    /// Counts a request for `size` bytes that missed its stream's cache.
    pub fn request(&mut self, size: u64) {
        self.missed += size;
    }

    /// Counts a growth, for a request with which `used` bytes are in use. `reserved` bytes are reserved before it.
    pub fn growth(&mut self, used: u64, reserved: u64) {
        let requested = (self.missed - std::mem::replace(&mut self.seen, self.missed)) as i64;
        let more = used as i64 - std::mem::replace(&mut self.used, used) as i64;
        self.requested += requested;
        self.kept += more.min(requested);
        while self.requested > (reserved / WINDOW).max(MIN_WINDOW) as i64 {
            self.requested /= 2;
            self.kept /= 2;
        }
        self.growths = match self.requested - self.kept <= self.requested / FREED {
            true => self.growths.saturating_add(1),
            false => 0,
        };
    }

    /// How far the growth that was counted last goes ahead of a request of `size` bytes, with which `used` bytes are in
    /// use. None where the pool does not rise, or too much of what it may hold is reserved.
    pub fn ahead(&self, physical: &PhysicalMemory, used: u64, size: u64) -> Option<Ahead> {
        let reserved = physical.reserved();
        let at_most = match physical.limit {
            0 => physical.device_memory.saturating_sub(physical.headroom) / PART_OF_DEVICE,
            limit => limit / PART_OF_LIMIT,
        };
        if self.growths == 0 || reserved + size > at_most {
            return None;
        }
        // The first growths may not be the beginning of a rise, so handles double with each.
        let unused = FreeSpace::may_leave_unused(size);
        let handle = unused.saturating_mul(1 << (self.growths - 1).min(16));
        Some(match size > LARGE {
            true => Ahead {
                reserved: used + used / AHEAD_OF_LARGE,
                handle: handle.min((reserved / PART_FOR_LARGE).min(LARGEST_FOR_LARGE).max(unused)),
            },
            false => Ahead {
                reserved: used + used / PART,
                handle,
            },
        })
    }
}
