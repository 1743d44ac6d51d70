//! Streams: handles, queries, work.

use std::sync::atomic::{Ordering::Acquire, Ordering::Release};

use super::code::*;
use super::entries::StreamState;
use super::functions::Call;
use super::queue::{QueueKind, Work};
use super::state::MachineState;
use super::tables::{CAPTURE_DEAD, CAPTURE_IMPLIED, ObjectKind, STREAM_SLOTS};
use super::vector_clock::{Position, VectorClock};
use super::{Machine, ThreadState, abort};

impl MachineState {
    /// A new stream in the slot that was freed last.
    pub(super) fn open_stream(&mut self, context: usize, kind: QueueKind) -> Result<u32> {
        let slot = match self.free_slots.pop() {
            Some(slot) => slot,
            None if self.streams.len() < STREAM_SLOTS => self.streams.len() as u32,
            None => return Err(OUT_OF_MEMORY),
        };
        let id = self.new_id();
        let queue = self.queues.open(kind, context, id);
        let stream = StreamState {
            alive: true,
            context,
            kind,
            queue,
            thread: 0,
            capture: None,
        };
        match self.streams.get_mut(slot as usize) {
            Some(place) => *place = stream,
            None => self.streams.push(stream),
        }
        let state = &mut self.contexts[context];
        state.queues.push(queue);
        if kind == QueueKind::Blocking {
            state.blocking.push(queue);
        }
        let entry = &self.tables.streams[slot as usize];
        entry.context.store(context as u32, Release);
        entry.capture.store(0, Release);
        entry.poison.store(self.contexts[context].poison, Release);
        entry.id.store(id, Release);
        Ok(slot)
    }

    /// Frees the handle. The queued work continues.
    pub(super) fn close_stream(&mut self, slot: u32) {
        self.abandon_capture(slot);
        self.tables.streams[slot as usize].id.store(0, Release);
        let stream = &mut self.streams[slot as usize];
        stream.alive = false;
        let (queue, context) = (stream.queue, stream.context);
        self.free_slots.push(slot);
        self.contexts[context].blocking.retain(|&other| other != queue);
        if let Some(q) = self.queues.get_mut(queue) {
            q.dead = true;
            if q.observed >= q.issued {
                self.queues.remove(queue);
                self.contexts[context].queues.retain(|&other| other != queue);
            }
        }
    }

    /// The queues that the next operation of a stream implicitly waits for: the rules of the legacy stream.
    pub(super) fn implied(&self, slot: u32) -> &[u32] {
        let stream = &self.streams[slot as usize];
        let context = &self.contexts[stream.context];
        match stream.kind {
            QueueKind::Legacy => &context.blocking,
            QueueKind::Blocking => std::slice::from_ref(&self.streams[context.legacy as usize].queue),
            QueueKind::NonBlocking | QueueKind::Virtual(_) => &[],
        }
    }

    /// Queues work on a stream that does not capture.
    pub(super) fn submit(&mut self, slot: u32, work: Work<'_>) -> Position {
        let behind = self.implied(slot).to_vec();
        self.queues
            .submit(&self.tables, self.streams[slot as usize].queue, work, &behind)
    }

    /// The queue that a stream's work goes to now: its own, or the one in a capture.
    pub(super) fn queue_of(&self, slot: u32) -> u32 {
        let stream = &self.streams[slot as usize];
        stream.capture.map_or(stream.queue, |(_, queue)| queue)
    }

    /// An error for the legacy stream while a blocking stream of its context captures. The call invalidates that
    /// capture.
    pub(super) fn refuse_implicit(&mut self, slot: u32) -> Result<()> {
        if self.streams[slot as usize].kind != QueueKind::Legacy || self.captures.is_empty() {
            return Ok(());
        }
        let context = self.streams[slot as usize].context;
        let blocking = |stream: &StreamState| stream.context == context && matches!(stream.kind, QueueKind::Blocking);
        let hit: Vec<u64> = self
            .streams
            .iter()
            .filter(|s| s.alive && blocking(s))
            .filter_map(|s| s.capture.map(|(capture, _)| capture))
            .collect();
        for capture in &hit {
            self.invalidate(*capture);
        }
        if hit.is_empty() { Ok(()) } else { Err(CAPTURE_IMPLICIT) }
    }
}

impl Machine {
    /// The slot of a handle, alive or destroyed. It takes a lock only where a thread first uses its own default stream.
    #[inline]
    fn slot(&self, thread: &ThreadState, handle: usize) -> Result<usize> {
        if handle <= 2 {
            return match self.default_stream_slot(thread, handle)? {
                Some(slot) => Ok(slot),
                None => self.open_default_stream(&mut self.state.lock(), thread),
            };
        }
        Ok(self.ordinary_slot(handle))
    }

    #[inline]
    fn ordinary_slot(&self, handle: usize) -> usize {
        match self.tables.place(ObjectKind::Stream, handle) {
            Some(slot) if slot < STREAM_SLOTS => slot,
            _ => abort(&format!("{handle:#x} was never a stream of this machine")),
        }
    }

    /// The slot of a live stream whose context has no sticky error, for calls under the lock.
    pub(super) fn stream_slot(&self, state: &mut MachineState, thread: &ThreadState, handle: usize) -> Result<u32> {
        let slot = match handle <= 2 {
            false => self.ordinary_slot(handle),
            true => match self.default_stream_slot(thread, handle)? {
                Some(slot) => slot,
                None => self.open_default_stream(state, thread)?,
            },
        };
        match state.streams.get(slot) {
            Some(stream) if stream.alive => {
                state.healthy(stream.context)?;
                Ok(slot as u32)
            }
            _ => Self::dead(handle),
        }
    }

    /// For the checker: the slot of a stream that may be destroyed, or of a default stream, which is made at its first
    /// use. `None` for a default stream without a context.
    pub(super) fn any_slot(&self, state: &mut MachineState, thread: &ThreadState, handle: usize) -> Option<u32> {
        let slot = match handle <= 2 {
            true => match self.default_stream_slot(thread, handle).ok()? {
                Some(slot) => slot,
                None => self.open_default_stream(state, thread).ok()?,
            },
            false => self.tables.place(ObjectKind::Stream, handle)?,
        };
        (slot < state.streams.len()).then_some(slot as u32)
    }

    #[cold]
    fn dead(handle: usize) -> ! {
        abort(&format!("the stream {handle:#x} was destroyed"))
    }

    /// `cuStreamGetId`: unique for the machine's life. The handles of default streams have the same ids in every context and
    /// thread, because CUDA says that the id is the handle's. A query, which a capture forbids as an unsafe call. It ends the
    /// capture of the stream itself in any mode.
    #[inline]
    pub fn stream_id(&self, stream: usize) -> Result<u64> {
        let thread = self.query(Call::StreamGetId)?;
        if !self.config.stream_ids() {
            return Err(NOT_SUPPORTED);
        }
        let slot = self.slot(thread, stream)?;
        match self.tables.streams[slot].id.load(Acquire) {
            0 => Self::dead(stream),
            id => self.may_identify(thread, Some(slot)).map(|()| match stream {
                0..=2 => stream.max(1) as u64,
                _ => id,
            }),
        }
    }

    /// `cuStreamGetCtx`. A query, which a capture forbids as [`Machine::stream_id`].
    pub fn stream_context(&self, stream: usize) -> Result<usize> {
        let thread = self.query(Call::StreamGetCtx)?;
        let at = self.slot(thread, stream)?;
        let slot = &self.tables.streams[at];
        if slot.id.load(Acquire) == 0 {
            Self::dead(stream);
        }
        self.may_identify(thread, Some(at))?;
        Ok(self
            .tables
            .handle(ObjectKind::Context, slot.context.load(Acquire) as usize))
    }

    /// `cuStreamGetCtx_v2`: the context, of a green context's stream the primary one, and the green context or 0. A
    /// query, as [`Machine::stream_context`].
    pub fn stream_contexts(&self, stream: usize) -> Result<(usize, usize)> {
        let own = self.stream_context(stream)?;
        let place = self.context_place(own)?;
        Ok(match self.state.lock().contexts[place].green_of {
            Some(primary) => (self.tables.handle(ObjectKind::Context, primary), own),
            None => (own, 0),
        })
    }

    /// `cuStreamIsCapturing`: 0 no, 1 yes, 2 invalidated. For the legacy stream while a blocking stream captures, it
    /// returns `CAPTURE_IMPLICIT` and invalidates nothing. For a context with a sticky error it returns that error. A
    /// query.
    #[inline]
    pub fn stream_is_capturing(&self, stream: usize) -> Result<u32> {
        let thread = self.query(Call::StreamIsCapturing)?;
        let slot = &self.tables.streams[self.slot(thread, stream)?];
        if slot.id.load(Acquire) == 0 {
            Self::dead(stream);
        }
        let poison = slot.poison.load(Acquire);
        if poison != 0 {
            return Err(poison);
        }
        match slot.capture.load(Acquire) {
            CAPTURE_IMPLIED => Err(CAPTURE_IMPLICIT),
            state => Ok(state),
        }
    }

    /// `cuStreamGetCaptureInfo`: id and graph. `None` where the stream does not capture or its capture was invalidated.
    /// A query.
    pub fn stream_capture_info(&self, stream: usize) -> Result<Option<(u64, usize)>> {
        let thread = self.query(Call::StreamGetCaptureInfo)?;
        let mut state = self.state.lock();
        let slot = self.stream_slot(&mut state, thread, stream)?;
        match self.tables.streams[slot as usize].capture.load(Acquire) {
            CAPTURE_IMPLIED => return Err(CAPTURE_IMPLICIT),
            CAPTURE_DEAD => return Ok(None),
            _ => {}
        }
        Ok(state.streams[slot as usize].capture.and_then(|(capture, _)| {
            let found = state.captures.iter().find(|c| c.id == capture)?;
            Some((found.id, found.graph))
        }))
    }

    /// `cuStreamCreate` in the current context. It reuses the handle of the stream that was destroyed last.
    pub fn stream_create(&self, non_blocking: bool) -> Result<usize> {
        let (thread, mut state) = self.enter(Call::StreamCreate)?;
        let context = state.current(thread)?;
        let kind = if non_blocking {
            QueueKind::NonBlocking
        } else {
            QueueKind::Blocking
        };
        let slot = state.open_stream(context, kind)?;
        Ok(self.tables.handle(ObjectKind::Stream, slot as usize))
    }

    /// `cuStreamDestroy`: returns at once, and queued work continues. The default streams cannot be destroyed.
    pub fn stream_destroy(&self, stream: usize) -> Result<()> {
        let (thread, mut state) = self.enter(Call::StreamDestroy)?;
        if stream <= 2 {
            return Err(INVALID_HANDLE);
        }
        let slot = self.stream_slot(&mut state, thread, stream)?;
        state.close_stream(slot);
        Ok(())
    }

    /// `cuStreamQuery`: whether all queued work has completed. For the legacy stream this includes the blocking
    /// streams.
    pub fn stream_query(&self, stream: usize) -> Result<bool> {
        let (thread, mut state) = self.enter(Call::StreamQuery)?;
        let (tails, clock) = self.waitable(&mut state, thread, stream)?;
        let done = state.queues.complete(&tails, self.tables.now());
        if done {
            state.observe(&clock);
            self.run_due_destructors(&mut state);
        }
        Ok(done)
    }

    /// `cuStreamSynchronize`: moves the clock to the end of what is queued.
    pub fn stream_synchronize(&self, stream: usize) -> Result<()> {
        let (thread, mut state) = self.enter(Call::StreamSynchronize)?;
        let (tails, clock) = self.waitable(&mut state, thread, stream)?;
        self.finish(&mut state, &tails);
        // The context may have got a sticky error meanwhile.
        let slot = self.any_slot(&mut state, thread, stream).ok_or(CONTEXT_IS_DESTROYED)?;
        state.healthy(state.streams[slot as usize].context)?;
        state.observe(&clock);
        self.run_due_destructors(&mut state);
        Ok(())
    }

    /// The present end of a stream and what precedes it. An error where a wait or a query is not allowed.
    fn waitable(
        &self,
        state: &mut MachineState,
        thread: &ThreadState,
        stream: usize,
    ) -> Result<(Vec<Position>, VectorClock)> {
        let slot = self.stream_slot(state, thread, stream)?;
        state.refuse_implicit(slot)?;
        if let Some((capture, _)) = state.streams[slot as usize].capture {
            state.invalidate(capture);
            return Err(CAPTURE_UNSUPPORTED);
        }
        state.refuse_unsafe(thread)?;
        let mut queues = vec![state.streams[slot as usize].queue];
        if state.streams[slot as usize].kind == QueueKind::Legacy {
            queues.extend(state.implied(slot));
        }
        let mut clock = VectorClock::default();
        queues
            .iter()
            .for_each(|&queue| clock.merge(&state.queues.tail_clock(queue)));
        Ok((queues.iter().map(|&queue| state.queues.tail(queue)).collect(), clock))
    }
}
