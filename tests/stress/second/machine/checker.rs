//! The order checker, by the driver's clock, and a check of blocks' contents.

use super::super::books::{Block, Books};
use super::Machine;

/// Has the interface of the simulated device's checker: hand-outs and frees of an allocator.
#[derive(Clone, Copy)]
pub struct Checker<'m>(pub(super) &'m Machine);

/// The places of a block's tags: at its start, in each page, and at its end. No two overlap.
fn tags(address: u64, size: u64) -> impl Iterator<Item = *mut u64> {
    let whole = size / 8 * 8;
    let places = (0..whole).step_by(2 << 20).chain(whole.checked_sub(8));
    places.map(move |place| (address + place) as *mut u64)
}

impl Checker<'_> {
    fn extents(&self, what: &str, address: u64, size: u64) -> Vec<[u64; 2]> {
        let extents = self.0.sim.extents(address, size).unwrap_or_default();
        if extents.is_empty() || self.0.sim.backed(address, size) != 1 {
            let violation = format!("{what} of {address:#x} + {size:#x}, not all of which is mapped with access");
            self.0.books.lock().violations.push(violation);
            return Vec::new();
        }
        extents
    }

    fn write_tags(&self, serial: u64, address: u64, size: u64, extents: bool) {
        if extents {
            for tag in tags(address, size) {
                // SAFETY: the driver reports that the block is writable memory, and it belongs to the test.
                unsafe { tag.write_unaligned(serial) };
            }
        }
    }

    /// Checks that the first `size` bytes of the block have the tags that were written.
    fn compare(&self, books: &mut Books, block: &Block, address: u64, size: u64) {
        let (serial, had) = (block.serial, block.size);
        for tag in tags(address, had).filter(|tag| *tag as u64 + 8 <= address + size) {
            // SAFETY: as above.
            let found = unsafe { tag.read_unaligned() };
            if found != serial {
                let violation = format!("block {serial} at {address:#x} + {had:#x} has {found} at {tag:p}");
                return books.violations.push(violation);
            }
        }
    }

    pub fn hand_out(&self, address: u64, size: u64, on: Option<usize>) {
        let extents = self.extents("hand-out", address, size);
        let whole = !extents.is_empty();
        let mut books = self.0.books.lock();
        let now = self.0.sim.now();
        let start = match on {
            Some(on) if !books.captures(on) => now.max(self.0.sim.until(on)),
            _ => now,
        };
        let taker = books.taker(on, start);
        let serial = books.hand_out(address, size, extents, taker, now);
        drop(books);
        self.write_tags(serial, address, size, whole);
    }

    pub fn give_back(&self, address: u64, on: Option<usize>) {
        let until = on.map_or_else(|| self.0.sim.context_until(), |on| self.0.sim.done(on));
        let serial = self.0.serial_of(on);
        let mut books = self.0.books.lock();
        if let Some(block) = books.give_back(address, on, (serial, until)) {
            self.compare(&mut books, &block, address, block.size);
        }
    }

    /// The block's owner also uses it on a stream, with work queued so far.
    pub fn used(&self, address: u64, on: usize) {
        let serial = self.0.serial_of(Some(on));
        self.0.books.lock().used(address, on, (serial, self.0.sim.done(on)));
    }

    pub fn resize(&self, old: u64, new: u64, size: u64) {
        let block = self.begin_resize(old);
        self.end_resize(block, new, size);
    }

    pub fn begin_resize(&self, address: u64) -> Option<Block> {
        self.0.books.lock().begin_resize(address)
    }

    pub fn end_resize(&self, block: Option<Block>, new: u64, size: u64) {
        let Some(block) = block else { return };
        let extents = self.extents("resize", new, size);
        let whole = !extents.is_empty();
        let mut books = self.0.books.lock();
        if whole {
            // Only requested bytes have to be copied, and the size of a resizable block is what was requested.
            let kept = block.size.min(size);
            self.compare(&mut books, &block, new, kept);
        }
        let serial = block.serial;
        let now = self.0.sim.now();
        books.end_resize(block, new, size, extents, now);
        drop(books);
        self.write_tags(serial, new, size, whole);
    }

    pub fn violations(&self) -> Vec<String> {
        self.0.books.lock().violations.clone()
    }

    pub fn live_blocks(&self) -> usize {
        self.0.books.lock().blocks.len()
    }
}
