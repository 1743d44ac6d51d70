//! Conversion between offsets in a pool's address range and addresses.

use super::index::Index;
use crate::support::nvtx::{self, HeapHandle};
use crate::sync::RwLock;

/// One piece of memory that came with an address of its own.
#[derive(Debug, Clone, Copy)]
struct Segment {
    address: u64,
    size: u64,
    offset: u64,
    heap: HeapHandle,
}

/// How offsets become addresses.
enum Layout {
    /// One reservation.
    Reserved(u64, HeapHandle),
    /// Segments from the driver's malloc or external memory, sorted by address. Their offsets keep the address modulo 2
    /// MiB, so that an aligned offset is an aligned address.
    Segments(RwLock<Vec<Segment>>),
}

/// An address range of `size` bytes of offsets.
pub struct AddressSpace {
    layout: Layout,
    /// Bytes.
    pub size: u64,
    /// The blocks by the offsets at which they start.
    pub index: Index,
}

impl AddressSpace {
    /// An address range that is one reservation at `base`.
    pub fn reserved(base: u64, size: u64, granule: u64) -> AddressSpace {
        AddressSpace {
            layout: Layout::Reserved(base, nvtx::heap(base, size)),
            size,
            index: Index::new(size, granule),
        }
    }

    /// An address range made of segments.
    pub fn segments(size: u64, granule: u64) -> AddressSpace {
        AddressSpace {
            layout: Layout::Segments(RwLock::new(Vec::new())),
            size,
            index: Index::new(size, granule),
        }
    }

    /// The start of the reservation; none for segments.
    pub fn base(&self) -> Option<u64> {
        match self.layout {
            Layout::Reserved(base, _) => Some(base),
            Layout::Segments(_) => None,
        }
    }

    /// The address of an offset that memory backs.
    pub fn address(&self, offset: u64) -> Option<u64> {
        match &self.layout {
            Layout::Reserved(base, _) => Some(base + offset),
            Layout::Segments(segments) => {
                let segments = segments.read();
                let segment = segments
                    .iter()
                    .find(|s| s.offset <= offset && offset < s.offset + s.size)?;
                Some(segment.address + (offset - segment.offset))
            }
        }
    }

    /// The offset of an address; none where the address does not belong to this pool's range.
    #[inline]
    pub fn offset(&self, address: u64) -> Option<u64> {
        match &self.layout {
            Layout::Reserved(base, _) => Some(address.wrapping_sub(*base)).filter(|offset| *offset < self.size),
            Layout::Segments(segments) => {
                let segments = segments.read();
                let at = segments
                    .partition_point(|segment| segment.address <= address)
                    .checked_sub(1)?;
                let segment = segments[at];
                (address - segment.address < segment.size).then(|| segment.offset + (address - segment.address))
            }
        }
    }

    /// Adds a segment.
    pub fn add(&self, address: u64, size: u64, offset: u64) {
        if let Layout::Segments(segments) = &self.layout {
            let mut segments = segments.write();
            let at = segments.partition_point(|segment| segment.address < address);
            let heap = nvtx::heap(address, size);
            let segment = Segment {
                address,
                size,
                offset,
                heap,
            };
            segments.insert(at, segment);
        }
    }

    /// Removes the segment at `offset`.
    pub fn remove(&self, offset: u64) {
        if let Layout::Segments(segments) = &self.layout {
            segments.write().retain(|segment| {
                if segment.offset == offset {
                    nvtx::heap_gone(segment.heap);
                }
                segment.offset != offset
            });
        }
    }

    /// The name by which a tool knows the memory at `address`.
    pub fn heap(&self, address: u64) -> HeapHandle {
        match &self.layout {
            Layout::Reserved(_, heap) => *heap,
            Layout::Segments(segments) => {
                let segments = segments.read();
                let at = segments.partition_point(|segment| segment.address <= address);
                at.checked_sub(1).map(|at| segments[at].heap).unwrap_or_default()
            }
        }
    }

    /// Reports that the reservation was returned.
    pub fn gone(&self) {
        if let Layout::Reserved(_, heap) = self.layout {
            nvtx::heap_gone(heap);
        }
    }
}
