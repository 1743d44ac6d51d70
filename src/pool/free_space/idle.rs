//! What has been free for a while: the fewest bytes that were free in each of the last windows of time.
//!
//! The caller ends a window at regular times. What was free throughout several windows was needed in none of them, so it
//! can go back to the driver.

use super::{COMMON, FreeSpace, NodeId, NodeState, Owner, OwnerSpace};

/// A free range that is no guest, as [`FreeSpace::look`] found it. Another call may have taken it since.
#[derive(Debug, Clone, Copy)]
pub struct FreeRange {
    /// The node's number.
    pub id: NodeId,
    /// Whose it is.
    pub owner: Owner,
    /// Where it starts.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// How many windows in a row memory has to be free.
pub const WINDOWS: usize = 4;

/// The fewest bytes of something that were free, in this window and in each of the last ones.
#[derive(Debug, Clone, Copy, Default)]
pub struct IdleBytes {
    low: u64,
    windows: [u64; WINDOWS],
}

impl IdleBytes {
    /// So many bytes are free now.
    pub fn note(&mut self, free: u64) {
        self.low = self.low.min(free);
    }

    /// Ends the window. So many bytes are free now.
    pub fn end_window(&mut self, free: u64) {
        self.windows.rotate_right(1);
        self.windows[0] = self.low.min(free);
        self.low = free;
    }

    /// Bytes that were free throughout the last windows.
    pub fn idle(&self) -> u64 {
        self.windows.iter().copied().min().unwrap_or(0)
    }

    /// So many bytes more are free, which were idle elsewhere.
    pub fn add(&mut self, bytes: u64) {
        for free in self.windows.iter_mut().chain([&mut self.low]) {
            *free += bytes;
        }
    }

    /// So many of the idle bytes are gone.
    pub fn take(&mut self, bytes: u64) {
        for free in self.windows.iter_mut().chain([&mut self.low]) {
            *free = free.saturating_sub(bytes);
        }
    }
}

impl FreeSpace {
    /// Ends a window of time for every owner.
    pub fn end_window(&mut self) {
        for space in &mut self.spaces {
            space.idle.end_window(space.bytes);
            space.requested_before = std::mem::take(&mut space.requested);
        }
    }

    /// Gives up what the lists of owners without free space hold of the host's memory.
    pub fn shrink(&mut self) {
        self.spaces.iter_mut().for_each(|space| space.bins.shrink());
    }

    /// Bytes that `owner` did not need in the last windows.
    pub fn idle(&self, owner: Owner) -> u64 {
        let space = &self.spaces[owner.0 as usize];
        space.idle.idle().min(space.bytes)
    }

    /// Whether a block was handed out in the owner's name in the window that ended last.
    pub fn requested(&self, owner: Owner) -> bool {
        self.spaces[owner.0 as usize].requested_before
    }

    /// So many idle bytes of `owner` are gone, or set apart. An arena needs less then than it did.
    pub fn take_idle(&mut self, owner: Owner, bytes: u64) {
        let space = &mut self.spaces[owner.0 as usize];
        space.idle.take(bytes);
        if owner == COMMON {
            return;
        }
        let less = bytes.min(space.used_peak - space.used.min(space.used_peak));
        space.used_peak -= less;
        self.needs -= less;
    }

    /// Looks at `at_most` nodes from number `from` on, for free ranges that are no guests. Returns the number to go on with;
    /// none after the last node. A range that is free all the while and coalesces with no other keeps its number, so looks
    /// between which other calls came find it.
    pub fn look(&self, from: NodeId, at_most: usize, mut found: impl FnMut(FreeRange)) -> Option<NodeId> {
        let end = self.nodes.len().min(from as usize + at_most);
        for (id, node) in self.nodes.iter().enumerate().take(end).skip(from as usize) {
            #[cfg(test)]
            self.looks.count();
            if let NodeState::Free(owner) = node.state
                && node.home == owner
            {
                found(FreeRange {
                    id: id as NodeId,
                    owner,
                    offset: node.offset,
                    size: node.size,
                });
            }
        }
        (end < self.nodes.len()).then_some(end as NodeId)
    }

    /// Sets `size` bytes at `offset` in `range`, which are idle, apart: their home is common free space. They go there at once
    /// if they are behind an event up to `complete`, and otherwise once their work has completed. Until then they do not
    /// coalesce with what the owner frees later. False where the range has changed since it was found.
    pub fn set_apart(&mut self, range: FreeRange, offset: u64, size: u64, complete: u64) -> bool {
        let FreeRange { id, owner, .. } = range;
        let Some(node) = self.nodes.get(id as usize).filter(|node| node.home == owner) else {
            return false;
        };
        let event_number = node.event_number;
        let Some(id) = self.take_in(id, owner, offset, size) else {
            return false;
        };
        if event_number <= complete {
            self.release(id, COMMON, 0);
            self.spaces[0].idle.add(size);
        } else {
            self.release_to(id, owner, event_number, COMMON);
        }
        true
    }

    /// Notes that a block was handed out in the name of `owner`, from its own or from common free space.
    pub(in crate::pool::free_space) fn note_request(&mut self, owner: Owner) {
        for of in [owner, COMMON] {
            let OwnerSpace { idle, bytes, .. } = &mut self.spaces[of.0 as usize];
            idle.note(*bytes);
        }
        self.spaces[owner.0 as usize].requested = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_idle_that_no_window_needed() {
        let mut bytes = IdleBytes::default();
        for _ in 0..WINDOWS {
            assert_eq!(bytes.idle(), 0, "free for too short");
            bytes.end_window(100);
        }
        // The first window began without anything free.
        assert_eq!(bytes.idle(), 0);
        bytes.end_window(100);
        assert_eq!(bytes.idle(), 100);
        bytes.note(30);
        bytes.note(70);
        assert_eq!(bytes.idle(), 100, "the window has not ended");
        bytes.end_window(100);
        for _ in 1..WINDOWS {
            assert_eq!(bytes.idle(), 30);
            bytes.end_window(100);
        }
        assert_eq!(bytes.idle(), 30);
        bytes.end_window(100);
        assert_eq!(bytes.idle(), 100);
        bytes.take(60);
        assert_eq!(bytes.idle(), 40);
        bytes.end_window(40);
        assert_eq!(bytes.idle(), 40);
    }
}
