//! Contexts: primary and other, each thread's stack of them, and what a reset or a sticky error does.

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::calls::Call;
use super::code::*;
use super::hot::{CONTEXT_SLOTS, HandleKind};
use super::queue::QueueKind;
use super::state::State;
use super::{Machine, ThreadState, hot};

#[derive(Debug)]
pub(super) struct ContextState {
    /// 0: not alive.
    pub(super) id: u64,
    pub(super) device: u32,
    pub(super) primary: bool,
    pub(super) retained: u32,
    /// A sticky error; 0: none.
    pub(super) poison: u32,
    /// Slot of the legacy stream.
    pub(super) legacy: u32,
    /// Queues of its streams, also of destroyed ones whose end nobody has seen.
    pub(super) queues: Vec<u32>,
    /// Queues of its living blocking streams.
    pub(super) blocking: Vec<u32>,
}

impl ContextState {
    pub(super) fn new(device: u32, primary: bool) -> ContextState {
        ContextState {
            id: 0,
            device,
            primary,
            retained: 0,
            poison: 0,
            legacy: 0,
            queues: Vec::new(),
            blocking: Vec::new(),
        }
    }
}

impl State {
    /// Brings a context to life, with a new id and a new legacy stream.
    pub(super) fn revive(&mut self, context: usize) -> Result<()> {
        let id = self.new_id();
        self.contexts[context].id = id;
        self.contexts[context].poison = 0;
        let legacy = self
            .open_stream(context, QueueKind::Legacy)
            .inspect_err(|_| self.contexts[context].id = 0)?;
        self.contexts[context].legacy = legacy;
        let slot = &self.hot.contexts[context];
        slot.device.store(self.contexts[context].device, Release);
        slot.legacy.store(legacy, Release);
        slot.made.store(1, Release);
        slot.id.store(id, Release);
        Ok(())
    }

    /// Ends a context and everything in it. Its work counts as over.
    pub(super) fn kill_context(&mut self, context: usize) {
        let id = self.contexts[context].id;
        if id == 0 {
            return;
        }
        self.hot.contexts[context].id.store(0, Release);
        for slot in 0..self.streams.len() as u32 {
            let stream = &self.streams[slot as usize];
            if stream.alive && stream.context == context {
                self.close_stream(slot);
            }
        }
        for queue in std::mem::take(&mut self.contexts[context].queues) {
            self.queues.remove(queue);
        }
        self.contexts[context].blocking.clear();
        self.contexts[context].id = 0;
        self.contexts[context].poison = 0;
        self.events.retain(|_, event| event.context_id != id);
        self.drop_context_memory(context, id);
    }

    /// Marks a context with a sticky error.
    pub(super) fn poison(&mut self, context: usize, code: u32) {
        if self.contexts[context].poison == 0 {
            self.contexts[context].poison = code;
            for (slot, stream) in self.streams.iter().enumerate() {
                if stream.alive && stream.context == context {
                    self.hot.streams[slot].poison.store(code, Release);
                }
            }
        }
    }
}

fn set_current(thread: &ThreadState, stack: &[usize]) {
    thread.context.store(stack.last().copied().unwrap_or(0), Relaxed);
}

impl Machine {
    fn context_place(&self, handle: usize) -> Result<usize> {
        let place = self.hot.place(HandleKind::Context, handle).ok_or(INVALID_CONTEXT)?;
        match self
            .hot
            .contexts
            .get(place)
            .is_some_and(|slot| slot.made.load(Acquire) != 0)
        {
            true => Ok(place),
            false => Err(INVALID_CONTEXT),
        }
    }

    pub(super) fn device(&self, device: i32) -> Result<usize> {
        usize::try_from(device)
            .ok()
            .filter(|&d| d < self.config.devices as usize)
            .ok_or(INVALID_DEVICE)
    }

    /// `cuCtxGetCurrent`: 0 where the thread has none. A query.
    #[inline]
    pub fn context_current(&self) -> Result<usize> {
        let thread = self.ask(Call::CtxGetCurrent)?;
        Ok(match thread.context.load(Relaxed) {
            0 => 0,
            context => self.hot.handle(HandleKind::Context, context - 1),
        })
    }

    /// `cuCtxGetDevice` of the current context. A query.
    #[inline]
    pub fn context_current_device(&self) -> Result<i32> {
        let thread = self.ask(Call::CtxGetDevice)?;
        match thread.context.load(Relaxed) {
            0 => Err(INVALID_CONTEXT),
            context => Ok(self.hot.contexts[context - 1].device.load(Acquire) as i32),
        }
    }

    /// `cuCtxGetId`. A query.
    pub fn context_id(&self, context: usize) -> Result<u64> {
        self.ask(Call::CtxGetId)?;
        if !self.config.stream_ids {
            return Err(NOT_SUPPORTED);
        }
        match self.hot.contexts[self.context_place(context)?].id.load(Acquire) {
            0 => Err(CONTEXT_IS_DESTROYED),
            id => Ok(id),
        }
    }

    /// The device of any context that ever lived.
    pub fn context_device(&self, context: usize) -> Result<i32> {
        Ok(self.hot.contexts[self.context_place(context)?].device.load(Acquire) as i32)
    }

    /// `cuDevicePrimaryCtxRetain`: the handle; does not make it current. Brings it back to life after a reset.
    pub fn primary_retain(&self, device: i32) -> Result<usize> {
        let (_, mut state) = self.enter(Call::PrimaryRetain)?;
        let context = state.primaries[self.device(device)?];
        if state.contexts[context].id == 0 {
            state.revive(context)?;
        }
        state.contexts[context].retained += 1;
        Ok(self.hot.handle(HandleKind::Context, context))
    }

    /// `cuDevicePrimaryCtxRelease`: the last one ends the context.
    pub fn primary_release(&self, device: i32) -> Result<()> {
        let (_, mut state) = self.enter(Call::PrimaryRelease)?;
        let context = state.primaries[self.device(device)?];
        if state.contexts[context].retained == 0 {
            return Err(INVALID_CONTEXT);
        }
        state.contexts[context].retained -= 1;
        if state.contexts[context].retained == 0 {
            state.kill_context(context);
        }
        Ok(())
    }

    /// `cuDevicePrimaryCtxReset`: every stream, event, allocation and physical handle of it is gone. Whoever retained it
    /// still has to release it.
    pub fn primary_reset(&self, device: i32) -> Result<()> {
        let (_, mut state) = self.enter(Call::PrimaryReset)?;
        let device = self.device(device)?;
        let context = state.primaries[device];
        state.kill_context(context);
        state.drop_device_handles(device as u32);
        Ok(())
    }

    /// `cuDevicePrimaryCtxGetState`'s `active`.
    pub fn primary_active(&self, device: i32) -> Result<bool> {
        let (_, state) = self.enter(Call::PrimaryGetState)?;
        Ok(state.contexts[state.primaries[self.device(device)?]].id != 0)
    }

    /// `cuCtxCreate`: a context beside the primary one, made current.
    pub fn context_create(&self, device: i32) -> Result<usize> {
        let (thread, mut state) = self.enter(Call::CtxCreate)?;
        let device = self.device(device)?;
        if state.contexts.len() == CONTEXT_SLOTS {
            return Err(OUT_OF_MEMORY);
        }
        let context = state.contexts.len();
        state.contexts.push(ContextState::new(device as u32, false));
        state.revive(context)?;
        let mut stack = thread.stack.lock();
        stack.push(context + 1);
        set_current(thread, &stack);
        Ok(self.hot.handle(HandleKind::Context, context))
    }

    /// `cuCtxDestroy`: also pops it where it is current to this thread.
    pub fn context_destroy(&self, context: usize) -> Result<()> {
        let (thread, mut state) = self.enter(Call::CtxDestroy)?;
        let context = self.context_place(context)?;
        if state.contexts[context].primary || state.contexts[context].id == 0 {
            return Err(INVALID_CONTEXT);
        }
        state.kill_context(context);
        let mut stack = thread.stack.lock();
        if stack.last() == Some(&(context + 1)) {
            stack.pop();
            set_current(thread, &stack);
        }
        Ok(())
    }

    /// `cuCtxPushCurrent`.
    pub fn context_push(&self, context: usize) -> Result<()> {
        let (thread, state) = self.enter(Call::CtxPush)?;
        let context = self.context_place(context)?;
        if state.contexts[context].id == 0 {
            return Err(if state.contexts[context].primary {
                CONTEXT_IS_DESTROYED
            } else {
                INVALID_CONTEXT
            });
        }
        let mut stack = thread.stack.lock();
        stack.push(context + 1);
        set_current(thread, &stack);
        Ok(())
    }

    /// `cuCtxPopCurrent`: the context that was current.
    pub fn context_pop(&self) -> Result<usize> {
        let (thread, _state) = self.enter(Call::CtxPop)?;
        let mut stack = thread.stack.lock();
        let context = stack.pop().ok_or(INVALID_CONTEXT)?;
        set_current(thread, &stack);
        Ok(self.hot.handle(HandleKind::Context, context - 1))
    }

    /// `cuCtxSetCurrent`: replaces the top of the thread's stack; 0 takes it away.
    pub fn context_set_current(&self, context: usize) -> Result<()> {
        let (thread, state) = self.enter(Call::CtxSetCurrent)?;
        let mut stack = thread.stack.lock();
        if context == 0 {
            stack.pop();
        } else {
            let context = self.context_place(context)?;
            if state.contexts[context].id == 0 {
                return Err(CONTEXT_IS_DESTROYED);
            }
            stack.pop();
            stack.push(context + 1);
        }
        set_current(thread, &stack);
        Ok(())
    }

    /// `cuCtxSynchronize` on the current context: waits for all work in it, destroyed streams' too. Ends captures.
    pub fn context_synchronize(&self) -> Result<()> {
        let (thread, mut state) = self.enter(Call::CtxSynchronize)?;
        let context = state.current(thread)?;
        state.end_captures_of_device(context)?;
        let queues = state.contexts[context].queues.clone();
        let tails: Vec<_> = queues.iter().map(|&queue| state.queues.tail(queue)).collect();
        self.finish(&mut state, &tails);
        state.healthy(context)?;
        for queue in queues {
            state.observe_tail(queue);
        }
        self.settle(&mut state);
        Ok(())
    }

    /// Gives the context a sticky error: what a kernel that went wrong does to it.
    pub fn poison(&self, context: usize, code: u32) -> Result<()> {
        let context = self.context_place(context)?;
        let mut state = self.state.lock();
        state.healthy(context)?;
        state.poison(context, code);
        Ok(())
    }

    /// `cuCtxRecordEvent`: the event completes once everything queued in the context now has, destroyed streams' work
    /// too. Ends captures.
    pub fn context_record_event(&self, context: usize, event: usize) -> Result<()> {
        let (_, mut state) = self.enter(Call::CtxRecordEvent)?;
        if !self.config.context_events {
            return Err(NOT_SUPPORTED);
        }
        let context = self.context_place(context)?;
        state.healthy(context)?;
        if state
            .events
            .get(&event)
            .is_none_or(|event| event.context_id != state.contexts[context].id)
        {
            return Err(INVALID_HANDLE);
        }
        state.end_captures_of_device(context)?;
        state.record_context(context, event);
        Ok(())
    }

    /// Waits until `positions` are done. A persistent kernel among them must be released by another thread.
    pub(super) fn finish(&self, state: &mut parking_lot::MutexGuard<'_, State>, positions: &[super::queue::Position]) {
        loop {
            let done = state.queues.done_at(positions);
            if done != super::queue::NEVER {
                return self.hot.advance_to(done);
            }
            if self
                .released
                .wait_for(state, std::time::Duration::from_secs(60))
                .timed_out()
            {
                super::abort("waited a minute for a kernel that nobody ends");
            }
        }
    }

    /// The current context's index + 1 and the slots of its streams are read here without a lock.
    pub(super) fn special_slot(&self, thread: &ThreadState, handle: usize) -> Result<usize> {
        let context = thread.context.load(Relaxed).checked_sub(1).ok_or(INVALID_CONTEXT)?;
        let slot = &self.hot.contexts[context];
        let id = slot.id.load(Acquire);
        if id == 0 {
            return Err(CONTEXT_IS_DESTROYED);
        }
        if handle != 2 {
            return Ok(slot.legacy.load(Acquire) as usize);
        }
        if thread.own_stream.0.load(Relaxed) != id {
            self.open_own_stream(thread, context, id)?;
        }
        Ok(thread.own_stream.1.load(Relaxed) as usize)
    }

    #[cold]
    fn open_own_stream(&self, thread: &ThreadState, context: usize, id: u64) -> Result<()> {
        let mut state = self.state.lock();
        if state.contexts[context].id != id {
            return Err(CONTEXT_IS_DESTROYED);
        }
        let known = state
            .streams
            .iter()
            .position(|s| s.alive && s.context == context && s.thread == thread.number);
        let slot = match known {
            Some(slot) => slot as u32,
            None => {
                let slot = state.open_stream(context, QueueKind::Blocking)?;
                state.streams[slot as usize].thread = thread.number;
                slot
            }
        };
        thread.own_stream.0.store(id, Relaxed);
        thread.own_stream.1.store(slot, Relaxed);
        Ok(())
    }
}

const _: () = assert!(hot::STREAM_SLOTS <= u32::MAX as usize);
