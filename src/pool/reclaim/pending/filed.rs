//! What was freed and waits for the work of all contexts, while no event covers it yet.

use super::Freed;

/// All of it. A batch of context events takes it as a whole.
#[derive(Default)]
pub struct Filed {
    freed: Vec<Freed>,
    /// Bytes, without what was filed again and what shrinks left over: those are no reason to cover.
    bytes: u64,
    /// How many of it are dedicated allocations, or what shrinks left over.
    dedicated: usize,
}

impl Filed {
    /// Adds what counts for so many bytes.
    pub fn push(&mut self, freed: Freed, bytes: u64) {
        self.bytes += bytes;
        self.dedicated += usize::from(!matches!(freed, Freed::Block { .. }));
        self.freed.push(freed);
    }

    /// Takes it out.
    pub fn take(&mut self) -> Vec<Freed> {
        std::mem::take(self).freed
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Freed> {
        self.freed.iter()
    }

    /// How many frees it is.
    pub fn count(&self) -> usize {
        self.freed.len()
    }

    pub fn is_empty(&self) -> bool {
        self.freed.is_empty()
    }

    /// Bytes that were freed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a dedicated allocation is among it, or what a shrink left over.
    pub fn has_dedicated(&self) -> bool {
        self.dedicated > 0
    }
}
