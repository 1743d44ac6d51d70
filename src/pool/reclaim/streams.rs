//! How a stream or a capture gets free space of its own, and how completion events are recorded for a stream's frees.

use crate::driver::{Failure, Stream};
use crate::pool::free_space::Owner;
use crate::pool::stream_cache::{Inner, ServedStream};
use crate::pool::{Core, Pool, StreamView};
use crate::support::error::{Error, Result};
use crate::sync::atomic::Ordering;
use crate::sync::broken;

impl Pool {
    /// The stream's own free space, made where the stream is new. Another id at a known handle orphans the old stream's
    /// space.
    pub(in crate::pool) fn join_stream(&self, core: &mut Core, view: &StreamView<'_>) -> Result<Owner> {
        let mut inner = view.cache.inner.lock();
        inner.capture = 0;
        if let Some(served) = &inner.served {
            let same = served.id == view.id || broken("a stream is recognized by its id");
            if same && served.device == self.device {
                return Ok(served.owner);
            }
        }
        if inner.served.as_ref().is_some_and(|old| old.device != self.device) {
            return Err(Error::InvalidArgument(
                "the stream's handle serves another device at the same time".into(),
            ));
        }
        self.retire(core, &mut inner);
        let context = self
            .calls
            .query(|driver| driver.stream_context(view.stream))
            .map_err(|error| self.failed(error))?;
        core.note_context(&self.calls, context)?;
        let owner = core.free_space.add_owner();
        core.grace.add(owner, context);
        inner.served = Some(ServedStream {
            id: view.id,
            device: self.device,
            owner,
            context,
        });
        inner.joined = true;
        (inner.next_event, inner.uncovered) = (1, 0);
        Ok(owner)
    }

    /// The free space of a capturing stream, and its capture's number.
    pub(in crate::pool) fn join_capture(&self, core: &mut Core, view: &StreamView<'_>) -> Result<(Owner, u32)> {
        let _entered = self.enter(core)?;
        if view.id != 0 {
            self.join_stream(core, view)?;
        } else {
            // A stream without an id cannot be distinguished from another one. It owns nothing, but its context uses
            // the pool.
            let context = self
                .calls
                .query(|driver| driver.stream_context(view.stream))
                .map_err(|error| self.failed(error))?;
            core.note_context(&self.calls, context)?;
        }
        let info = self
            .calls
            .query(|driver| driver.stream_capture_info(view.stream))
            .map_err(|error| self.failed(error))?
            .ok_or_else(|| Error::Unsupported("the stream's capture ended during the call".into()))?;
        let Core {
            free_space, captures, ..
        } = core;
        let number = captures.number(&self.calls, info).map_err(|error| self.failed(error))?;
        let owner = captures
            .owner(free_space, number, view.cache.key, view.id)
            .ok_or_else(|| Error::Unsupported("the capture is unknown".into()))?;
        view.cache.inner.lock().capture = number;
        Ok((owner, number))
    }

    /// Records a completion event for everything freed on `stream` so far. The running call was given the stream, and
    /// the stream does not capture.
    pub(in crate::pool) fn record_stream_event(&self, core: &mut Core, inner: &mut Inner, stream: Stream) {
        let Some(owner) = inner.served.as_ref().map(|served| served.owner) else {
            return;
        };
        let number = inner.next_event;
        let uncovered = std::mem::take(&mut inner.uncovered);
        if uncovered == 0 {
            return;
        }
        let wanted = std::mem::replace(&mut inner.pressure_epoch, self.pressure_epoch.load(Ordering::Relaxed));
        // The number is raised first, so what is freed from now on belongs to the next completion event.
        inner.next_event = number + u64::from(!broken("what is freed after a completion event is not covered"));
        if let Err(error) = core.grace.record_event(&self.calls, owner, number, stream) {
            tracing::debug!(%error, "a completion event could not be recorded");
            (inner.uncovered, inner.pressure_epoch) = (uncovered, wanted);
            if error.failure == Failure::ContextDead {
                self.die(error.to_string());
            }
        }
    }
}
