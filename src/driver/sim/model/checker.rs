//! The order checker as tests and tools use it. `checker_state` has its rules.

use super::Machine;
use super::checker_state::{CheckedBlock, CheckerState};

/// The order checker of a machine. Call it right after an allocator hands memory out, and right before the allocator
/// frees it. The methods call that handing out and giving back, to distinguish it from the driver's own allocations.
#[derive(Debug, Clone, Copy)]
pub struct Checker<'a>(&'a Machine);

/// A block between [`Checker::begin_resize`] and [`Checker::end_resize`].
#[derive(Debug)]
#[must_use]
pub struct Resizing(CheckedBlock);

impl Checker<'_> {
    /// Whether it is on. While off, it records nothing and costs nothing.
    pub fn is_on(&self) -> bool {
        self.0.state.lock().checker.on
    }

    /// Switches it on or off. Either way it forgets everything.
    pub fn switch(&self, on: bool) {
        self.0.state.lock().checker = CheckerState::new(on);
    }

    /// Hands out `size` bytes at `address`. The next use is on `stream`; without one, it may be anywhere, at once.
    pub fn hand_out(&self, address: u64, size: u64, stream: Option<usize>) {
        let thread = self.0.threads.here();
        let mut state = self.0.state.lock();
        if state.checker.on && size > 0 {
            let slot = stream.and_then(|stream| self.0.any_slot(&mut state, thread, stream));
            state.hand_out(address, size, slot);
        }
    }

    /// The block's owner frees it. Work queued so far on `stream`, which may be destroyed, may still use it; without a
    /// stream, work queued so far on any stream of the device.
    pub fn give_back(&self, address: u64, stream: Option<usize>) {
        let thread = self.0.threads.here();
        let mut state = self.0.state.lock();
        if state.checker.on {
            let slot = stream.and_then(|stream| self.0.any_slot(&mut state, thread, stream));
            state.give_back(address, slot);
        }
    }

    /// The block's owner also uses it on `stream`, with work queued so far.
    pub fn used(&self, address: u64, stream: usize) {
        let thread = self.0.threads.here();
        let mut state = self.0.state.lock();
        if let Some(block) = state.checker.blocks.get(&address).copied()
            && let Some(slot) = self.0.any_slot(&mut state, thread, stream)
        {
            for position in state.last_uses(&block, Some(slot)) {
                state.note_use(address, block.size, position, "declared use");
            }
        }
    }

    /// The block at `old` is now `size` bytes at `new`. It keeps the bytes that it had; new bytes must be safe on any
    /// stream.
    pub fn resize(&self, old: u64, new: u64, size: u64) {
        let mut state = self.0.state.lock();
        if state.checker.on
            && let Some(block) = state.begin_resize(old)
        {
            state.end_resize(block, new, size);
        }
    }

    /// The block at `address` is about to be resized by a copy, after which its old memory may be handed out again.
    /// Does nothing where the checker is off.
    pub fn begin_resize(&self, address: u64) -> Option<Resizing> {
        let mut state = self.0.state.lock();
        if !state.checker.on {
            return None;
        }
        state.begin_resize(address).map(Resizing)
    }

    /// A resized block is now `size` bytes at `new`. After a failed resize, these are its old place and size.
    pub fn end_resize(&self, resizing: Option<Resizing>, new: u64, size: u64) {
        if let Some(Resizing(block)) = resizing {
            self.0.state.lock().end_resize(block, new, size);
        }
    }

    /// Hand-outs that break the order, with the history of both sides; the first thousand.
    pub fn violations(&self) -> Vec<String> {
        self.0.state.lock().checker.violations.clone()
    }

    /// Forgets the violations so far.
    pub fn clear_violations(&self) {
        self.0.state.lock().checker.violations.clear();
    }

    /// How many blocks are handed out.
    pub fn live_blocks(&self) -> usize {
        self.0.state.lock().checker.blocks.len()
    }

    /// How many ranges the checker has records of. Tests see by it that old records are removed.
    pub fn tracked_ranges(&self) -> usize {
        self.0.state.lock().checker.ranges.len()
    }
}

impl Machine {
    /// The order checker.
    pub fn checker(&self) -> Checker<'_> {
        Checker(self)
    }
}
