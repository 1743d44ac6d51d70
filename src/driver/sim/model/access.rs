//! Which addresses work may access, the physical memory behind them, and the changes of contents.

use super::memory::{FOREIGN, MappingSource, MemoryState};

/// What work does to the contents of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Fill { address: u64, byte: u8, bytes: u64 },
    Copy { to: u64, from: u64, bytes: u64 },
}

/// What accesses memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Host,
    /// A kernel on that device.
    Device(u32),
    /// A copy by that device, which may also access `malloc` memory of another.
    Copy(u32),
}

impl MemoryState {
    /// Whether `address` lies in a reservation or an allocation of a device.
    pub(super) fn is_device(&self, address: u64) -> bool {
        let within = |found: Option<(&u64, u64)>| found.is_some_and(|(start, size)| address - start < size);
        within(
            self.reservations
                .range(..=address)
                .next_back()
                .map(|(start, size)| (start, *size)),
        ) || within(
            self.mappings
                .range(..=address)
                .next_back()
                .map(|(start, mapping)| (start, mapping.size)),
        )
    }

    /// Calls `piece` with (physical start, bytes, mapping) for each mapped part of a range, in order. Returns whether
    /// all of it is mapped.
    pub(super) fn pieces(
        &self,
        address: u64,
        bytes: u64,
        mut piece: impl FnMut(u64, u64, &super::memory::Mapping),
    ) -> bool {
        let Some(end) = address.checked_add(bytes) else {
            return false;
        };
        let first = self
            .mappings
            .range(..=address)
            .next_back()
            .map_or(address, |(&start, _)| start);
        let mut at = address;
        let mut whole = true;
        for (&start, mapping) in self.mappings.range(first..end) {
            let stop = end.min(start + mapping.size);
            if stop <= at {
                continue;
            }
            whole &= start <= at;
            at = at.max(start);
            piece(mapping.offset + (at - start), stop - at, mapping);
            at = stop;
        }
        whole && at >= end
    }

    /// Whether all of a range lies in one piece of pinned memory.
    pub(super) fn is_pinned(&self, address: u64, bytes: u64) -> bool {
        let found = self.pinned.range(..=address).next_back();
        found.is_some_and(|(start, size)| (address - start).saturating_add(bytes) <= *size)
    }

    /// An error message where `access` may not access all of a range.
    pub(super) fn usable(&self, address: u64, bytes: u64, access: Access) -> std::result::Result<(), String> {
        let mut refused = false;
        let whole = self.pieces(address, bytes, |_, _, mapping| {
            let allowed = match access {
                Access::Host => mapping.access != 0,
                Access::Copy(_) if matches!(mapping.source, MappingSource::Malloc { .. }) => true,
                Access::Device(device) | Access::Copy(device) => mapping.access >> device & 1 != 0,
            };
            refused |= !allowed;
        });
        if refused {
            return Err(format!("{address:#x} + {bytes:#x}, not all of which it has access to"));
        }
        if whole || self.is_pinned(address, bytes) {
            Ok(())
        } else {
            Err(format!("{address:#x} + {bytes:#x}, not all of which is mapped"))
        }
    }

    /// Calls `piece` with (physical start, bytes, alias) for a range. Returns whether all of it is mapped device memory
    /// or none is. Host memory counts as its own physical memory.
    pub(super) fn physical(&self, address: u64, bytes: u64, mut piece: impl FnMut(u64, u64, u32)) -> bool {
        if !self.is_device(address) {
            piece(address | FOREIGN, bytes, 0);
            return true;
        }
        self.pieces(address, bytes, |start, length, mapping| {
            piece(start, length, mapping.alias)
        })
    }

    /// Changes contents. The ranges passed `usable` before.
    pub(super) fn perform(&self, effect: Effect) {
        match effect {
            _ if !self.contents => {}
            Effect::None => {}
            // SAFETY: `usable` was true for the range just before, under the machine's lock: it is mapped and writable.
            Effect::Fill { address, byte, bytes } => unsafe {
                std::ptr::write_bytes(address as *mut u8, byte, bytes as usize);
            },
            // SAFETY: as above for device memory. The caller guarantees that a host address is valid, as with the real
            // call.
            Effect::Copy { to, from, bytes } => unsafe {
                std::ptr::copy(from as *const u8, to as *mut u8, bytes as usize);
            },
        }
    }
}
