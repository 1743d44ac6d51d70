//! What a pool records of frees while the recorder is on.

use crate::driver::Stream;
use crate::history::{Action, Event};
use crate::pool::Pool;
use crate::pool::free_space::NodeId;
use crate::pool::physical::dedicated_memory::DedicatedMemory;
use crate::sync::atomic::Ordering;

impl Pool {
    /// Records that a block is being freed, or that its free has completed. No other request may have the block yet.
    #[inline]
    pub fn record_freed(&self, action: Action, id: NodeId, stream: Option<Stream>) {
        if self.recorder.is_on() {
            let block = self.blocks.get(id);
            let (address, requested) = (&block.address, &block.requested);
            let (address, requested) = (address.load(Ordering::Relaxed), requested.load(Ordering::Relaxed));
            self.marks.clear(id);
            let event = Event::new(action, self.device, address, requested);
            self.recorder.happened(event.on(Stream::recorded(stream)));
        }
    }

    /// Records that free space of a graph is common now. What was freed there has coalesced, so one event covers it.
    pub(in crate::pool) fn record_range_completed(&self, offset: u64, size: u64) {
        if self.recorder.is_on()
            && let Some(address) = self.addresses.address(offset)
        {
            self.recorder
                .happened(Event::new(Action::RangeCompleted, self.device, address, size));
        }
    }

    /// As [`Pool::record_freed`], for a dedicated allocation that is being freed.
    pub(in crate::pool) fn record_dedicated_free(&self, block: &DedicatedMemory, stream: Option<Stream>) {
        if self.recorder.is_on() {
            let event = Event::new(Action::FreeRequested, self.device, block.address, block.requested);
            self.recorder.happened(event.on(Stream::recorded(stream)));
            self.marks.forget(block.address);
        }
    }

    /// Records that a dedicated allocation has no user any more, and that its range is gone.
    pub(in crate::pool) fn record_dedicated_gone(&self, block: &DedicatedMemory) {
        // A block that was never handed out has no requested size.
        if !self.recorder.is_on() || block.requested == 0 {
            return;
        }
        let (address, bytes, mapped) = block.extent();
        let gone = if mapped {
            Action::SegmentUnmap
        } else {
            Action::SegmentFree
        };
        for (action, address, bytes) in [
            (Action::FreeCompleted, block.address, block.requested),
            (gone, address, bytes),
        ] {
            self.recorder.happened(Event::new(action, self.device, address, bytes));
        }
    }

    /// Records that memory of such a block was unmapped from `cut` on.
    pub(in crate::pool) fn record_cut(&self, block: &DedicatedMemory, before: u64) {
        let (address, bytes, _) = block.extent();
        if self.recorder.is_on() && before > bytes {
            let event = Event::new(Action::SegmentUnmap, self.device, address + bytes, before - bytes);
            self.recorder.happened(event);
        }
    }
}
