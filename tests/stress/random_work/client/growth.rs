//! Resizes: what a block grows by is judged as a hand-out without a stream.

use trtalloc::allocator::RESIZABLE;

use super::{Block, Client};

impl Client<'_> {
    pub(super) fn resize(&mut self) {
        let start = self.random.below(self.blocks.len().max(1) as u64) as usize;
        let free = |block: &Block| block.resizable && block.pins == 0 && !self.captures(block.home);
        let Some(at) = (start..self.blocks.len()).find(|at| free(&self.blocks[*at])) else {
            return;
        };
        let Block {
            address, size, home, ..
        } = self.blocks[at];
        let new_size = match self.random.below(5) {
            0 => 1 + self.random.below(size),
            // Within what the rounding adds, most often.
            4 => size + 1 + self.random.below(511),
            1 => size + 1 + self.random.below(64 << 10),
            2 => size + 1 + self.random.below(4 << 20),
            _ => size * 2 + 1 + self.random.below(self.world.largest * 2),
        };
        let new = self.world.resize(address, size, new_size.min(self.world.largest * 8));
        if new != 0 {
            (self.blocks[at].address, self.blocks[at].size) = (new, new_size.min(self.world.largest * 8));
        }
        let Block { address, size, .. } = self.blocks[at];
        // A block that is not used may get back what it gave up while only work from before it is pending there.
        if self.random.one_in(2) {
            self.launch(home, &[(address, size)]);
        }
    }

    /// A block whose stream has just freed another one of nearly that size, with work pending. It mostly begins in the same
    /// memory. It shrinks and grows without any work on it.
    pub(super) fn grow_behind_another(&mut self) {
        let home = self.stream();
        if self.captures(home) {
            return;
        }
        let stream = Some(home);
        let size = 512 + self.random.size(self.world.largest / 2);
        let before = self.world.get(size, RESIZABLE, stream);
        if before == 0 {
            return;
        }
        self.launch(home, &[(before, size)]);
        self.world.put(before, stream);
        let mut size = size - self.random.below(512);
        let mut address = self.world.get(size, RESIZABLE, stream);
        if address == 0 {
            return;
        }
        for _ in 0..self.random.below(4) {
            let new_size = match self.random.below(3) {
                0 => 1 + self.random.below(size),
                1 => size + 1 + self.random.below(511),
                _ => size * 2,
            };
            let new = self.world.resize(address, size, new_size);
            if new != 0 {
                (address, size) = (new, new_size);
            }
        }
        self.blocks.push(Block {
            address,
            size,
            resizable: true,
            home,
            pins: 0,
            born: stream,
        });
    }
}
