//! What the machine's lock guards.

use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

use super::MachineConfig;
use super::checker_state::CheckerState;
use super::code::{CONTEXT_IS_DESTROYED, INVALID_CONTEXT, Result};
use super::entries::{CaptureState, ContextState, EventState, ExecState, GraphLife, GraphState, StreamState};
use super::memory::MemoryState;
use super::number_map::NumberMap;
use super::objects::Objects;
use super::queue::Queues;
use super::tables::Tables;
use super::vector_clock::{Position, VectorClock};

pub(super) struct MachineState {
    pub(super) tables: Arc<Tables>,
    pub(super) ids: u64,
    pub(super) contexts: Vec<ContextState>,
    /// Handles of contexts and events are not reused.
    pub(super) handles_stay: bool,
    /// Indices of destroyed contexts.
    pub(super) free_contexts: Vec<usize>,
    /// Index of each device's primary context.
    pub(super) primaries: Vec<usize>,
    pub(super) streams: Vec<StreamState>,
    /// Slots of destroyed streams. The last one is reused first.
    pub(super) free_slots: Vec<u32>,
    pub(super) queues: Queues,
    pub(super) events: NumberMap<usize, EventState>,
    /// Handles of destroyed events. The last one is reused first.
    pub(super) free_events: Vec<usize>,
    pub(super) captures: Vec<CaptureState>,
    /// How many captures were invalidated by calls that are not exempt.
    pub(super) captures_ended: u64,
    /// Whether the running call is exempt ([`Machine::exempt`](super::Machine::exempt)).
    pub(super) in_exempt_call: bool,
    pub(super) graphs: NumberMap<usize, GraphState>,
    pub(super) execs: NumberMap<usize, ExecState>,
    pub(super) lives: NumberMap<u64, GraphLife>,
    pub(super) objects: Objects,
    pub(super) memory: MemoryState,
    pub(super) checker: CheckerState,
    pub(super) faults: Vec<String>,
    pub(super) vmm_unsafe: bool,
}

impl MachineState {
    pub(super) fn new(config: &MachineConfig, tables: Arc<Tables>) -> MachineState {
        let mut state = MachineState {
            tables,
            // Those of default streams come before.
            ids: 2,
            contexts: Vec::new(),
            handles_stay: false,
            free_contexts: Vec::new(),
            primaries: Vec::new(),
            streams: Vec::new(),
            free_slots: Vec::new(),
            queues: Queues::default(),
            events: NumberMap::default(),
            free_events: Vec::new(),
            captures: Vec::new(),
            captures_ended: 0,
            in_exempt_call: false,
            graphs: NumberMap::default(),
            execs: NumberMap::default(),
            lives: NumberMap::default(),
            objects: Objects::new(config.user_object_delay),
            memory: MemoryState::new(config),
            checker: CheckerState::new(config.checker),
            faults: Vec::new(),
            vmm_unsafe: config.vmm_unsafe_in_capture,
        };
        for device in 0..config.devices {
            state.contexts.push(ContextState::new(device, true));
            state.primaries.push(device as usize);
            let slot = &state.tables.contexts[device as usize];
            slot.device.store(device, Release);
            slot.made.store(1, Release);
        }
        state
    }

    /// A unique number in this machine, for ids of contexts, streams and captures.
    pub(super) fn new_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// An error unless the context is alive without a sticky error.
    pub(super) fn healthy(&self, context: usize) -> Result<()> {
        let context = &self.contexts[context];
        match (context.id, context.poison) {
            (0, _) => Err(CONTEXT_IS_DESTROYED),
            (_, 0) => Ok(()),
            (_, poison) => Err(poison),
        }
    }

    /// The thread's current context, if it is alive without a sticky error.
    pub(super) fn current(&self, thread: &super::ThreadState) -> Result<usize> {
        let context = thread.context.load(std::sync::atomic::Ordering::Relaxed);
        let context = context.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        self.healthy(context)?;
        Ok(context)
    }

    /// Records a fault. The first thousand are enough.
    pub(super) fn fault(&mut self, what: String) {
        if self.faults.len() < 1000 {
            self.faults.push(what);
        }
    }

    /// The host has observed the end of everything in `clock`.
    pub(super) fn observe(&mut self, clock: &VectorClock) {
        for &position in clock.entries() {
            self.observe_position(position);
        }
    }

    pub(super) fn observe_position(&mut self, (queue, count): Position) {
        let Some(q) = self.queues.get_mut(queue) else {
            return;
        };
        q.observed = q.observed.max(count);
        if q.dead && q.observed >= q.issued {
            let context = q.context;
            self.queues.remove(queue);
            self.contexts[context].queues.retain(|&other| other != queue);
        }
    }

    /// The host has observed the end of a queue, and so of everything that precedes it.
    pub(super) fn observe_tail(&mut self, queue: u32) {
        let clock = self.queues.tail_clock(queue);
        self.observe(&clock);
    }
}
