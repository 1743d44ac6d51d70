//! The order checker as tests see it.

use super::Machine;
use super::checker::{Block, CheckerState};

/// The order checker of a machine. Tell it what an allocator hands out, right after, and takes back, right before.
#[derive(Debug, Clone, Copy)]
pub struct Checker<'a>(&'a Machine);

/// A block between [`Checker::begin_resize`] and [`Checker::end_resize`].
#[derive(Debug)]
#[must_use]
pub struct Resizing(Block);

impl Checker<'_> {
    /// Whether it is on. Off, it knows nothing and costs nothing.
    pub fn is_on(&self) -> bool {
        self.0.state.lock().checker.on
    }

    /// Switches it on or off; either way it forgets everything.
    pub fn switch(&self, on: bool) {
        self.0.state.lock().checker = CheckerState::new(on);
    }

    /// `size` bytes at `address` now belong to somebody who will use them next on `stream`; none: anywhere, at once.
    pub fn hand_out(&self, address: u64, size: u64, stream: Option<usize>) {
        let thread = self.0.threads.here();
        let mut state = self.0.state.lock();
        if state.checker.on && size > 0 {
            let slot = stream.and_then(|stream| self.0.any_slot(&mut state, thread, stream));
            state.hand_out(address, size, slot);
        }
    }

    /// The block's owner gives it back: work queued so far on `stream`, which may be dead, may still use it; none: work
    /// queued so far on any stream of the device.
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

    /// The block at `old` is now `size` bytes at `new`: bytes it had stay its own, new ones must be safe for anybody.
    pub fn resize(&self, old: u64, new: u64, size: u64) {
        let mut state = self.0.state.lock();
        if state.checker.on
            && let Some(block) = state.begin_resize(old)
        {
            state.end_resize(block, new, size);
        }
    }

    /// The block at `address` is about to be resized by a copy, at the end of which its memory may be anybody's. Nothing where
    /// the checker is off.
    pub fn begin_resize(&self, address: u64) -> Option<Resizing> {
        let mut state = self.0.state.lock();
        if !state.checker.on {
            return None;
        }
        state.begin_resize(address).map(Resizing)
    }

    /// A block that was resized is now `size` bytes at `new`; or is what it was, where that failed.
    pub fn end_resize(&self, resizing: Option<Resizing>, new: u64, size: u64) {
        if let Some(Resizing(block)) = resizing {
            self.0.state.lock().end_resize(block, new, size);
        }
    }

    /// Hand-outs that must not have been, with the history of both sides; the first thousand.
    pub fn violations(&self) -> Vec<String> {
        self.0.state.lock().checker.violations.clone()
    }

    /// Forgets the violations so far.
    pub fn clear_violations(&self) {
        self.0.state.lock().checker.violations.clear();
    }

    /// Blocks that are out.
    pub fn live_blocks(&self) -> usize {
        self.0.state.lock().checker.blocks.len()
    }

    /// Ranges it keeps something of: shows that history does not pile up.
    pub fn ranges_kept(&self) -> usize {
        self.0.state.lock().checker.ranges.len()
    }
}

impl Machine {
    /// The order checker.
    pub fn checker(&self) -> Checker<'_> {
        Checker(self)
    }
}
