//! Stream capture: modes, forks and joins, and what ends a capture.

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::code::*;
use super::entries::{CaptureState, CapturedAt, NodeWork};
use super::functions::Call;
use super::queue::QueueKind;
use super::state::MachineState;
use super::tables::{CAPTURE_ACTIVE, CAPTURE_DEAD, CAPTURE_IMPLIED, CAPTURE_NONE};
use super::vector_clock::VectorClock;
use super::{Machine, ThreadState};

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`.
pub const MODE_GLOBAL: u32 = 0;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
pub const MODE_THREAD_LOCAL: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub const MODE_RELAXED: u32 = 2;

impl MachineState {
    /// Adds a stream to a capture.
    fn join(&mut self, at: usize, slot: u32) -> u32 {
        let id = self.captures[at].id;
        let stream = &self.streams[slot as usize];
        let (context, stream_id) = (stream.context, self.queues.get(stream.queue).map_or(0, |q| q.stream_id));
        let queue = self.queues.open(QueueKind::Virtual(id), context, stream_id);
        self.captures[at].members.push(slot);
        self.streams[slot as usize].capture = Some((id, queue));
        let graph = self.captures[at].graph;
        self.tie_to_graph(graph, queue);
        self.show_captures();
        queue
    }

    /// Publishes which streams capture, for queries.
    fn show_captures(&mut self) {
        self.tables.captures.store(self.captures.len() as u32, Release);
        let mut implied = vec![false; self.contexts.len()];
        for (slot, stream) in self.streams.iter().enumerate().filter(|(_, stream)| stream.alive) {
            let shown = match stream.capture {
                None => CAPTURE_NONE,
                Some((id, _)) => {
                    implied[stream.context] |= stream.kind == QueueKind::Blocking;
                    let dead = self.captures.iter().any(|capture| capture.id == id && capture.invalid);
                    if dead { CAPTURE_DEAD } else { CAPTURE_ACTIVE }
                }
            };
            self.tables.streams[slot].capture.store(shown, Release);
        }
        for context in self.contexts.iter().zip(implied).filter(|(context, _)| context.id != 0) {
            // A green context's default stream can be captured itself.
            if self.streams[context.0.legacy as usize].capture.is_some() {
                continue;
            }
            let shown = if context.1 { CAPTURE_IMPLIED } else { CAPTURE_NONE };
            self.tables.streams[context.0.legacy as usize]
                .capture
                .store(shown, Release);
        }
    }

    /// Invalidates a capture. It stays open until it is ended.
    pub(super) fn invalidate(&mut self, id: u64) {
        if let Some(capture) = self.captures.iter_mut().find(|capture| capture.id == id) {
            self.captures_ended += u64::from(!capture.invalid && !self.in_exempt_call);
            capture.invalid = true;
            self.show_captures();
        }
    }

    /// An error where the capture is not valid any more.
    pub(super) fn capturing(&self, id: u64) -> Result<usize> {
        match self.captures.iter().position(|capture| capture.id == id) {
            Some(at) if !self.captures[at].invalid => Ok(at),
            _ => Err(CAPTURE_INVALIDATED),
        }
    }

    pub(super) fn capture_node(&mut self, capture: u64, queue: u32, work: NodeWork) -> Result<()> {
        let at = self.capturing(capture)?;
        let position = self.queues.submit_virtual(queue, None, true);
        for &(address, bytes) in &work.ranges {
            self.note_use(address, bytes, position, work.what);
        }
        let graph = self.captures[at].graph;
        self.add_node(graph, work);
        Ok(())
    }

    /// A wait in which the stream, the event, or both capture.
    pub(super) fn wait_in_capture(&mut self, slot: u32, event: Option<CapturedAt>, clock: &VectorClock) -> Result<()> {
        let own = self.streams[slot as usize].capture;
        let running = event.filter(|at| self.captures.iter().any(|capture| capture.id == at.capture));
        match (own, running) {
            // A stream that captures may not wait for work outside its capture.
            (Some((capture, _)), None) => {
                self.capturing(capture)?;
                self.invalidate(capture);
                Err(if event.is_some() {
                    CAPTURED_EVENT
                } else {
                    CAPTURE_ISOLATION
                })
            }
            (Some((capture, queue)), Some(at)) if capture == at.capture => {
                self.capturing(capture)?;
                self.queues.submit_virtual(queue, Some(clock), false);
                Ok(())
            }
            (Some((capture, _)), Some(at)) => {
                self.invalidate(capture);
                self.invalidate(at.capture);
                Err(CAPTURE_MERGE)
            }
            (None, Some(at)) => {
                let place = self.capturing(at.capture)?;
                if self.streams[slot as usize].kind == QueueKind::Legacy {
                    self.invalidate(at.capture);
                    return Err(CAPTURE_IMPLICIT);
                }
                let queue = self.join(place, slot);
                self.queues.submit_virtual(queue, Some(clock), false);
                Ok(())
            }
            // The event was last recorded in a capture that has ended.
            (None, None) => Err(CAPTURED_EVENT),
        }
    }

    /// A call that the modes of captures may forbid. If they do, returns an error and invalidates the captures that
    /// forbid it.
    pub(super) fn refuse_unsafe(&mut self, thread: &ThreadState) -> Result<()> {
        if self.captures.is_empty() {
            return Ok(());
        }
        let mode = thread.mode.load(Relaxed);
        let hit = |capture: &CaptureState| match capture.thread == thread.number {
            true => capture.mode != MODE_RELAXED,
            false => mode == MODE_GLOBAL && capture.mode == MODE_GLOBAL,
        };
        if mode == MODE_RELAXED || !self.captures.iter().any(hit) {
            return Ok(());
        }
        for capture in self.captures.iter_mut().filter(|capture| hit(capture)) {
            self.captures_ended += u64::from(!capture.invalid && !self.in_exempt_call);
            capture.invalid = true;
        }
        self.show_captures();
        Err(CAPTURE_UNSUPPORTED)
    }

    /// A query of the identity of a stream, or with none of a context. It ends the capture of that stream, in any mode.
    fn refuse_identity(&mut self, thread: &ThreadState, slot: Option<usize>) -> Result<()> {
        if let Some(slot) = slot.filter(|slot| self.streams[*slot].alive) {
            if let Some((capture, _)) = self.streams[slot].capture {
                self.invalidate(capture);
                return Err(CAPTURE_UNSUPPORTED);
            }
            self.refuse_implicit(slot as u32)?;
        }
        self.refuse_unsafe(thread)
    }

    /// A call over a whole context invalidates every capture on its device, in any mode.
    pub(super) fn end_captures_of_device(&mut self, context: usize) -> Result<()> {
        let device = self.contexts[context].device;
        let mut hit = false;
        for capture in &mut self.captures {
            let here = |slot: &u32| self.contexts[self.streams[*slot as usize].context].device == device;
            if capture.members.iter().any(here) {
                self.captures_ended += u64::from(!capture.invalid && !self.in_exempt_call);
                capture.invalid = true;
                hit = true;
            }
        }
        if !hit {
            return Ok(());
        }
        self.show_captures();
        Err(CAPTURE_UNSUPPORTED)
    }

    /// The stream is being destroyed: a capture that began on it ends without a graph; another capture is invalidated.
    pub(super) fn abandon_capture(&mut self, slot: u32) {
        let Some((id, _)) = self.streams[slot as usize].capture else {
            return;
        };
        let Some(at) = self.captures.iter().position(|capture| capture.id == id) else {
            return;
        };
        if self.captures[at].origin == slot {
            let graph = self.captures[at].graph;
            self.close_capture(at);
            self.drop_graph(graph);
        } else {
            self.captures[at].invalid = true;
            self.captures[at].members.retain(|&member| member != slot);
            self.streams[slot as usize].capture = None;
            self.show_captures();
        }
    }

    fn close_capture(&mut self, at: usize) {
        let capture = self.captures.swap_remove(at);
        for slot in capture.members {
            self.streams[slot as usize].capture = None;
        }
        self.show_captures();
    }

    /// Whether every stream that joined has been joined back.
    fn joined(&self, at: usize) -> bool {
        let capture = &self.captures[at];
        let origin = self.queue_of(capture.origin);
        let Some(end) = self.queues.get(origin) else {
            return false;
        };
        capture.members.iter().all(|&slot| {
            let queue = self.queue_of(slot);
            queue == origin
                || self
                    .queues
                    .get(queue)
                    .is_none_or(|q| end.clock.get(queue) >= q.last_node)
        })
    }
}

impl Machine {
    /// The error of a query of the identity of a stream, or with none of a context or a device, where a capture forbids it.
    /// Exempt calls are those of a stand-in for another driver.
    #[inline]
    pub(super) fn may_identify(&self, thread: &ThreadState, slot: Option<usize>) -> Result<()> {
        let captures = self.tables.captures.load(Acquire) != 0 && self.config.ids_unsafe_in_capture;
        match captures && thread.exempt.load(Relaxed) == 0 {
            false => Ok(()),
            true => self.state.lock().refuse_identity(thread, slot),
        }
    }

    /// How many captures were invalidated by calls that are not exempt ([`Machine::exempt`]). Not a driver call.
    pub fn captures_ended(&self) -> u64 {
        self.state.lock().captures_ended
    }

    /// `cuStreamBeginCapture` with one of the `MODE_` numbers.
    pub fn stream_begin_capture(&self, stream: usize, mode: u32) -> Result<()> {
        let (thread, mut state) = self.enter(Call::StreamBeginCapture)?;
        let slot = self.stream_slot(&mut state, thread, stream)?;
        if mode > MODE_RELAXED {
            return Err(INVALID_VALUE);
        }
        let stream = &state.streams[slot as usize];
        if stream.kind == QueueKind::Legacy && state.contexts[stream.context].green_of.is_none() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        if state.streams[slot as usize].capture.is_some() {
            return Err(ILLEGAL_STATE);
        }
        let id = state.new_id();
        let graph = state.open_graph(&self.tables);
        let capture = CaptureState {
            id,
            graph,
            mode,
            thread: thread.number,
            origin: slot,
            invalid: false,
            members: Vec::new(),
        };
        state.captures.push(capture);
        let at = state.captures.len() - 1;
        state.join(at, slot);
        Ok(())
    }

    /// `cuStreamEndCapture`: the graph, which the caller destroys.
    pub fn stream_end_capture(&self, stream: usize) -> Result<usize> {
        let (thread, mut state) = self.enter(Call::StreamEndCapture)?;
        let slot = self.stream_slot(&mut state, thread, stream)?;
        let (id, _) = state.streams[slot as usize].capture.ok_or(ILLEGAL_STATE)?;
        let at = state
            .captures
            .iter()
            .position(|capture| capture.id == id)
            .ok_or(ILLEGAL_STATE)?;
        let capture = &state.captures[at];
        if capture.mode != MODE_RELAXED && capture.thread != thread.number {
            state.invalidate(id);
            return Err(CAPTURE_WRONG_THREAD);
        }
        if capture.origin != slot {
            state.invalidate(id);
            return Err(CAPTURE_UNMATCHED);
        }
        let (graph, invalid, joined) = (capture.graph, capture.invalid, state.joined(at));
        state.close_capture(at);
        if invalid || !joined {
            state.drop_graph(graph);
            self.run_due_destructors(&mut state);
            return Err(if invalid { CAPTURE_INVALIDATED } else { CAPTURE_UNJOINED });
        }
        Ok(graph)
    }

    /// `cuThreadExchangeStreamCaptureMode`: sets this thread's mode, returns the one before.
    pub fn exchange_capture_mode(&self, mode: u32) -> Result<u32> {
        let thread = self.query(Call::ThreadExchange)?;
        if mode > MODE_RELAXED {
            return Err(INVALID_VALUE);
        }
        let before = thread.mode.load(Relaxed);
        thread.mode.store(mode, Relaxed);
        Ok(before)
    }
}
