//! Work on streams: kernels, fills and copies.

use super::Machine;
use super::access::{Access, Effect};
use super::code::*;
use super::entries::NodeWork;
use super::functions::Call;
use super::queue::Work;
use super::state::MachineState;
use super::vector_clock::Position;

impl MachineState {
    /// Queues or captures work, and passes its uses of memory to the checker.
    pub(super) fn work(&mut self, slot: u32, work: NodeWork, persistent: u64) -> Result<()> {
        self.refuse_implicit(slot)?;
        if let Some((capture, queue)) = self.streams[slot as usize].capture {
            if persistent != 0 {
                return Err(CAPTURE_UNSUPPORTED);
            }
            return self.capture_node(capture, queue, work);
        }
        let position = self.submit(
            slot,
            Work {
                duration: work.duration,
                persistent,
                ..Work::default()
            },
        );
        self.apply(slot, &work, position);
        Ok(())
    }

    /// Applies work to memory, and records its uses. An access out of bounds gives the context a sticky error.
    pub(super) fn apply(&mut self, slot: u32, work: &NodeWork, position: Position) {
        let context = self.streams[slot as usize].context;
        let device = self.contexts[context].device;
        for &(address, bytes) in &work.ranges {
            if let Err(why) = self.memory.usable(address, bytes, Access::Device(device)) {
                self.fault(format!("{} on {} touches {why}", work.what, self.describe(position)));
                self.poison(context, ILLEGAL_ADDRESS);
                return;
            }
            self.note_use(address, bytes, position, work.what);
        }
        self.memory.perform(work.effect);
    }
}

impl Machine {
    /// A kernel of `duration` simulated nanoseconds that reads and writes `ranges` (address, bytes).
    pub fn launch(&self, stream: usize, duration: u64, ranges: &[(u64, u64)]) -> Result<()> {
        let (thread, mut state) = self.enter(Call::LaunchKernel)?;
        let slot = self.stream_slot(&mut state, thread, stream)?;
        let work = NodeWork {
            what: "kernel",
            duration,
            ranges: ranges.to_vec(),
            effect: Effect::None,
        };
        state.work(slot, work, 0)
    }

    /// When the work that is queued on `stream` now completes, in simulated nanoseconds; `u64::MAX` behind a persistent
    /// kernel. Not a driver call, so it neither waits nor counts as observing the work.
    pub fn work_ends(&self, stream: usize) -> Result<u64> {
        let thread = self.threads.here();
        let mut state = self.state.lock();
        let slot = self.stream_slot(&mut state, thread, stream)?;
        let tail = state.queues.tail(state.streams[slot as usize].queue);
        Ok(state.queues.done_at(&[tail]).max(self.tables.now()))
    }

    /// A kernel that runs until [`Machine::release_persistent`] is called with the number this returns.
    pub fn launch_persistent(&self, stream: usize, ranges: &[(u64, u64)]) -> Result<u64> {
        let (thread, mut state) = self.enter(Call::LaunchKernel)?;
        let slot = self.stream_slot(&mut state, thread, stream)?;
        let persistent = state.queues.new_persistent();
        let work = NodeWork {
            what: "persistent kernel",
            duration: 0,
            ranges: ranges.to_vec(),
            effect: Effect::None,
        };
        state.work(slot, work, persistent)?;
        Ok(persistent)
    }

    /// Ends a persistent kernel now; false where there is none of that number.
    pub fn release_persistent(&self, persistent: u64) -> bool {
        let mut state = self.state.lock();
        let now = self.tables.now();
        let found = persistent != 0 && state.queues.release(persistent, now);
        self.run_due_destructors(&mut state);
        self.released.notify_all();
        found
    }

    /// `cuMemsetD8Async`.
    pub fn fill_async(&self, address: u64, byte: u8, bytes: u64, stream: usize) -> Result<()> {
        let (thread, mut state) = self.enter(Call::MemsetAsync)?;
        let slot = self.stream_slot(&mut state, thread, stream)?;
        let device = state.contexts[state.streams[slot as usize].context].device;
        state
            .memory
            .usable(address, bytes, Access::Device(device))
            .map_err(|_| INVALID_VALUE)?;
        let work = NodeWork {
            what: "fill",
            duration: bytes / self.config.bytes_per_ns.max(1),
            ranges: vec![(address, bytes)],
            effect: Effect::Fill { address, byte, bytes },
        };
        state.work(slot, work, 0)
    }

    /// `cuMemcpyDtoDAsync`, and with host addresses `cuMemcpyHtoDAsync` and `cuMemcpyDtoHAsync`. A side that is neither
    /// device memory nor pinned memory of this machine counts as the host's own memory, and must be valid.
    pub fn copy_async(&self, to: u64, from: u64, bytes: u64, stream: usize) -> Result<()> {
        let (thread, mut state) = self.enter(Call::MemcpyAsync)?;
        let slot = self.stream_slot(&mut state, thread, stream)?;
        let device = state.contexts[state.streams[slot as usize].context].device;
        let mut ranges = Vec::new();
        for address in [to, from] {
            if state.memory.is_device(address) || state.memory.is_pinned(address, 1) {
                state
                    .memory
                    .usable(address, bytes, Access::Copy(device))
                    .map_err(|_| INVALID_VALUE)?;
                ranges.push((address, bytes));
            }
        }
        if ranges.is_empty() {
            return Err(INVALID_VALUE);
        }
        let work = NodeWork {
            what: "copy",
            duration: bytes / self.config.bytes_per_ns.max(1),
            ranges,
            effect: Effect::Copy { to, from, bytes },
        };
        state.work(slot, work, 0)
    }
}
