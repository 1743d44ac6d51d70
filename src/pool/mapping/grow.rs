//! More room: kept handles, moved ones, new ones, mapped one behind the other.

use super::*;

impl Mapping {
    /// Makes the room `owner` needs for `size` bytes at `align` free for it (or for everybody), from kept handles and
    /// `sources`. False where they do not suffice; nothing has changed then.
    pub fn grow(&mut self, heap: &mut Heap, owner: Owner, size: u64, align: u64, sources: Sources) -> Result<bool> {
        if !self.virtual_memory() {
            return self.add_segment(heap, size, align, sources.create);
        }
        let Some(mut place) = heap.place(owner, size, align, self.page) else {
            return Ok(false);
        };
        let mut need = place.size;
        let mut kept = self.fitting_kept(&mut need);
        // Handles are not split: where only a larger one is there, the place becomes larger.
        let room = place.room - place.size;
        if let Some(larger) = self.larger_kept(need, room, &kept) {
            place.size += larger - std::mem::take(&mut need);
            kept.push(larger);
        }
        let mut idle = Vec::new();
        if need > 0 && sources.remap {
            idle = self.fitting_idle(heap, &place, &mut need, room);
            place.size = place
                .size
                .max(idle.iter().map(|idle| idle.size).sum::<u64>() + kept.iter().sum::<u64>());
        }
        if need > sources.create {
            return match self.swap(need, sources) {
                Some(sources) => self.grow(heap, owner, size, align, sources),
                None => Ok(false),
            };
        }
        let before = self.reserved;
        let filled = self.fill(heap, place, kept, idle, need);
        if filled.is_err() {
            // What was created for this and has no use now does not stay.
            self.release_kept(before);
        }
        filled?;
        Ok(true)
    }

    /// Where handles may be moved and that does not suffice: parked blocks are taken apart, and kept handles that did not fit
    /// make room for new ones. None where nothing can be done.
    fn swap(&mut self, need: u64, sources: Sources) -> Option<Sources> {
        if !sources.remap {
            return None;
        }
        if self.unpark() {
            return Some(sources);
        }
        let create = sources.create + self.release_kept(self.reserved.saturating_sub(need - sources.create));
        (create > sources.create).then_some(Sources { create, ..sources })
    }

    /// Kept handles that fit into `need` bytes, which is lowered by them.
    fn fitting_kept(&self, need: &mut u64) -> Vec<u64> {
        let mut chosen = Vec::new();
        for (size, handles) in self.kept.range(..=*need).rev() {
            let count = (*need / size).min(handles.len() as u64);
            chosen.extend(std::iter::repeat_n(*size, count as usize));
            *need -= count * size;
        }
        chosen
    }

    /// The size of a kept handle that was not `chosen` yet and is larger than `need`, by at most `room`; none where nothing is
    /// needed.
    fn larger_kept(&self, need: u64, room: u64, chosen: &[u64]) -> Option<u64> {
        let left = |size: u64, handles: &[Handle]| handles.len() > chosen.iter().filter(|one| **one == size).count();
        let mut larger = self.kept.range(need..).filter(|_| need > 0);
        let (size, _) = larger.find(|(size, handles)| left(**size, handles))?;
        (size - need <= room).then_some(*size)
    }

    /// Handles that are complete for everybody and fit into `need` bytes, which is lowered by them; the last may be larger
    /// by at most `room`. Small ranges are broken up first; what the place itself will use stays.
    fn fitting_idle(&self, heap: &Heap, place: &Place, need: &mut u64, room: u64) -> Vec<Idle> {
        let beside = |offset: u64, bytes: u64| offset + bytes == place.offset || offset == place.offset + place.size;
        let mut ranges: Vec<(u64, NodeId, u64)> = heap
            .ranges(COMMON)
            .filter(|(_, offset, bytes)| *bytes >= self.page && !beside(*offset, *bytes))
            .map(|(id, offset, bytes)| (bytes, id, offset))
            .collect();
        ranges.sort_unstable();
        let (mut chosen, mut larger) = (Vec::new(), Vec::new());
        for (bytes, range, offset) in ranges {
            for mapped in self.mapped.range(offset..offset + bytes).map(|(_, mapped)| mapped) {
                if *need == 0 {
                    return chosen;
                }
                let movable = matches!(mapped.memory, Memory::Handle(_));
                if !movable || mapped.offset + mapped.size > offset + bytes {
                    continue;
                }
                let idle = Idle {
                    range,
                    offset: mapped.offset,
                    size: mapped.size,
                };
                if mapped.size <= *need {
                    *need -= mapped.size;
                    chosen.push(idle);
                } else {
                    larger.push(idle);
                }
            }
        }
        let last = larger
            .into_iter()
            .filter(|idle| *need > 0 && idle.size - *need <= room)
            .min_by_key(|idle| idle.size);
        if let Some(last) = last {
            *need = 0;
            // Among its range's, from the first to the last, as they will be taken out in reverse.
            let at = chosen
                .iter()
                .position(|idle: &Idle| idle.range == last.range && idle.offset > last.offset);
            chosen.insert(at.unwrap_or(chosen.len()), last);
        }
        chosen
    }

    /// Maps kept, moved and new handles at `place`, one behind the other.
    fn fill(&mut self, heap: &mut Heap, place: Place, kept: Vec<u64>, idle: Vec<Idle>, create: u64) -> Result<()> {
        let mut handles = self.create(create)?;
        handles.extend(kept.into_iter().filter_map(|size| Some((self.take_kept(size)?, size))));
        // From the last to the first of a range, so that what lies before keeps its number.
        for idle in idle.into_iter().rev() {
            match self.detach(heap, idle) {
                Ok(handle) => {
                    self.remaps += 1;
                    handles.push((handle, idle.size));
                }
                Err(error) => {
                    handles.into_iter().for_each(|(handle, size)| self.keep(handle, size));
                    return Err(error);
                }
            }
        }
        let filled: u64 = handles.iter().map(|(_, size)| size).sum();
        if filled != place.size {
            // What has no memory is nobody's.
            handles.into_iter().for_each(|(handle, size)| self.keep(handle, size));
            return Err(super::super::calls::refused("map", Failure::Other));
        }
        let mut at = place.offset;
        let base = self.space.base().unwrap_or_default();
        for (done, (handle, size)) in handles.iter().enumerate() {
            let outcome = self.calls.submit(|driver| driver.map(base + at, *size, *handle));
            if let Err(error) = outcome {
                self.undo(heap, place.offset, &handles, done);
                return Err(error);
            }
            at += size;
        }
        let outcome = self
            .calls
            .submit(|driver| driver.set_access(base + place.offset, place.size, &self.access));
        if let Err(error) = outcome {
            self.undo(heap, place.offset, &handles, handles.len());
            return Err(error);
        }
        self.tell(Action::SegmentMap, place.offset, place.size);
        let mut at = place.offset;
        for (handle, size) in handles {
            self.mapped.insert(
                at,
                Mapped {
                    offset: at,
                    size,
                    memory: Memory::Handle(handle),
                },
            );
            at += size;
        }
        heap.open(place.offset, place.size, place.owner, 0);
        Ok(())
    }

    /// Unmaps the first `done` of `handles` at `offset` and keeps them all.
    fn undo(&mut self, heap: &mut Heap, offset: u64, handles: &[(Handle, u64)], done: usize) {
        let base = self.space.base().unwrap_or_default();
        let mut at = offset;
        for (index, (handle, size)) in handles.iter().enumerate() {
            let unmapped = index >= done || self.calls.submit(|driver| driver.unmap(base + at, *size)).is_ok();
            if unmapped {
                self.keep(*handle, *size);
            } else if let Some(node) = heap.bury(at, *size) {
                tracing::warn!(
                    offset = at,
                    size,
                    "a handle could not be unmapped, and is tried again later"
                );
                let memory = Memory::Stuck(*handle, node);
                self.stuck += 1;
                self.mapped.insert(
                    at,
                    Mapped {
                        offset: at,
                        size: *size,
                        memory,
                    },
                );
            }
            at += size;
        }
    }

    /// New handles of together `bytes`. All or none.
    fn create(&mut self, bytes: u64) -> Result<Vec<(Handle, u64)>> {
        let mut handles = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let size = if bytes >= LARGE { left.min(LARGEST) } else { self.page };
            match self.calls.submit(|driver| driver.create(self.device, size, self.kind)) {
                Ok(handle) => handles.push((handle, size)),
                Err(error) => {
                    for (handle, size) in handles {
                        if self.calls.submit(|driver| driver.release(handle)).is_err() {
                            self.reserved += size;
                            self.keep(handle, size);
                        }
                    }
                    return Err(error);
                }
            }
            left -= size;
        }
        self.reserved += bytes;
        Ok(handles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Driver;
    use crate::driver::sim::{SimConfig, SimDriver};

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_kept_handle_is_taken_once() {
        for (kept, need, reserved) in [
            (&[2][..], 4, 4),
            (&[2, 2], 6, 6),
            (&[2, 4], 4, 6),
            (&[4], 2, 4),
            (&[2, 8], 4, 10),
        ] {
            let driver = SimDriver::new(SimConfig::default());
            let calls = Arc::new(Calls::new(driver.clone(), false));
            let (page, size) = (2 * MIB, 64 * MIB);
            let base = driver.reserve(size, page).unwrap();
            let space = Arc::new(Space::window(base, size, 512));
            let mut heap = Heap::new(size, 512, page);
            let (access, recorder) = (vec![0], Arc::default());
            let mut mapping = Mapping::new(calls, space, 0, page, HandleKind::default(), access, recorder);
            let made = kept
                .iter()
                .map(|size| mapping.handle(size * MIB, u64::MAX).unwrap().unwrap());
            let made: Vec<Handle> = made.collect();
            for (size, handle) in kept.iter().zip(made) {
                mapping.keep(handle, size * MIB);
            }
            let sources = Sources {
                remap: false,
                create: u64::MAX,
            };
            assert_eq!(mapping.grow(&mut heap, COMMON, need * MIB, 512, sources), Ok(true));
            assert!(heap.take(COMMON, need * MIB, 512).is_some(), "{kept:?}");
            assert_eq!(mapping.reserved(), reserved * MIB, "{kept:?} for {need}");
            assert_eq!(mapping.mapped() + mapping.kept(), mapping.reserved());
        }
    }
}
