//! Idle memory that is taken out of the address range for other memory, and what the driver refused to take back.

use super::leaving::Then;
use super::*;

impl PhysicalMemory {
    /// Takes handles and segments out of common free space, the most scattered first, until those are `bytes` bytes. They go
    /// back to the driver in exchange for new memory: the reserve is no floor.
    pub fn begin_exchanging(&mut self, free_space: &mut FreeSpace, bytes: u64) -> Vec<Leaving> {
        let pieces = self.scattered(free_space);
        self.begin_idle(free_space, pieces, Then::Release, bytes)
    }

    /// As [`PhysicalMemory::begin_exchanging`], but handles are cached once they are unmapped.
    pub fn begin_caching(&mut self, free_space: &mut FreeSpace, bytes: u64) -> Vec<Leaving> {
        let pieces = self.scattered(free_space);
        self.begin_idle(free_space, pieces, Then::Cache, bytes)
    }

    /// Takes `pieces` out of their free ranges, in this order, until those are `bytes` bytes.
    pub(in crate::pool::physical) fn begin_idle(
        &mut self,
        free_space: &mut FreeSpace,
        pieces: impl IntoIterator<Item = Idle>,
        then: Then,
        bytes: u64,
    ) -> Vec<Leaving> {
        let (mut leaving, mut taken) = (Vec::new(), 0);
        for piece in pieces {
            if taken >= bytes {
                break;
            }
            let Some(end) = self.mapped.get(&piece.offset).map(Mapped::end) else {
                continue;
            };
            let node = Self::range_of(free_space, piece, end)
                .and_then(|piece| free_space.withdraw(piece.range, piece.offset, end - piece.offset));
            if let Some(memory) = node.and_then(|node| self.set_out(piece.offset, node, then)) {
                taken += memory.size();
                leaving.push(memory);
            }
        }
        leaving
    }

    /// The free range that the memory at `idle` lies in. A larger neighbour may have split the range
    /// since its number was taken.
    fn range_of(free_space: &FreeSpace, idle: Idle, end: u64) -> Option<Idle> {
        if free_space.holds(idle.range, idle.owner, idle.offset, end - idle.offset) {
            return Some(idle);
        }
        let range = free_space
            .ranges(idle.owner)
            .find(|(_, from, size)| *from <= idle.offset && end <= from + size);
        range.map(|(range, ..)| Idle { range, ..idle })
    }

    /// What the driver refused to unmap, outside the pool's address range.
    pub(in crate::pool::physical) fn still_mapped(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let deferred = self.deferred.iter().flat_map(|deferred| &deferred.mappings);
        deferred.chain(&self.retrying).copied()
    }

    /// Whether the driver refused to take something back.
    pub fn has_deferred(&self) -> bool {
        self.stuck > 0 || !self.deferred.is_empty()
    }

    /// Takes what the driver refused to take back, which is tried again.
    pub fn begin_retrying(&mut self) -> Vec<Leaving> {
        let mut leaving = self.begin_unsticking();
        let deferred = std::mem::take(&mut self.deferred);
        let mappings: Vec<(u64, u64)> = deferred.iter().flat_map(|of| &of.mappings).copied().collect();
        leaving.extend(self.begin_releases(deferred));
        self.retrying.extend(mappings);
        leaving
    }

    /// Takes the handles that could not be unmapped. They are cached once they are.
    pub(in crate::pool::physical) fn begin_unsticking(&mut self) -> Vec<Leaving> {
        let base = self.addresses.base().unwrap_or_default();
        let stuck = self.mapped.values_mut().filter(|mapped| !mapped.leaves);
        let stuck = stuck.filter_map(|mapped| match mapped.origin {
            Origin::Stuck(handle, node) => {
                mapped.leaves = true;
                Some(Leaving::stuck(
                    handle,
                    mapped.offset,
                    base + mapped.offset,
                    mapped.size,
                    node,
                ))
            }
            _ => None,
        });
        let leaving: Vec<Leaving> = match self.stuck {
            0 => Vec::new(),
            _ => stuck.collect(),
        };
        self.leaving += leaving.len();
        leaving
    }
}
