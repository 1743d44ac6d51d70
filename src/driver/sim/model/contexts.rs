//! Contexts: primary and others, each thread's stack of them, and the effects of a reset or a sticky error.

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::code::*;
use super::entries::{ContextState, StreamState};
use super::functions::Call;
use super::queue::QueueKind;
use super::state::MachineState;
use super::tables::{CONTEXT_SLOTS, ObjectKind};
use super::{Machine, ThreadState, tables};

impl MachineState {
    /// Makes a context alive, with a new id and a new legacy stream.
    pub(super) fn revive(&mut self, context: usize) -> Result<()> {
        let id = self.new_id();
        self.contexts[context].id = id;
        self.contexts[context].poison = 0;
        let legacy = self
            .open_stream(context, QueueKind::Legacy)
            .inspect_err(|_| self.contexts[context].id = 0)?;
        self.contexts[context].legacy = legacy;
        let slot = &self.tables.contexts[context];
        slot.device.store(self.contexts[context].device, Release);
        slot.legacy.store(legacy, Release);
        slot.made.store(1, Release);
        slot.id.store(id, Release);
        Ok(())
    }

    /// Ends a context and everything in it. Its work counts as completed. The work of a green context goes on, because its
    /// streams outlive it (cuGreenCtxDestroy), and events of the primary context cover it.
    pub(super) fn kill_context(&mut self, context: usize) {
        let id = self.contexts[context].id;
        if id == 0 {
            return;
        }
        self.tables.contexts[context].id.store(0, Release);
        for slot in 0..self.streams.len() as u32 {
            let stream = &self.streams[slot as usize];
            if stream.alive && stream.context == context {
                self.close_stream(slot);
            }
        }
        let queues = std::mem::take(&mut self.contexts[context].queues);
        match self.contexts[context].green_of {
            Some(primary) if self.contexts[primary].id != 0 => self.contexts[primary].queues.extend(queues),
            _ => queues.into_iter().for_each(|queue| self.queues.remove(queue)),
        }
        self.queues.resume(self.tables.now());
        self.contexts[context].blocking.clear();
        self.contexts[context].id = 0;
        self.contexts[context].poison = 0;
        for green in self.greens(context) {
            self.kill_context(green);
            self.free_contexts.push(green);
        }
        let gone: Vec<usize> = self
            .events
            .iter()
            .filter(|(_, event)| event.context_id == id)
            .map(|(event, _)| *event)
            .collect();
        for event in gone {
            self.events.remove(&event);
            self.free_events.push(event);
        }
        self.drop_context_memory(context, id);
    }

    /// The living green contexts of a primary context.
    pub(super) fn greens(&self, primary: usize) -> Vec<usize> {
        let contexts = self.contexts.iter().enumerate();
        let of = |context: &ContextState| context.green_of == Some(primary) && context.id != 0;
        contexts.filter(|(_, context)| of(context)).map(|(at, _)| at).collect()
    }

    /// The context that events belong to while `context` is current: for a green context, the primary context.
    pub(super) fn event_context(&self, context: usize) -> usize {
        self.contexts[context].green_of.unwrap_or(context)
    }

    /// Gives a context a sticky error, which ends its work.
    pub(super) fn poison(&mut self, context: usize, code: u32) {
        if self.contexts[context].poison != 0 {
            return;
        }
        self.contexts[context].poison = code;
        for (slot, stream) in self.streams.iter().enumerate() {
            if stream.alive && stream.context == context {
                self.tables.streams[slot].poison.store(code, Release);
            }
        }
        for &queue in &self.contexts[context].queues {
            self.queues.cut_short(queue);
        }
        self.queues.resume(self.tables.now());
    }
}

fn set_current(thread: &ThreadState, stack: &[usize]) {
    thread.context.store(stack.last().copied().unwrap_or(0), Relaxed);
}

impl MachineState {
    /// The index of the thread's own stream in its current context, if the thread has used it.
    pub(super) fn own_stream(&self, thread: &ThreadState) -> Option<usize> {
        let context = thread.context.load(Relaxed).checked_sub(1)?;
        let own = |s: &StreamState| s.alive && s.context == context && s.thread == thread.number;
        self.streams.iter().position(own)
    }
}

impl Machine {
    pub(super) fn context_place(&self, handle: usize) -> Result<usize> {
        let place = self.tables.place(ObjectKind::Context, handle).ok_or(INVALID_CONTEXT)?;
        match self
            .tables
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

    /// `cuCtxGetCurrent`: 0 where the thread has no context. A query.
    #[inline]
    pub fn context_current(&self) -> Result<usize> {
        let thread = self.query(Call::CtxGetCurrent)?;
        Ok(match thread.context.load(Relaxed) {
            0 => 0,
            context => self.tables.handle(ObjectKind::Context, context - 1),
        })
    }

    /// `cuCtxGetDevice` of the current context. A query.
    #[inline]
    pub fn context_current_device(&self) -> Result<i32> {
        let thread = self.query(Call::CtxGetDevice)?;
        match thread.context.load(Relaxed) {
            0 => Err(INVALID_CONTEXT),
            context => Ok(self.tables.contexts[context - 1].device.load(Acquire) as i32),
        }
    }

    /// `cuCtxGetId`, 0 for the current context. A query, which a capture forbids as an unsafe call.
    pub fn context_id(&self, context: usize) -> Result<u64> {
        let thread = self.query(Call::CtxGetId)?;
        if !self.config.stream_ids() {
            return Err(NOT_SUPPORTED);
        }
        let place = match context {
            0 => thread.context.load(Relaxed).checked_sub(1).ok_or(INVALID_CONTEXT)?,
            context => self.context_place(context)?,
        };
        match self.tables.contexts[place].id.load(Acquire) {
            0 => Err(CONTEXT_IS_DESTROYED),
            id => {
                // No fault: the handle may be that of an ordinary context that was destroyed.
                let refused = self.config.green_ids_refused && self.tables.contexts[place].green.load(Acquire) != 0;
                if refused && self.threads.is_current_elsewhere(thread, place + 1) {
                    return Err(INVALID_CONTEXT);
                }
                self.may_identify(thread, None).map(|()| id)
            }
        }
    }

    /// The device of any context that was ever alive.
    pub fn context_device(&self, context: usize) -> Result<i32> {
        Ok(self.tables.contexts[self.context_place(context)?].device.load(Acquire) as i32)
    }

    /// The error of a call of the allocator's for a primary context where the modes of captures forbid unsafe calls.
    fn refuse_primary(&self, thread: &ThreadState, state: &mut MachineState) -> Result<()> {
        match self.config.ids_unsafe_in_capture && !state.in_exempt_call {
            true => state.refuse_unsafe(thread),
            false => Ok(()),
        }
    }

    /// `cuDevicePrimaryCtxRetain`: returns the handle and does not make it current. Makes the context alive again after
    /// a reset.
    pub fn primary_retain(&self, device: i32) -> Result<usize> {
        let (thread, mut state) = self.enter(Call::PrimaryRetain)?;
        self.refuse_primary(thread, &mut state)?;
        let context = state.primaries[self.device(device)?];
        if state.contexts[context].id == 0 {
            state.revive(context)?;
        }
        state.contexts[context].retained += 1;
        Ok(self.tables.handle(ObjectKind::Context, context))
    }

    /// `cuDevicePrimaryCtxRelease`: the last release ends the context.
    pub fn primary_release(&self, device: i32) -> Result<()> {
        let (thread, mut state) = self.enter(Call::PrimaryRelease)?;
        self.refuse_primary(thread, &mut state)?;
        let context = state.primaries[self.device(device)?];
        if state.contexts[context].retained == 0 {
            return Err(INVALID_CONTEXT);
        }
        state.contexts[context].retained -= 1;
        if state.contexts[context].retained == 0 {
            state.kill_context(context);
            self.released.notify_all();
        }
        Ok(())
    }

    /// `cuDevicePrimaryCtxReset`: destroys every stream, event, allocation and physical handle of the context. Retains
    /// made before still have to be released.
    pub fn primary_reset(&self, device: i32) -> Result<()> {
        let (_, mut state) = self.enter(Call::PrimaryReset)?;
        let device = self.device(device)?;
        let context = state.primaries[device];
        state.kill_context(context);
        self.released.notify_all();
        state.drop_device_handles(device as u32);
        Ok(())
    }

    /// `cuDevicePrimaryCtxGetState`'s `active`.
    pub fn primary_active(&self, device: i32) -> Result<bool> {
        let (thread, mut state) = self.enter(Call::PrimaryGetState)?;
        self.refuse_primary(thread, &mut state)?;
        Ok(state.contexts[state.primaries[self.device(device)?]].id != 0)
    }

    /// `cuCtxCreate`: makes a context in addition to the primary one, and makes it current. It reuses the handle of the
    /// context that was destroyed last, unless that context is on a thread's stack.
    pub fn context_create(&self, device: i32) -> Result<usize> {
        let (thread, mut state) = self.enter(Call::CtxCreate)?;
        let fresh = ContextState::new(self.device(device)? as u32, false);
        let context = self.open_context(&mut state, fresh)?;
        let mut stack = thread.stack.lock();
        stack.push(context + 1);
        set_current(thread, &stack);
        Ok(self.tables.handle(ObjectKind::Context, context))
    }

    /// `cuGreenCtxCreate` and `cuCtxFromGreenCtx`: makes a green context, which retains the primary one. It is current
    /// nowhere.
    pub fn green_context_create(&self, device: i32) -> Result<usize> {
        let (_, mut state) = self.enter(Call::CtxCreate)?;
        let device = self.device(device)?;
        let primary = state.primaries[device];
        if state.contexts[primary].id == 0 {
            state.revive(primary)?;
        }
        let fresh = ContextState {
            green_of: Some(primary),
            ..ContextState::new(device as u32, false)
        };
        let context = self.open_context(&mut state, fresh)?;
        state.contexts[primary].retained += 1;
        Ok(self.tables.handle(ObjectKind::Context, context))
    }

    fn open_context(&self, state: &mut MachineState, fresh: ContextState) -> Result<usize> {
        let free = state
            .free_contexts
            .iter()
            .rposition(|place| !state.handles_stay && !self.threads.has_current(place + 1));
        let context = match free.map(|at| state.free_contexts.remove(at)) {
            Some(place) => {
                state.contexts[place] = fresh;
                place
            }
            None if state.contexts.len() == CONTEXT_SLOTS => return Err(OUT_OF_MEMORY),
            None => {
                state.contexts.push(fresh);
                state.contexts.len() - 1
            }
        };
        let green = u32::from(state.contexts[context].green_of.is_some());
        self.tables.contexts[context].green.store(green, Release);
        if let Err(error) = state.revive(context) {
            state.free_contexts.push(context);
            return Err(error);
        }
        Ok(context)
    }

    /// A green context may be current in one thread at a time, and calls of several threads for it are not synchronized:
    /// a fault, and an error, where it is current in another thread.
    pub(super) fn refuse_shared_green(
        &self,
        state: &mut MachineState,
        thread: &ThreadState,
        context: usize,
    ) -> Result<()> {
        if state.contexts[context].green_of.is_none() || !self.threads.is_current_elsewhere(thread, context + 1) {
            return Ok(());
        }
        state.fault("a call for a green context that is current in another thread".into());
        Err(INVALID_CONTEXT)
    }

    /// From now on the handles of destroyed contexts and events are not reused. Not a driver call.
    pub fn keep_handles(&self) {
        self.state.lock().handles_stay = true;
    }

    /// `cuCtxDestroy`, `cuGreenCtxDestroy`: also pops it where it is current to this thread.
    pub fn context_destroy(&self, context: usize) -> Result<()> {
        let (thread, mut state) = self.enter(Call::CtxDestroy)?;
        let context = self.context_place(context)?;
        if state.contexts[context].primary || state.contexts[context].id == 0 {
            return Err(INVALID_CONTEXT);
        }
        state.kill_context(context);
        state.free_contexts.push(context);
        if let Some(primary) = state.contexts[context].green_of {
            state.contexts[primary].retained -= 1;
            if state.contexts[primary].retained == 0 {
                state.kill_context(primary);
            }
        }
        self.released.notify_all();
        let mut stack = thread.stack.lock();
        if stack.last() == Some(&(context + 1)) {
            stack.pop();
            set_current(thread, &stack);
        }
        Ok(())
    }

    /// `cuCtxPushCurrent`.
    pub fn context_push(&self, context: usize) -> Result<()> {
        let (thread, mut state) = self.enter(Call::CtxPush)?;
        let context = self.context_place(context)?;
        self.refuse_shared_green(&mut state, thread, context)?;
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
        self.late_error(Call::CtxPush)
    }

    /// `cuCtxPopCurrent`: the context that was current.
    pub fn context_pop(&self) -> Result<usize> {
        let (thread, _state) = self.enter(Call::CtxPop)?;
        let mut stack = thread.stack.lock();
        let context = stack.pop().ok_or(INVALID_CONTEXT)?;
        set_current(thread, &stack);
        self.late_error(Call::CtxPop)?;
        Ok(self.tables.handle(ObjectKind::Context, context - 1))
    }

    /// `cuCtxSetCurrent`: replaces the top of the thread's stack; 0 removes it.
    pub fn context_set_current(&self, context: usize) -> Result<()> {
        let (thread, mut state) = self.enter(Call::CtxSetCurrent)?;
        let mut stack = thread.stack.lock();
        if context == 0 {
            stack.pop();
        } else {
            let context = self.context_place(context)?;
            self.refuse_shared_green(&mut state, thread, context)?;
            if state.contexts[context].id == 0 {
                return Err(CONTEXT_IS_DESTROYED);
            }
            stack.pop();
            stack.push(context + 1);
        }
        set_current(thread, &stack);
        Ok(())
    }

    /// The slot of a default stream of the thread's current context, without a lock. `None` where the thread has no
    /// per-thread default stream there yet.
    pub(super) fn default_stream_slot(&self, thread: &ThreadState, handle: usize) -> Result<Option<usize>> {
        let context = thread.context.load(Relaxed).checked_sub(1).ok_or(INVALID_CONTEXT)?;
        let slot = &self.tables.contexts[context];
        let id = slot.id.load(Acquire);
        if id == 0 {
            return Err(CONTEXT_IS_DESTROYED);
        }
        if handle != 2 {
            return Ok(Some(slot.legacy.load(Acquire) as usize));
        }
        let (of, own) = &thread.own_stream;
        Ok((of.load(Relaxed) == id).then(|| own.load(Relaxed) as usize))
    }

    /// As [`Machine::default_stream_slot`], but makes the thread's own stream where it is missing.
    #[cold]
    pub(super) fn open_default_stream(&self, state: &mut MachineState, thread: &ThreadState) -> Result<usize> {
        let context = thread.context.load(Relaxed).checked_sub(1).ok_or(INVALID_CONTEXT)?;
        let id = state.contexts[context].id;
        if id == 0 {
            return Err(CONTEXT_IS_DESTROYED);
        }
        let slot = match state.own_stream(thread) {
            Some(slot) => slot as u32,
            None => {
                let slot = state.open_stream(context, QueueKind::Blocking)?;
                state.streams[slot as usize].thread = thread.number;
                slot
            }
        };
        thread.own_stream.0.store(id, Relaxed);
        thread.own_stream.1.store(slot, Relaxed);
        Ok(slot as usize)
    }
}

const _: () = assert!(tables::STREAM_SLOTS <= u32::MAX as usize);
