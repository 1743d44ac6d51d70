//! Calls over all the work of a context.

use std::time::Duration;

use parking_lot::MutexGuard;

use super::code::*;
use super::functions::Call;
use super::queue::NEVER;
use super::state::MachineState;
use super::vector_clock::Position;
use super::{Machine, abort};

impl Machine {
    /// `cuCtxSynchronize` on the current context: waits for all work in it, also of destroyed streams and, where it is the
    /// primary context, of green contexts. Ends captures.
    pub fn context_synchronize(&self) -> Result<()> {
        let (thread, mut state) = self.enter(Call::CtxSynchronize)?;
        let context = state.current(thread)?;
        state.end_captures_of_device(context)?;
        let queues = state.queues_of(context);
        let tails: Vec<_> = queues.iter().map(|&queue| state.queues.tail(queue)).collect();
        self.finish(&mut state, &tails);
        state.healthy(context)?;
        for queue in queues {
            state.observe_tail(queue);
        }
        self.run_due_destructors(&mut state);
        Ok(())
    }

    /// Whether a stream of the context captures. Not a driver call.
    pub fn context_captures(&self, context: usize) -> Result<bool> {
        let context = self.context_place(context)?;
        let state = self.state.lock();
        let capturing = |stream: &super::entries::StreamState| stream.alive && stream.capture.is_some();
        Ok(state
            .streams
            .iter()
            .any(|stream| stream.context == context && capturing(stream)))
    }

    /// Gives the context a sticky error, as a kernel with an invalid access does.
    pub fn poison(&self, context: usize, code: u32) -> Result<()> {
        let context = self.context_place(context)?;
        let mut state = self.state.lock();
        state.healthy(context)?;
        state.poison(context, code);
        self.released.notify_all();
        Ok(())
    }

    /// `cuCtxRecordEvent`: the event completes once all work now queued in the context has, also of destroyed streams
    /// and, where it is the primary context, of green contexts. Ends captures.
    pub fn context_record_event(&self, context: usize, event: usize) -> Result<()> {
        let (thread, mut state) = self.enter(Call::CtxRecordEvent)?;
        if !self.config.context_events() {
            return Err(NOT_SUPPORTED);
        }
        let context = self.context_place(context)?;
        state.healthy(context)?;
        self.refuse_shared_green(&mut state, thread, context)?;
        let id = state.contexts[state.event_context(context)].id;
        if state.events.get(&event).is_none_or(|event| event.context_id != id) {
            return Err(INVALID_HANDLE);
        }
        state.end_captures_of_device(context)?;
        state.record_context(context, event);
        Ok(())
    }

    /// Waits until `positions` have completed. Another thread must release the persistent kernels among them.
    pub(super) fn finish(&self, state: &mut MutexGuard<'_, MachineState>, positions: &[Position]) {
        loop {
            let done = state.queues.done_at(positions);
            if done != NEVER {
                return self.tables.advance_to(done);
            }
            if self.released.wait_for(state, Duration::from_secs(60)).timed_out() {
                abort("waited a minute for a kernel that is never released");
            }
        }
    }
}
