//! What has been free for a while: the fewest bytes that were free in each of the last windows of time.
//!
//! The caller ends a window at regular times. What was free throughout several windows was needed in none of them, so it
//! can go back to the driver.

use super::{COMMON, FreeSpace, NodeId, Owner, OwnerSpace};

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

    /// The free ranges of `owner` that are no guests: offset and size.
    pub fn own_ranges(&self, owner: Owner) -> impl Iterator<Item = (u64, u64)> + '_ {
        let own = self
            .ranges(owner)
            .filter(move |(id, ..)| self.nodes[*id as usize].home == owner);
        own.map(|(_, offset, size)| (offset, size))
    }

    /// Whether `owner` has guests, whose work has not completed or is not covered.
    pub fn has_guests(&self, owner: Owner) -> bool {
        self.spaces[owner.0 as usize].guests > 0
    }

    /// Sets memory of `owner`, which is idle, apart: its home is common free space, where it goes once its work has
    /// completed. Until then it does not coalesce with what `owner` frees later. Returns whether it was `owner`'s own.
    pub fn set_apart(&mut self, owner: Owner, offset: u64, size: u64) -> bool {
        let holds = |(_, at, bytes): &(NodeId, u64, u64)| *at <= offset && offset + size <= at + bytes;
        let range = self.ranges(owner).find(holds).map(|(id, ..)| &self.nodes[id as usize]);
        let Some(event_number) = range.filter(|node| node.home == owner).map(|node| node.event_number) else {
            return false;
        };
        let Some(id) = self.take_at(owner, offset, size) else {
            return false;
        };
        self.release_to(id, owner, event_number, COMMON);
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
