//! The host's memory behind `malloc` memory and pinned memory: pieces of one reservation, which may share pages. It
//! needs no file, because it is mapped only once.

use super::addresses::{Addresses, Places};
use super::host_memory::{self, BackingFile, page};

/// The minimum of address space, so that pieces can lie apart.
const MIN_SIZE: u64 = 16 << 30;
/// The minimum where the host has no more.
const LEAST_SIZE: u64 = 1 << 30;

#[derive(Debug)]
pub(super) struct Arena {
    start: u64,
    size: u64,
    /// The number of its first byte among the device's physical bytes; 0 where the memory is the host's.
    offset: u64,
    places: Places,
}

impl Arena {
    /// Space for pieces of `bytes` in total. `numbers` has the physical bytes of a device; `None` is for the host's
    /// memory. Where the host has less address space, so has the arena; returns `None` if that is too little for all pieces.
    pub(super) fn new(policy: Addresses, bytes: u64, numbers: Option<&mut BackingFile>) -> Option<Arena> {
        let mut size = bytes.checked_mul(4)?.max(MIN_SIZE).next_multiple_of(page());
        let start = loop {
            match host_memory::reserve(size, 2 << 20) {
                Ok(start) => break start,
                Err(_) if size / 2 < bytes.max(LEAST_SIZE) => return None,
                Err(_) => size = (size / 2).next_multiple_of(page()),
            }
        };
        Some(Arena {
            start,
            size,
            offset: numbers.map_or(0, |numbers| numbers.skip(size)),
            places: Places::new(policy, start, size),
        })
    }

    /// Places a piece. Returns its address and the number of its first physical byte.
    pub(super) fn take(&mut self, size: u64) -> Option<(u64, u64)> {
        let address = self.places.take(size)?;
        let from = address / page() * page();
        let bytes = (address + size).next_multiple_of(page()) - from;
        if host_memory::protect(from, bytes, true).is_err() {
            self.places.give(address);
            return None;
        }
        Some((address, self.offset + (address - self.start)))
    }

    /// Whether no piece lies in it.
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the pages that no other piece touches to the host. Accesses to them fault from now on.
    pub(super) fn give(&mut self, address: u64, size: u64) {
        self.places.give(address);
        let (from, bytes) = self.places.pages(address, size, page());
        if bytes > 0 {
            let _ = host_memory::unmap(from, bytes);
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        host_memory::unreserve(self.start, self.size);
    }
}
