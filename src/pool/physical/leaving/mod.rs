//! Memory that goes back to the driver while other threads may have the pool's lock.
//!
//! To unmap a handle takes tens of microseconds, and it may wait for work. So idle memory is taken out of the free space
//! under the lock, goes back without it, and leaves the books under the lock again. Meanwhile it counts as reserved, and
//! nothing is mapped at its place.

use super::*;
use crate::driver::DriverError;

mod begin;
mod end;

/// How much goes back.
#[derive(Debug, Clone, Copy)]
pub enum Quota {
    /// At most so many bytes.
    AtMost(u64),
    /// So many bytes or a little more, but nothing that the reserve needs.
    AtLeast(u64),
    /// So many bytes or a little more, in exchange for new memory: the reserve is no floor.
    Exchange(u64),
}

/// What becomes of a handle once it is unmapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pool::physical) enum Then {
    Release,
    Cache,
}

/// One handle, segment or range on its way back to the driver.
pub struct Leaving {
    /// Bytes of physical memory; none for a range, whose handles are cached.
    size: u64,
    memory: Memory,
    then: Then,
    /// How far it has come.
    state: Stage,
    /// Why it came no further.
    error: Option<DriverError>,
}

enum Memory {
    /// Mapped at this offset and address. The used node keeps its place.
    Handle(Handle, u64, u64, NodeId),
    /// As a handle. It could not be unmapped before.
    Stuck(Handle, u64, u64, NodeId),
    /// A handle without an address.
    Cached(Handle),
    /// The driver's allocation at this address, at that offset. The used node keeps its place.
    Segment(u64, u64, NodeId),
    /// What a dedicated allocation had.
    Range(Box<Range>),
}

struct Range {
    release: DeferredRelease,
    /// What was mapped of it when it left.
    mappings: Vec<(u64, u64)>,
    /// What is mapped elsewhere although nothing uses it.
    mapped: Vec<(u64, u64)>,
    found: Recovered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Held,
    Unmapped,
    Gone,
}

impl Leaving {
    /// Bytes of physical memory.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether it is a range, whose handles are cached.
    pub fn is_range(&self) -> bool {
        matches!(self.memory, Memory::Range(_))
    }

    fn new(size: u64, memory: Memory, then: Then) -> Leaving {
        Leaving {
            size,
            memory,
            then,
            state: Stage::Held,
            error: None,
        }
    }

    /// A handle that could not be unmapped before.
    pub(in crate::pool::physical) fn stuck(
        handle: Handle,
        offset: u64,
        address: u64,
        size: u64,
        node: NodeId,
    ) -> Leaving {
        Leaving::new(size, Memory::Stuck(handle, offset, address, node), Then::Cache)
    }

    /// Bytes that the pool will not hold any more.
    fn goes(&self) -> u64 {
        match self.then {
            Then::Release => self.size,
            Then::Cache => 0,
        }
    }

    /// Makes the driver calls. The pool's lock is not held; a context of the device is current.
    pub fn go(leaving: &mut [Leaving], calls: &DriverCalls) {
        leaving.iter_mut().for_each(|memory| memory.leave(calls));
        // A reservation stays while anything is mapped in it.
        let mapped = leaving.iter().filter_map(|memory| match &memory.memory {
            Memory::Range(range) => Some(&range.release.mappings),
            _ => None,
        });
        let mapped: Vec<(u64, u64)> = mapped.flatten().copied().collect();
        for memory in leaving {
            if let Memory::Range(range) = &mut memory.memory {
                range.mapped.extend(&mapped);
                if range.release.unreserve(calls, &range.mapped) {
                    memory.state = Stage::Gone;
                }
            }
        }
    }

    fn leave(&mut self, calls: &DriverCalls) {
        let size = self.size;
        match &mut self.memory {
            Memory::Range(range) => range.release.unmap(calls, &mut range.found),
            Memory::Segment(address, ..) => {
                let address = *address;
                self.advance(calls.free(address), Stage::Gone);
            }
            Memory::Handle(_, _, address, _) | Memory::Stuck(_, _, address, _) => {
                let address = *address;
                self.advance(calls.submit(|driver| driver.unmap(address, size)), Stage::Unmapped);
            }
            Memory::Cached(_) => {}
        }
        if self.then == Then::Release
            && let (Memory::Handle(handle, ..), Stage::Unmapped) | (Memory::Cached(handle), _) =
                (&self.memory, self.state)
        {
            let handle = *handle;
            self.advance(calls.submit(|driver| driver.release(handle)), Stage::Gone);
        }
    }

    fn advance(&mut self, outcome: Result<()>, state: Stage) {
        match outcome {
            Ok(()) => self.state = state,
            Err(error) => {
                tracing::warn!(%error, "idle memory could not be given back");
                self.error = Some(error);
            }
        }
    }
}
