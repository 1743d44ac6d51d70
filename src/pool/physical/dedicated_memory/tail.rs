//! The end of a resizable block: what a shrink leaves over, what is cut from it, and what it may not use yet.

use super::{Backing, DedicatedMemory, ahead};
use crate::driver::Handle;
use crate::pool::physical::deferred_release::DeferredRelease;

/// Handles that a shrink left over, which are pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingTail {
    /// The offset at which they begin.
    pub cut: u64,
    /// A number that distinguishes one shrink from another.
    pub number: u64,
}

/// Where the work of a block's stream on the block before it in the range may be pending. The block has the bytes that it was
/// requested with in the order of its stream, which that work is in, too. What it grows by has no stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remainder {
    /// The fewest bytes that the block ever had. Beyond, it may grow only once that work has completed.
    pub start: u64,
    /// The bytes from the start of the range that the work may use.
    pub touched: u64,
    /// Its number among what is pending.
    pub number: u64,
}

impl Remainder {
    /// Whether the work may use bytes that the block may grow by.
    pub fn limits(&self) -> bool {
        self.start < self.touched
    }

    /// A block that gets fewer bytes gives up some that the work may use.
    pub fn used(&self) -> u64 {
        self.start.min(self.touched)
    }
}

impl DedicatedMemory {
    /// See [`Cell::shrinks_at`](crate::pool::dedicated::Cell::shrinks_at). A graph may write to all that it was captured with.
    pub fn shrinks_at(&self) -> u64 {
        if self.capture != 0 || !self.resizable {
            return 0;
        }
        self.boundaries()
            .take_while(|at| *at < self.max_size())
            .last()
            .unwrap_or(0)
    }

    /// Where one handle ends and the next begins.
    pub(super) fn boundaries(&self) -> impl Iterator<Item = u64> {
        let handles: &[(Handle, u64)] = match &self.backing {
            Backing::Malloc(..) => &[],
            Backing::Mapped { handles, .. } => handles,
        };
        handles.iter().scan(0, |at, (_, size)| {
            *at += size;
            Some(*at)
        })
    }

    /// Where the whole handles begin that a block of `size` bytes, with its pages ahead, does not need.
    pub fn cut_for(&self, size: u64, page: u64) -> Option<u64> {
        self.cut_at(ahead(size, page))
    }

    /// As [`DedicatedMemory::cut_at`], behind what earlier blocks of the range have had, too.
    pub fn cut_behind_peak(&self, bytes: u64) -> Option<u64> {
        self.cut_at(bytes.max(self.range_peak))
    }

    /// Where whole handles begin behind the first `bytes` bytes, unless they are pending already.
    pub fn cut_at(&self, bytes: u64) -> Option<u64> {
        let end = self.max_size();
        self.boundaries().find(|at| *at >= bytes).filter(|at| *at < end)
    }

    /// A part of what the last shrink left over is needed again, for `size` bytes. The rest stays what it is: nothing
    /// has used it since.
    pub fn take_back_tail(&mut self, size: u64, page: u64) {
        let needed = ahead(size, page);
        let cut = self.boundaries().find(|at| *at >= needed);
        let cut = cut.filter(|at| *at < self.committed());
        self.pending_tail = self
            .pending_tail
            .and_then(|tail| cut.map(|cut| PendingTail { cut, ..tail }));
    }

    /// Gives up every handle from `cut` on, which lies between two of them: nothing uses them any more. They have to leave
    /// before the block is changed again.
    pub fn cut(&mut self, cut: u64) -> DeferredRelease {
        let Backing::Mapped {
            ranges,
            handles,
            committed,
        } = &mut self.backing
        else {
            return DeferredRelease::default();
        };
        let mut at = 0;
        let keep = handles.iter().take_while(|(_, size)| {
            at += size;
            at <= cut
        });
        let keep = keep.count();
        let mut deferred = DeferredRelease {
            handles: handles.split_off(keep),
            ..DeferredRelease::default()
        };
        for range in ranges.iter_mut().filter(|range| range.mapped > cut) {
            deferred.mappings.push((range.base + cut, range.mapped - cut));
            range.mapped = cut;
        }
        let cut_off = *committed - cut;
        *committed = cut;
        self.excess.take(cut_off);
        self.range_peak = self.range_peak.min(cut);
        if let Some(remainder) = &mut self.remainder {
            remainder.touched = remainder.touched.min(cut);
        }
        deferred
    }
}
