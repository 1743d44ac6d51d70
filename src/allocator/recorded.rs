//! Calls in a process that records, and snapshots.

use std::path::Path;
use std::time::Duration;

use super::*;
use crate::history::snapshot::{Format, Snapshot};
use crate::history::{Action, Event, Mark, RecordedCall, RecordingOptions};

/// How long a snapshot waits for each lock. At the end of a process, the thread that holds a lock may be gone.
const PATIENCE: Duration = Duration::from_secs(5);

impl Allocator {
    /// Allocates in a process where some allocator records, possibly this one. Tag 0 is none.
    pub(super) fn allocate_in_recording_process(&self, request: &Request, tag: Tag) -> Result<u64> {
        if self.recorder.is_on() {
            return self.allocate_recorded(request, tag);
        }
        self.allocate_with_tag(request, tag)
    }

    fn allocate_with_tag(&self, request: &Request, tag: Tag) -> Result<u64> {
        match tag {
            0 => self.allocate_directly(request),
            tag => self.allocate_tagged(request, tag),
        }
    }

    /// Frees in a process where some allocator records.
    pub(super) fn deallocate_in_recording_process(&self, address: u64, stream: Option<Stream>) -> Result<()> {
        if !self.recorder.is_on() {
            return self.deallocate_directly(address, stream);
        }
        let _stack = self.recorder.call(RecordedCall::Other);
        self.deallocate_as::<true>(address, stream)
    }

    /// Resizes in a process where some allocator records.
    pub(super) fn reallocate_in_recording_process(&self, address: u64, alignment: u64, new_size: u64) -> Result<u64> {
        if self.recorder.is_on() {
            self.reallocate_recorded(address, alignment, new_size)
        } else {
            self.reallocate_directly(address, alignment, new_size)
        }
    }

    fn allocate_recorded(&self, request: &Request, tag: Tag) -> Result<u64> {
        let _stack = self.recorder.call(RecordedCall::Allocation);
        let address = self.allocate_with_tag(request, tag)?;
        let stream = Stream::recorded(request.stream);
        let found = |pool| Some((pool, Pool::find(pool, address)?.0));
        match self.all_pools().find_map(found) {
            Some((pool, id)) => pool.remember(id, self.record_block(pool, address, request.size, stream, tag)),
            None => self.record_dedicated(address, request.size, stream, tag),
        }
        Ok(address)
    }

    /// Records a new dedicated allocation, and the memory that came with it.
    #[cold]
    fn record_dedicated(&self, address: u64, size: u64, stream: Option<u64>, tag: Tag) {
        let Some(pool) = self.pool_at(address) else { return };
        if let Some((start, bytes, mapped)) = pool.extent(address) {
            let came = if mapped {
                Action::SegmentMap
            } else {
                Action::SegmentAlloc
            };
            self.recorder.happened(Event::new(came, pool.device, start, bytes));
        }
        let mark = self.record_block(pool, address, size, stream, tag);
        Self::remember(pool, address, mark);
    }

    /// Resizes and records it. A snapshot shows a free and an allocation. If the block was copied, the pool has already
    /// recorded the old block's free, as for any other free.
    fn reallocate_recorded(&self, address: u64, alignment: u64, new_size: u64) -> Result<u64> {
        let _stack = self.recorder.call(RecordedCall::Allocation);
        let pool = self.pool_at(address);
        let before = pool.and_then(|pool| pool.extent(address));
        let requested = pool.and_then(|pool| pool.requested(address)).unwrap_or(0);
        let moved = self.reallocate_directly(address, alignment, new_size)?;
        let Some(pool) = pool else { return Ok(moved) };
        let record = |action, address, bytes| {
            if bytes > 0 {
                self.recorder.happened(Event::new(action, pool.device, address, bytes));
            }
        };
        let mapped = matches!(before, Some((.., true)));
        if moved == address || mapped {
            record(Action::Freed, address, requested);
        }
        match (before, pool.extent(moved)) {
            (Some((from, had, true)), Some((to, has, true))) if from == to => {
                record(Action::SegmentMap, to + had, has.saturating_sub(had));
                record(Action::SegmentUnmap, to + has, had.saturating_sub(has));
            }
            (Some((from, had, true)), Some((to, has, true))) => {
                record(Action::SegmentUnmap, from, had);
                record(Action::SegmentMap, to, has);
                pool.forget(address);
            }
            (_, Some((to, has, false))) if moved != address => record(Action::SegmentAlloc, to, has),
            // It was copied out of the pool's range, into pages of its own.
            (None, Some((to, has, true))) => record(Action::SegmentMap, to, has),
            _ => {}
        }
        let mark = self.recorder.allocated(Event {
            tag: pool.tag_at(moved),
            resized: true,
            ..Event::new(Action::Alloc, pool.device, moved, new_size)
        });
        Self::remember(pool, moved, mark);
        Ok(moved)
    }

    fn remember(pool: &Pool, address: u64, mark: Mark) {
        match pool.find(address) {
            Some((id, _)) => pool.remember(id, mark),
            None => pool.remember_dedicated(address, mark),
        }
    }

    /// Records an allocation and returns what the block has to remember.
    fn record_block(&self, pool: &Pool, address: u64, size: u64, stream: Option<u64>, tag: Tag) -> Mark {
        self.recorder.allocated(Event {
            tag,
            ..Event::new(Action::Alloc, pool.device, address, size).on(stream)
        })
    }

    /// Begins, changes or ends recording. `options` are those of `trtalloc_history`, as text.
    pub fn history(&self, options: &str) -> Result<()> {
        process::usable()?;
        let options = RecordingOptions::parse(options)?;
        options.device.map_or(Ok(()), |device| self.check_device(device))?;
        self.recorder.set(options)
    }

    /// The recorder of this allocator.
    #[doc(hidden)]
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Copies the state of every device and the history that led to it. Other threads wait only while the state is
    /// copied.
    pub fn snapshot(&self) -> Result<Snapshot> {
        if process::forked() {
            process::usable()?;
        }
        let busy = || Error::Unsupported("a snapshot: the memory is in use by a call that does not end".into());
        let pools: Vec<&Pool> = self.all_pools().collect();
        let mut stats = Vec::with_capacity(pools.len());
        for cache in self.caches.all() {
            drop(cache.inner.lock_for(PATIENCE).ok_or_else(busy)?);
        }
        for pool in &pools {
            drop(pool.inspect(PATIENCE).ok_or_else(busy)?);
            stats.push(pool.stats());
        }
        let mut held = Vec::with_capacity(pools.len());
        for pool in &pools {
            held.push(pool.inspect(PATIENCE).ok_or_else(busy)?);
        }
        // No memory is freed or allocated while these locks are held. A thread that has just allocated may not have
        // recorded it yet.
        let mut streams = Vec::new();
        for cache in self.caches.all() {
            streams.push(cache.inner.lock_for(PATIENCE).ok_or_else(busy)?);
        }
        let mut devices: Vec<_> = held.iter().map(|pool| pool.device()).collect();
        if self.recorder.is_on() {
            for device in &devices {
                let active = device.segments.iter().map(|segment| segment.sums().1).sum();
                self.recorder
                    .happened(Event::new(Action::Snapshot, device.device, 0, active));
            }
        }
        let now = self.recorder.now();
        drop(streams);
        drop(held);
        for (device, stats) in devices.iter_mut().zip(stats) {
            device.stats = stats;
        }
        Ok(Snapshot {
            expandable: devices
                .iter()
                .flat_map(|device| &device.segments)
                .any(|of| of.expandable),
            devices,
            history: self.recorder.history(now),
        })
    }

    /// Writes a snapshot to `path`. The suffix selects the format: .pickle, .json or .html.
    pub fn write_snapshot(&self, path: &Path) -> Result<()> {
        Format::of(path)?;
        self.snapshot()?.write(path)
    }
}
