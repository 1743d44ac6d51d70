//! The host's side of `malloc` memory and of pinned memory: pieces of one reservation, which may share pages. It needs no file,
//! since nothing is mapped twice.

use super::addresses::{Addresses, Places};
use super::host::{self, Backing, PAGE};

/// The least address space, so that pieces can lie apart.
const LEAST: u64 = 16 << 30;

#[derive(Debug)]
pub(super) struct Arena {
    start: u64,
    size: u64,
    /// What its start is called among the device's physical bytes; 0 where the memory is the host's.
    offset: u64,
    places: Places,
}

impl Arena {
    /// Room for pieces of together `bytes`, of a device where `numbers` has its physical bytes. None where the host has none.
    pub(super) fn new(policy: Addresses, bytes: u64, numbers: Option<&mut Backing>) -> Option<Arena> {
        let size = bytes.checked_mul(4)?.max(LEAST).next_multiple_of(PAGE);
        let start = host::reserve(size, 2 << 20).ok()?;
        Some(Arena {
            start,
            size,
            offset: numbers.map_or(0, |numbers| numbers.skip(size)),
            places: Places::new(policy, start, size),
        })
    }

    /// A piece: its address, and what its first physical byte is called.
    pub(super) fn take(&mut self, size: u64) -> Option<(u64, u64)> {
        let address = self.places.take(size)?;
        let from = address / PAGE * PAGE;
        let bytes = (address + size).next_multiple_of(PAGE) - from;
        if host::protect(from, bytes, true).is_err() {
            self.places.give(address);
            return None;
        }
        Some((address, self.offset + (address - self.start)))
    }

    /// The pages that no other piece touches go back to the host, which faults there from now on.
    pub(super) fn give(&mut self, address: u64, size: u64) {
        self.places.give(address);
        let (from, bytes) = self.places.pages(address, size, PAGE);
        if bytes > 0 {
            let _ = host::unmap(from, bytes);
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        host::unreserve(self.start, self.size);
    }
}
