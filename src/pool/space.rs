//! Offsets in a pool's window ↔ addresses.

use super::index::Index;
use crate::nvtx::{self, HeapHandle};
use crate::sync::RwLock;

/// One piece of memory that came with an address of its own.
#[derive(Debug, Clone, Copy)]
struct Segment {
    address: u64,
    size: u64,
    offset: u64,
    heap: HeapHandle,
}

/// How a window's offsets become addresses.
enum Layout {
    /// One reservation.
    Window(u64, HeapHandle),
    /// Segments from the driver's malloc or from the caller, sorted by address. Their offsets keep the address modulo
    /// 2 MiB, so that an aligned offset is an aligned address.
    Segments(RwLock<Vec<Segment>>),
}

/// A window of `size` bytes of offsets.
pub struct Space {
    layout: Layout,
    /// Bytes.
    pub size: u64,
    /// Which blocks start where.
    pub index: Index,
}

impl Space {
    /// A window that lies at `base`.
    pub fn window(base: u64, size: u64, granule: u64) -> Space {
        Space {
            layout: Layout::Window(base, nvtx::heap(base, size)),
            size,
            index: Index::new(size, granule),
        }
    }

    /// A window made of segments.
    pub fn segments(size: u64, granule: u64) -> Space {
        Space {
            layout: Layout::Segments(RwLock::new(Vec::new())),
            size,
            index: Index::new(size, granule),
        }
    }

    /// The reservation, where it is one.
    pub fn base(&self) -> Option<u64> {
        match self.layout {
            Layout::Window(base, _) => Some(base),
            Layout::Segments(_) => None,
        }
    }

    /// The address of an offset that memory backs.
    pub fn address(&self, offset: u64) -> Option<u64> {
        match &self.layout {
            Layout::Window(base, _) => Some(base + offset),
            Layout::Segments(segments) => {
                let segments = segments.read();
                let segment = segments
                    .iter()
                    .find(|s| s.offset <= offset && offset < s.offset + s.size)?;
                Some(segment.address + (offset - segment.offset))
            }
        }
    }

    /// The offset of an address; none where the address is not of this window.
    #[inline]
    pub fn offset(&self, address: u64) -> Option<u64> {
        match &self.layout {
            Layout::Window(base, _) => Some(address.wrapping_sub(*base)).filter(|offset| *offset < self.size),
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

    /// A segment was obtained.
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

    /// The segment at `offset` is gone.
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

    /// What a tool knows the memory at `address` as.
    pub fn heap(&self, address: u64) -> HeapHandle {
        match &self.layout {
            Layout::Window(_, heap) => *heap,
            Layout::Segments(segments) => {
                let segments = segments.read();
                let at = segments.partition_point(|segment| segment.address <= address);
                at.checked_sub(1).map(|at| segments[at].heap).unwrap_or_default()
            }
        }
    }

    /// The reservation was given back.
    pub fn gone(&self) {
        if let Layout::Window(_, heap) = self.layout {
            nvtx::heap_gone(heap);
        }
    }
}
