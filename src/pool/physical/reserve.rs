//! The reserve: memory that the pool holds from its first use on, and below which nothing goes back to the driver.
//!
//! With virtual memory it consists of cached handles. Each stream's arena grows by them, wherever it lies, so that
//! streams do not split the reserve among each other as they would split one range. Without virtual memory it is a
//! segment.

use super::*;

/// A handle of the reserve is one part in this many of it, between one page and [`LARGEST`].
const PART_OF_RESERVE: u64 = 64;

/// The option `reserve`, and what became of it.
#[derive(Debug, Default)]
pub struct Reserve {
    /// Bytes that the pool is to hold.
    pub bytes: u64,
    /// The pool has tried to obtain them.
    pub tried: bool,
}

impl Reserve {
    /// Whether the pool is to hold memory that it has not tried to obtain.
    pub fn is_due(&self) -> bool {
        self.bytes > 0 && !self.tried
    }
}

impl PhysicalMemory {
    /// The bytes below which no memory goes back to the driver, except in exchange for other memory.
    pub fn floor(&self) -> u64 {
        let bytes = if self.reserve.tried { self.reserve.bytes } else { 0 };
        match self.limit {
            0 => bytes,
            limit => bytes.min(limit),
        }
    }

    /// The largest handle or segment that may go back, where so many bytes are to stay. A limit comes first.
    pub(in crate::pool::physical) fn releasable(&self, floor: u64) -> u64 {
        match self.limit != 0 && self.held() > self.limit {
            true => u64::MAX,
            false => self.held().saturating_sub(floor),
        }
    }

    /// The size of the reserve's handles; 0 where there is no reserve. The end of an arena may get one of them for a
    /// smaller need: the surplus is no new memory.
    pub(in crate::pool::physical) fn reserve_handle(&self) -> u64 {
        if self.reserve.bytes == 0 {
            return 0;
        }
        let pages = (self.reserve.bytes / PART_OF_RESERVE).min(LARGEST) / self.page;
        (1 << pages.max(1).ilog2()) * self.page
    }

    /// Obtains the reserve, below the limit and beside the headroom. Where the driver has less, the pool gets what there
    /// is. It tries once.
    pub fn obtain_reserve(&mut self, free_space: &mut FreeSpace) {
        if !self.reserve.is_due() {
            return;
        }
        self.reserve.tried = true;
        let wanted = self.reserve.bytes.div_ceil(self.page).saturating_mul(self.page);
        let at_most = wanted.saturating_sub(self.reserved).min(self.room_below_limit()) / self.page * self.page;
        let mut size = match self.virtual_memory() {
            true => self.reserve_handle(),
            false => at_most,
        };
        let (mut left, mut refusal) = (at_most, None);
        while left > 0 && size >= self.page {
            let bytes = size.min(left);
            match self.obtain(free_space, bytes) {
                Ok(true) => left -= bytes,
                Ok(false) => break,
                Err(error) if error.failure == Failure::OutOfMemory => {
                    refusal = Some(error);
                    size = bytes / 2 / self.page * self.page;
                }
                Err(error) => {
                    refusal = Some(error);
                    break;
                }
            }
        }
        self.note_peak();
        if self.reserved < wanted {
            let reason = refusal.map_or("the limit or the headroom".to_owned(), |error| error.to_string());
            tracing::warn!(
                device = self.device,
                held = self.reserved,
                reserve = wanted,
                %reason,
                "less than the reserve could be obtained"
            );
        }
    }

    /// Cached handles of `gone` bytes went back to the driver, in exchange for `bytes` bytes. Creates what the reserve needs of
    /// the rest. Returns the bytes.
    pub(in crate::pool::physical) fn refill_after(&mut self, gone: u64, bytes: u64) -> u64 {
        let before = self.reserved;
        self.refill((before + gone).saturating_sub(bytes));
        self.reserved - before
    }

    /// Creates handles until `reserved` bytes are reserved, or the whole reserve: the handle that went back in exchange for
    /// others was larger than those.
    fn refill(&mut self, reserved: u64) {
        let reserved = reserved.min(self.floor());
        while reserved.saturating_sub(self.reserved) >= self.page {
            let pages = (reserved - self.reserved) / self.page;
            let size = (1 << pages.ilog2()) * self.page;
            match self.create_handle(size) {
                Ok(handle) => self.keep(handle, size),
                Err(_) => return,
            }
        }
    }

    /// Obtains a part of the reserve. False where its segment has no place.
    fn obtain(&mut self, free_space: &mut FreeSpace, bytes: u64) -> Result<bool> {
        if !self.virtual_memory() {
            return self.add_segment(free_space, bytes - SEGMENT_PADDING, SEGMENT_PADDING, bytes);
        }
        let handle = self.create_handle(bytes)?;
        self.keep(handle, bytes);
        Ok(true)
    }
}
