//! What became of memory that left is noted.

use super::*;

impl PhysicalMemory {
    /// Notes what became of memory that left. What the driver did not take back is common free space again, or a cached
    /// handle: all work that used it has completed.
    pub fn end_leaving(&mut self, free_space: &mut FreeSpace, leaving: Vec<Leaving>) -> Left {
        let mut left = Left::default();
        self.batches += 1;
        // Everything was forgotten meanwhile.
        if self.leaving == 0 {
            return left;
        }
        self.leaving -= leaving.len();
        for leaving in leaving {
            self.leaving_bytes -= leaving.goes();
            left.error = left.error.or(leaving.error);
            self.end_one(free_space, leaving, &mut left);
        }
        self.reserved = self.reserved.saturating_sub(left.gone);
        left
    }

    fn end_one(&mut self, free_space: &mut FreeSpace, leaving: Leaving, left: &mut Left) {
        let size = leaving.size;
        match (leaving.memory, leaving.state) {
            (Memory::Range(range), state) => {
                let Range {
                    release,
                    mappings,
                    found,
                    ..
                } = *range;
                self.retrying.retain(|mapping| !mappings.contains(mapping));
                for (address, bytes) in found.freed {
                    left.gone += self.granules.give(address, bytes);
                }
                for (handle, size) in found.handles {
                    self.keep(handle, size);
                    left.cached.push((handle, size));
                }
                if state != Stage::Gone {
                    self.deferred.push(release);
                }
            }
            (Memory::Handle(_, offset, _, node), Stage::Held) => {
                self.record(Action::SegmentMap, offset, size);
                self.stay(free_space, offset, node);
            }
            (Memory::Segment(address, offset, node), Stage::Held | Stage::Unmapped) => {
                let bytes = free_space.span(node).1;
                self.addresses.add(address.next_multiple_of(512), bytes, offset);
                self.record(Action::SegmentAlloc, offset, bytes);
                self.stay(free_space, offset, node);
            }
            (Memory::Handle(_, offset, _, node) | Memory::Segment(_, offset, node), Stage::Gone) => {
                self.mapped.remove(&offset);
                free_space.vacate(node);
                left.gone += size;
            }
            (Memory::Handle(handle, offset, _, node), Stage::Unmapped) => {
                self.mapped.remove(&offset);
                free_space.vacate(node);
                self.keep(handle, size);
                left.cached.push((handle, size));
            }
            (Memory::Stuck(_, offset, ..), Stage::Held | Stage::Gone) => {
                if let Some(mapped) = self.mapped.get_mut(&offset) {
                    mapped.leaves = false;
                }
            }
            (Memory::Stuck(handle, offset, _, node), Stage::Unmapped) => {
                self.mapped.remove(&offset);
                self.stuck -= 1;
                free_space.restore(node);
                self.keep(handle, size);
                left.cached.push((handle, size));
            }
            (Memory::Cached(_), Stage::Gone) => left.gone += size,
            (Memory::Cached(handle), Stage::Held | Stage::Unmapped) => self.keep(handle, size),
        }
    }

    fn stay(&mut self, free_space: &mut FreeSpace, offset: u64, node: NodeId) {
        if let Some(mapped) = self.mapped.get_mut(&offset) {
            mapped.leaves = false;
        }
        free_space.give(node, COMMON, 0);
    }

    /// Whether memory is on its way back to the driver, or to another place.
    pub fn is_leaving(&self) -> bool {
        self.leaving > 0
    }

    /// How many batches of memory that left have come to their end.
    pub fn ended_batches(&self) -> u64 {
        self.batches
    }
}
