//! How a stream or a capture gets free space of its own, and how completion events are recorded for a stream's frees.

use crate::driver::{Failure, Stream};
use crate::pool::free_space::Owner;
use crate::pool::stream_cache::{Generation, Inner};
use crate::pool::{Core, Pool, Turn};
use crate::support::error::{Error, Result};
use crate::sync::atomic::Ordering;
use crate::sync::broken;

impl Pool {
    /// The stream's own free space, made where the stream is new. Another id at a known handle orphans the old stream's
    /// space.
    pub(in crate::pool) fn join_stream(&self, core: &mut Core, turn: &Turn<'_>) -> Result<Owner> {
        let mut inner = turn.cache.inner.lock();
        inner.capture = 0;
        if let Some(generation) = &inner.generation {
            let same = generation.id == turn.id || broken("a stream's id tells whether it is the same one");
            if same && generation.device == self.device {
                return Ok(generation.owner);
            }
        }
        if inner.generation.as_ref().is_some_and(|old| old.device != self.device) {
            return Err(Error::InvalidArgument(
                "the stream's handle serves another device at the same time".into(),
            ));
        }
        self.retire(core, &mut inner);
        let context = self
            .calls
            .ask(|driver| driver.stream_context(turn.stream))
            .map_err(|error| self.failed(error))?;
        core.note_context(&self.calls, context)?;
        let owner = core.heap.add_owner();
        core.grace.add(owner, context);
        inner.generation = Some(Generation {
            id: turn.id,
            device: self.device,
            owner,
            context,
        });
        inner.joined = true;
        (inner.next_stamp, inner.unstamped) = (1, 0);
        Ok(owner)
    }

    /// The free space of a capturing stream, and its capture's number.
    pub(in crate::pool) fn join_capture(&self, core: &mut Core, turn: &Turn<'_>) -> Result<(Owner, u32)> {
        let _entered = self.enter(core)?;
        if turn.id != 0 {
            self.join_stream(core, turn)?;
        } else {
            // A stream without an id cannot be distinguished from another one. It owns nothing, but its context uses
            // the pool.
            let context = self
                .calls
                .ask(|driver| driver.stream_context(turn.stream))
                .map_err(|error| self.failed(error))?;
            core.note_context(&self.calls, context)?;
        }
        let info = self
            .calls
            .ask(|driver| driver.stream_capture_info(turn.stream))
            .map_err(|error| self.failed(error))?
            .ok_or_else(|| Error::Unsupported("the stream's capture ended during the call".into()))?;
        let Core { heap, captures, .. } = core;
        let number = captures.number(&self.calls, info).map_err(|error| self.failed(error))?;
        let owner = captures
            .owner(heap, number, turn.cache.key, turn.id)
            .ok_or_else(|| Error::Unsupported("the capture is unknown".into()))?;
        turn.cache.inner.lock().capture = number;
        Ok((owner, number))
    }

    /// Records a completion event for everything freed on `stream` so far. The running call was given the stream, and
    /// the stream does not capture.
    pub(in crate::pool) fn stamp_cache(&self, core: &mut Core, inner: &mut Inner, stream: Stream) {
        let Some(owner) = inner.generation.as_ref().map(|generation| generation.owner) else {
            return;
        };
        let number = inner.next_stamp;
        let unstamped = std::mem::take(&mut inner.unstamped);
        if unstamped == 0 {
            return;
        }
        let wanted = std::mem::replace(&mut inner.hunger, self.hunger.load(Ordering::Relaxed));
        // The number is raised first, so what is freed from now on belongs to the next completion event.
        inner.next_stamp = number + u64::from(!broken("what is freed after a stamp is not stamped"));
        if let Err(error) = core.grace.stamp(&self.calls, owner, number, stream) {
            tracing::debug!(%error, "a stamp could not be recorded");
            (inner.unstamped, inner.hunger) = (unstamped, wanted);
            if error.failure == Failure::ContextDead {
                self.die(error.to_string());
            }
        }
    }
}
