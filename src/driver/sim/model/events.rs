//! Events.

use super::code::*;
use super::entries::{CapturedAt, EventState};
use super::functions::Call;
use super::queue::Work;
use super::state::MachineState;
use super::tables::ObjectKind;
use super::vector_clock::{Position, VectorClock};
use super::{Machine, ThreadState};

/// A limit of a year or more counts as no limit.
const UNBOUNDED: u64 = 365 * 86_400 * 1_000_000_000;

impl MachineState {
    /// The queues of a context, and those of its green contexts.
    pub(super) fn queues_of(&self, context: usize) -> Vec<u32> {
        let greens = self.greens(context);
        let contexts = std::iter::once(context).chain(greens);
        contexts
            .flat_map(|context| self.contexts[context].queues.iter().copied())
            .collect()
    }

    /// Records all work of a context as it is now.
    pub(super) fn record_context(&mut self, context: usize, event: usize) {
        let mut tails = Vec::new();
        let mut clock = VectorClock::default();
        for queue in self.queues_of(context) {
            let Some(q) = self.queues.get(queue) else {
                continue;
            };
            if q.issued > q.observed {
                tails.push((queue, q.issued));
                clock.merge(&q.clock);
                clock.raise(queue, q.issued);
            }
        }
        if let Some(event) = self.events.get_mut(&event) {
            event.tails = tails;
            event.clock = clock;
            event.captured = None;
        }
    }

    fn record(&mut self, event: usize, slot: u32) -> Result<()> {
        let captured = match self.streams[slot as usize].capture {
            Some((capture, queue)) => {
                self.capturing(capture)?;
                let position = self.queues.submit_virtual(queue, None, false);
                Some(CapturedAt { capture, position })
            }
            None => None,
        };
        let position = match &captured {
            Some(at) => at.position,
            None => self.submit(slot, Work::default()),
        };
        let queues = &self.queues;
        let Some(event) = self.events.get_mut(&event) else {
            return Err(INVALID_HANDLE);
        };
        event.tails.clear();
        event.clock.clear();
        if let Some(q) = queues.get(position.0) {
            event.clock.merge(&q.clock);
            event.clock.retain(|&position| !queues.observed(position));
        }
        event.clock.raise(position.0, position.1);
        event.tails.push(position);
        event.captured = captured;
        Ok(())
    }

    fn wait(&mut self, slot: u32, event: usize) -> Result<()> {
        let Some(mut recorded) = self.events.remove(&event) else {
            return Err(INVALID_HANDLE);
        };
        let done = self.wait_for(slot, &mut recorded);
        self.events.insert(event, recorded);
        done
    }

    fn wait_for(&mut self, slot: u32, event: &mut EventState) -> Result<()> {
        if event.captured.is_some() || self.streams[slot as usize].capture.is_some() {
            return self.wait_in_capture(slot, event.captured, &event.clock);
        }
        let queues = &self.queues;
        event.clock.retain(|&position| !queues.observed(position));
        let work = Work {
            waits: &event.tails,
            order: Some(&event.clock),
            ..Work::default()
        };
        let behind = self.implied(slot).to_vec();
        self.queues
            .submit(&self.tables, self.streams[slot as usize].queue, work, &behind);
        Ok(())
    }
}

impl Machine {
    fn event<'a>(&self, state: &'a MachineState, event: usize) -> Result<&'a EventState> {
        state.events.get(&event).ok_or(INVALID_HANDLE)
    }

    /// `cuEventCreate` in the current context; in a green context, the event is the primary context's. It reuses
    /// the handle of the event that was destroyed last.
    pub fn event_create(&self) -> Result<usize> {
        let (thread, mut state) = self.enter(Call::EventCreate)?;
        let context = state.current(thread)?;
        let context = state.event_context(context);
        let event = match state.free_events.pop() {
            Some(event) if !state.handles_stay => event,
            _ => self.tables.handle(ObjectKind::Event, state.new_id() as usize),
        };
        let context_id = state.contexts[context].id;
        let fresh = EventState {
            context,
            context_id,
            tails: Vec::new(),
            clock: VectorClock::default(),
            captured: None,
        };
        state.events.insert(event, fresh);
        Ok(event)
    }

    /// `cuEventDestroy`.
    pub fn event_destroy(&self, event: usize) -> Result<()> {
        let (_, mut state) = self.enter(Call::EventDestroy)?;
        state.events.remove(&event).ok_or(INVALID_HANDLE)?;
        state.free_events.push(event);
        Ok(())
    }

    /// `cuEventRecord`.
    pub fn event_record(&self, event: usize, stream: usize) -> Result<()> {
        let (thread, mut state) = self.enter(Call::EventRecord)?;
        let slot = self.stream_slot(&mut state, thread, stream)?;
        let context = state.event_context(state.streams[slot as usize].context);
        if self.event(&state, event)?.context != context {
            return Err(INVALID_HANDLE);
        }
        state.refuse_implicit(slot)?;
        state.record(event, slot)
    }

    /// `cuStreamWaitEvent`. The event may belong to another context.
    pub fn stream_wait_event(&self, stream: usize, event: usize) -> Result<()> {
        let (thread, mut state) = self.enter(Call::StreamWaitEvent)?;
        let slot = self.stream_slot(&mut state, thread, stream)?;
        self.event(&state, event)?;
        state.refuse_implicit(slot)?;
        state.wait(slot, event)
    }

    /// What must complete for an event to be complete. An error where a query is not allowed.
    fn queryable(&self, state: &mut MachineState, thread: &ThreadState, event: usize) -> Result<Vec<Position>> {
        let recorded = self.event(state, event)?;
        state.healthy(recorded.context)?;
        if let Some(at) = recorded.captured {
            state.invalidate(at.capture);
            return Err(CAPTURED_EVENT);
        }
        let tails = recorded.tails.clone();
        state.refuse_unsafe(thread)?;
        Ok(tails)
    }

    fn event_seen(&self, state: &mut MachineState, event: usize) {
        if let Some(mut recorded) = state.events.remove(&event) {
            state.observe(&recorded.clock);
            recorded.tails.clear();
            recorded.clock.clear();
            state.events.insert(event, recorded);
        }
        self.run_due_destructors(state);
    }

    /// `cuEventQuery`: whether the work before its last record has completed. True for an event that was never
    /// recorded.
    pub fn event_query(&self, event: usize) -> Result<bool> {
        let (thread, mut state) = self.enter(Call::EventQuery)?;
        let tails = self.queryable(&mut state, thread, event)?;
        let done = state.queues.complete(&tails, self.tables.now());
        if done {
            self.event_seen(&mut state, event);
        }
        Ok(done)
    }

    /// `cuEventSynchronize`: moves the clock to the event's end.
    pub fn event_synchronize(&self, event: usize) -> Result<()> {
        let (thread, mut state) = self.enter(Call::EventSynchronize)?;
        let tails = self.queryable(&mut state, thread, event)?;
        self.finish(&mut state, &tails);
        self.event_seen(&mut state, event);
        Ok(())
    }

    /// Waits for an event, at most `limit` simulated nanoseconds, as a loop of queries does. Returns whether it is
    /// complete.
    pub fn event_wait(&self, event: usize, limit: u64) -> Result<bool> {
        let (thread, mut state) = self.enter(Call::EventQuery)?;
        let tails = self.queryable(&mut state, thread, event)?;
        if limit >= UNBOUNDED {
            self.finish(&mut state, &tails);
            self.event_seen(&mut state, event);
            return Ok(true);
        }
        let done = state.queues.done_at(&tails);
        let end = self.tables.now() + limit;
        self.tables.advance_to(done.min(end));
        if done > end {
            self.run_due_destructors(&mut state);
            return Ok(false);
        }
        self.event_seen(&mut state, event);
        Ok(true)
    }
}
