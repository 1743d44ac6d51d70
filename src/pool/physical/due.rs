//! What is due: memory that goes back to the driver once the call that found it reusable gives the pool's lock up.
//!
//! The driver may wait before it unmaps or frees. So a call that finds such memory under the lock only notes it. Until the
//! memory goes, requests may have what is common free space of it.

use super::*;

/// What goes back to the driver next.
#[derive(Default)]
pub(in crate::pool::physical) struct Due {
    /// The memory of dedicated allocations that nothing uses any more.
    pub releases: Vec<DeferredRelease>,
    /// Blocks that were freed, as they lie in common free space: the range, the offset and the bytes.
    spans: Vec<(NodeId, u64, u64)>,
    /// As many bytes go back in total.
    bytes: u64,
    /// More is reserved than may stay reserved.
    excess: bool,
    /// What the driver refused to take back is tried again.
    retry: bool,
}

impl PhysicalMemory {
    /// A block was freed whose memory goes back: the `size` bytes at `offset`, which lie in the common range `range` now.
    /// What others have got of it by then does not go, and other free memory goes for it.
    pub fn note_due(&mut self, range: NodeId, (offset, size): (u64, u64)) {
        self.due.spans.push((range, offset, size));
        self.due.bytes += size / self.page * self.page;
    }

    /// Nothing uses a dedicated allocation any more. Its handles are cached, or go back too.
    pub fn note_due_block(&mut self, block: DedicatedMemory, give_back: bool) {
        if give_back && !block.is_malloc() {
            self.due.bytes += block.committed();
        }
        self.due.releases.push(block.into_release());
    }

    /// Nothing uses an old range of a block any more.
    pub fn note_due_range(&mut self, range: DeferredRelease) {
        self.due.releases.push(range);
    }

    /// More is reserved than may stay reserved.
    pub fn note_excess(&mut self) {
        self.due.excess = true;
    }

    /// What the driver refused to take back is to be tried again.
    pub fn note_retry(&mut self) {
        self.due.retry = true;
    }

    /// Whether something is due.
    #[inline]
    pub fn has_due(&self) -> bool {
        self.due.bytes > 0 || self.due.excess || self.due.retry || !self.due.releases.is_empty()
    }

    /// Takes what is tried again, if that is due.
    pub fn begin_leaving_again(&mut self) -> Vec<Leaving> {
        match std::mem::take(&mut self.due.retry) {
            true => self.begin_retrying(),
            false => Vec::new(),
        }
    }

    /// Takes the next memory of dedicated allocations that is due. See [`PhysicalMemory::begin_leaving`].
    pub fn begin_leaving_due(&mut self, at_most: usize) -> Vec<Leaving> {
        let first = self.due.releases.len().saturating_sub(at_most);
        let releases = self.due.releases.split_off(first);
        self.begin_releases(releases)
    }

    /// Takes the note of what else is due: the candidates in the freed blocks, the bytes that go back in total, and whether
    /// more is reserved than may stay.
    pub fn take_due(&mut self, free_space: &FreeSpace) -> (Candidates, u64, bool) {
        let mut candidates = Candidates::default();
        for (range, offset, size) in std::mem::take(&mut self.due.spans) {
            self.look_in_span(free_space, range, (offset, size), &mut candidates);
        }
        candidates.sort();
        let bytes = std::mem::take(&mut self.due.bytes);
        (candidates, bytes, std::mem::take(&mut self.due.excess))
    }
}
