//! Growth of free space without virtual memory: segments of the driver's malloc.

use super::*;
use crate::pool::free_space::Tile;

impl PhysicalMemory {
    /// Adds a segment from the driver's malloc: at least `size` bytes, and more where memory was requested often.
    pub(in crate::pool::physical) fn add_segment(
        &mut self,
        free_space: &mut FreeSpace,
        size: u64,
        align: u64,
        at_most: u64,
    ) -> Result<bool> {
        let padding = align.max(SEGMENT_PADDING);
        let Some(least) = size
            .checked_add(padding)
            .and_then(|size| size.checked_next_multiple_of(self.page))
        else {
            return Ok(false);
        };
        let ample = match self.calls.others_wait() {
            true => least,
            false => (self.reserved / 16)
                .clamp(self.page, MAX_SEGMENT_SURPLUS)
                .next_multiple_of(self.page)
                .max(least),
        };
        let mut outcome = Ok(0);
        for bytes in [ample, least] {
            if bytes > at_most {
                outcome = Err(None);
                continue;
            }
            outcome = self.calls.malloc(bytes).map_err(Some);
            match outcome {
                Ok(address) => return self.place_segment(free_space, address, bytes),
                Err(Some(error)) if error.failure != Failure::OutOfMemory => break,
                Err(_) => {}
            }
        }
        match outcome {
            Err(Some(error)) => Err(error),
            _ => Ok(false),
        }
    }

    fn place_segment(&mut self, free_space: &mut FreeSpace, address: u64, bytes: u64) -> Result<bool> {
        const MODULO: u64 = 2 << 20;
        let start = address.next_multiple_of(512);
        let size = (bytes - (start - address)) / 512 * 512;
        // Each allocation of the driver is a segment between holes: addresses may adjoin, but no block may lie in two
        // of them.
        match free_space.open_apart(size, MODULO, start % MODULO) {
            Some(offset) => {
                self.addresses.add(start, size, offset);
                self.mapped.insert(
                    offset,
                    Mapped {
                        offset,
                        size: bytes,
                        origin: Origin::Segment(address),
                        leaves: false,
                    },
                );
                self.reserved += bytes;
                self.record(Action::SegmentAlloc, offset, size);
                Ok(true)
            }
            None => {
                // It goes back like an allocation for a single block.
                self.took(address, bytes);
                self.note_due_range(DeferredRelease {
                    allocations: vec![(address, bytes)],
                    ..DeferredRelease::default()
                });
                Ok(false)
            }
        }
    }

    /// Checks that every used or free range lies in one segment, and that the free-space bookkeeping covers exactly
    /// what the segments hold. An error names the violation.
    pub fn validate_segments(&self, free_space: &FreeSpace) -> std::result::Result<(), String> {
        for Tile { offset, size, .. } in free_space.tiles() {
            let segment = self.mapped.range(..=offset).next_back().map(|(_, mapped)| mapped);
            if segment.is_none_or(|segment| offset + size > segment.end()) {
                return Err(format!("{offset:#x} + {size:#x} lies in no single segment"));
            }
        }
        let bytes: u64 = self.mapped.values().map(|mapped| mapped.end() - mapped.offset).sum();
        match free_space.backed() {
            backed if backed == bytes => Ok(()),
            backed => Err(format!("{backed} bytes backed, segments of {bytes}")),
        }
    }
}
