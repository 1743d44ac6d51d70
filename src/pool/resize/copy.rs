//! Resizing where there is no virtual memory, and of a block that has no pages of its own: a new block, and a copy.
//!
//! A resize has no stream. So the copy comes after everything that was queued in any context that has used the pool,
//! because any of it may still write the old block. The copy is complete before the call returns, because the caller
//! may use the new block anywhere. The waits for it are bounded by `wait_ms`, and happen without the pool's lock.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::driver::{Context, Event, Stream};
use crate::pool::dedicated::Claimed;
use crate::pool::driver_calls::Identity;
use crate::pool::free_space::NodeId;
use crate::pool::reclaim::Reclaimer;
use crate::pool::reclaim::free::FreedOn;
use crate::pool::reclaim::sets::SetId;
use crate::pool::reclaim::synchronization::Synchronization;
use crate::pool::reclaim::wait::Wait;
use crate::pool::resize::another_alignment;
use crate::pool::slow_path::dedicated::DedicatedKind;
use crate::pool::stream_cache::StreamCache;
use crate::pool::stream_cache::block::{Block, COMPLETE, RESIZING, UNKNOWN_USES, alignment, resizable};
use crate::pool::{Pool, Want};
use crate::support::error::{Error, Result};
use crate::sync::atomic::Ordering::{Relaxed, Release};

/// How a copy failed.
enum Failed {
    /// Nothing was queued.
    Before(Error),
    /// The copy may still run: both blocks are in use on a stream that is not theirs.
    Running(Error),
}

impl Pool {
    /// Resizes a block that was claimed for it and whose origin is `origin`: makes a new block of `want`, and copies what
    /// both have in common. Returns its address. On an error the old block is as it was.
    pub fn resize_by_copying(
        &self,
        id: NodeId,
        block: &Block,
        origin: Option<&StreamCache>,
        want: Want,
    ) -> Result<u64> {
        let was = block.resizable.swap(RESIZING, Release);
        // A block that was handed out without a stream has only memory that is safe for every caller.
        let complete = Cell::new(was & COMPLETE != 0 || origin.is_none());
        let address = block.address.load(Relaxed);
        let (tag, old) = (block.tag.load(Relaxed), block.size());
        let copied = || self.copied_block(block, address, alignment(was), want, &complete);
        let outcome = match was {
            0 => Err(Error::InvalidArgument("the block was not allocated resizable".into())),
            _ if tag == 0 => copied(),
            _ => self.resize_with_tag(tag, (old, want.size), || {
                let outcome = copied();
                // A block that stays where it is keeps its bytes.
                let moved = outcome.as_ref().ok().filter(|new| **new != address);
                let now = moved.map_or(old, |new| {
                    self.move_tag(&block.tag, *new);
                    self.allocated_at(*new)
                });
                (outcome, now)
            }),
        };
        if outcome.as_ref().is_ok_and(|new| *new != address) {
            self.fill_freed(address, block.size());
            block.resizable.store(0, Release);
            self.free(id, block, FreedOn::NoStream);
            origin.inspect(|origin| origin.end_use());
            self.counters.frees.fetch_sub(1, Relaxed);
        } else {
            block.hand_out(origin);
            let complete = if was != 0 && complete.get() { COMPLETE } else { 0 };
            block.resizable.store(was | complete, Release);
        }
        outcome
    }

    fn copied_block(&self, block: &Block, address: u64, align: u64, want: Want, complete: &Cell<bool>) -> Result<u64> {
        self.alive()?;
        if block.capture.load(Relaxed) != 0 {
            return Err(Error::Unsupported("the block belongs to a graph".into()));
        }
        // Where blocks usually have pages of their own, this one has none only because memory was short.
        let mapped = self.addresses.base().is_some();
        if mapped && want.align != self.options.rule.start && want.align != align {
            return Err(another_alignment(want.align, align));
        }
        let want = Want {
            align: want.align.max(align),
            ..want
        };
        let has = block.size();
        let in_place = address & (want.align - 1) == 0 && (want.size == has || mapped && want.size < has);
        if in_place && want.size >= has / 2 {
            return self.resize_inside(block, want, complete).map(|()| address);
        }
        let new = match self.block_for_copy(want, mapped) {
            // The block is large enough, so a shrink is not refused. Its memory comes back with the block.
            Err(Error::OutOfMemory(_)) if in_place => {
                self.uncount_refused();
                return self.resize_inside(block, want, complete).map(|()| address);
            }
            outcome => outcome?,
        };
        match self.copy_to_new_block(block, address, want, new) {
            Err(Error::OutOfMemory(_) | Error::Unsupported(_)) if in_place => {
                self.resize_inside(block, want, complete).map(|()| address)
            }
            copied => copied.map(|()| new),
        }
    }

    /// Changes the bytes in use inside the memory that the block has. The work on the block before it may use all of that,
    /// in the order of the block's stream. What the block grows by has no stream, so a growth waits, once.
    fn resize_inside(&self, block: &Block, want: Want, complete: &Cell<bool>) -> Result<()> {
        let had = block.requested.load(Relaxed);
        if want.requested > had && !complete.get() {
            self.wait_for_all(Instant::now() + self.options.wait)?;
            complete.set(true);
        }
        block.requested.store(want.requested, Relaxed);
        self.counters
            .requested
            .fetch_add(want.requested.wrapping_sub(had), Relaxed);
        self.counters.reallocations.fetch_add(1, Relaxed);
        Ok(())
    }

    /// A new block to copy to. With pages of its own, the next resize copies nothing.
    fn block_for_copy(&self, want: Want, mapped: bool) -> Result<u64> {
        let new = match mapped {
            true => self.allocate_dedicated(want, DedicatedKind::Resizable, None),
            false => self.allocate(want, None),
        }?;
        self.counters.allocations.fetch_sub(1, Relaxed);
        Ok(new)
    }

    /// Copies what a block and the new one have in common. On an error, it frees the new one.
    fn copy_to_new_block(&self, block: &Block, address: u64, want: Want, new: u64) -> Result<()> {
        let had = block.requested.load(Relaxed);
        let in_use = || {
            for (_, block) in self.find(address).into_iter().chain(self.find(new)) {
                block.stream_uses.store(UNKNOWN_USES, Relaxed);
            }
            if let Some(block) = self.dedicated.find(new) {
                block.stream_uses.store(1, Relaxed);
            }
        };
        let copied = self.copy_resized(new, address, want, had, in_use);
        match self.find(new) {
            Some((_, block)) if copied.is_ok() => block.resizable.store(resizable(want.align), Relaxed),
            Some((id, block)) if block.claim(new).is_ok() => {
                self.free(id, block, FreedOn::NoStream);
                self.counters.frees.fetch_sub(1, Relaxed);
            }
            None if copied.is_err() => {
                if let Some(claimed) = self.dedicated.claim(new) {
                    self.free_claimed(claimed, FreedOn::NoStream);
                    self.counters.frees.fetch_sub(1, Relaxed);
                }
            }
            _ => {}
        }
        copied
    }

    /// As [`Pool::resize_by_copying`], for a block that is one allocation of the driver.
    #[cold]
    pub(super) fn resize_dedicated_by_copying(&self, block: Claimed<'_>, want: Want) -> Result<u64> {
        if !block.block().as_ref().is_some_and(|block| block.resizable) {
            return Err(Error::InvalidArgument("the block was not allocated resizable".into()));
        }
        let (address, had) = (block.address.load(Relaxed), block.requested.load(Relaxed));
        if want.size == block.size.load(Relaxed) {
            block.requested.store(want.requested, Relaxed);
            block.resizes.store(block.resizes.load(Relaxed) + 1, Relaxed);
            return Ok(address);
        }
        let new = self.try_dedicated(
            want,
            DedicatedKind::Passthrough { resizable: true },
            None,
            Wait::default(),
        )?;
        self.counters.allocations.fetch_sub(1, Relaxed);
        let copied = self.copy_resized(new, address, want, had, || block.stream_uses.store(1, Relaxed));
        let gone = match copied {
            Ok(()) => {
                self.move_tag(&block.tag, new);
                self.fill_freed(address, block.size.load(Relaxed));
                Some(block)
            }
            Err(_) => self.dedicated.claim(new),
        };
        if let Some(gone) = gone {
            self.free_claimed(gone, FreedOn::NoStream);
            self.counters.frees.fetch_sub(1, Relaxed);
        }
        copied.map(|()| new)
    }

    /// Fills and copies, and counts a resize. It calls `in_use` where the copy may go on after an error.
    fn copy_resized(&self, new: u64, old: u64, want: Want, had: u64, in_use: impl FnOnce()) -> Result<()> {
        let bytes = had.min(want.requested);
        if let Some(byte) = self.options.fill {
            self.fill(new, byte, want.size, None)?;
        }
        match self.copy(new, old, bytes) {
            Ok(()) => {
                self.counters.reallocations.fetch_add(1, Relaxed);
                self.counters.moves.fetch_add(1, Relaxed);
                self.counters.bytes_copied.fetch_add(bytes, Relaxed);
                Ok(())
            }
            Err(Failed::Before(error)) => Err(error),
            Err(Failed::Running(error)) => {
                in_use();
                Err(error)
            }
        }
    }

    fn fill_freed(&self, address: u64, bytes: u64) {
        if let Some(byte) = self.options.fill {
            let _ = self.fill(address, byte, bytes, None);
        }
    }

    /// Copies bytes from one block to another behind everything queued so far; the copy is complete on return.
    fn copy(&self, to: u64, from: u64, bytes: u64) -> std::result::Result<(), Failed> {
        let deadline = Instant::now() + self.options.wait;
        self.wait_for_all(deadline).map_err(Failed::Before)?;
        let (context, event) = {
            let mut core = self.core.lock();
            let _entered = self.enter(&core.reclaimer.contexts).map_err(Failed::Before)?;
            let context = self.here(&core.reclaimer).map_err(Failed::Before)?;
            let event = core.reclaimer.pending.event(&self.calls, context.0);
            let event = event.map_err(|error| Failed::Before(self.failed(error)))?;
            let queued = self
                .calls
                .submit(|driver| driver.copy_async(to, from, bytes, Stream::LEGACY));
            if let Err(error) = queued {
                core.reclaimer.give_event(context, event);
                return Err(Failed::Before(self.failed(error)));
            }
            match self.calls.submit(|driver| driver.event_record(event, Stream::LEGACY)) {
                Ok(()) => (context, Some(event)),
                // All of the context's work is waited for instead.
                Err(_) => {
                    core.reclaimer.give_event(context, event);
                    (context, None)
                }
            }
        };
        let came = self.wait_for(context.0, event, deadline.max(Instant::now() + MIN_WAIT));
        if let Some(event) = event {
            self.core.lock().reclaimer.give_event(context, event);
        }
        came.map_err(|error| self.failed(error))
            .and_then(in_time)
            .map_err(Failed::Running)
    }

    /// The context in which driver calls are made here and now, as the pool knows it; of a green context the
    /// primary one, whose events serve it.
    fn here(&self, reclaimer: &Reclaimer) -> Result<(Context, Identity)> {
        let current = self.calls.query(|driver| driver.current_context());
        let current = current.map_err(|error| self.failed(error))?;
        let here = current.unwrap_or(reclaimer.contexts.own.context);
        Ok(reclaimer
            .contexts
            .noted(here)
            .unwrap_or((here, self.calls.unidentified())))
    }

    /// Waits until everything queued so far is complete, in each context that has used the pool and in the current one.
    /// It refuses where that would end a capture that the pool can see.
    fn wait_for_all(&self, deadline: Instant) -> Result<()> {
        let mut events: Vec<((Context, Identity), Option<Event>)> = Vec::new();
        let recorded = {
            let mut core = self.core.lock();
            let reclaimer = &mut core.reclaimer;
            reclaimer.check_context(self)?;
            reclaimer.drop_dead_contexts(self)?;
            let noted = reclaimer
                .note_primaries(&self.calls)
                .and_then(|()| reclaimer.note_current(&self.calls));
            noted.map_err(|error| self.failed(error))?;
            let contexts = reclaimer.contexts.all().to_vec();
            if reclaimer.sees_capture(self) {
                return Err(Error::Unsupported("a copy would end the capture that runs".into()));
            }
            contexts.into_iter().try_for_each(|known| {
                match reclaimer.pending.context_event(&self.calls, known.0) {
                    Ok(event) => events.push((known, event)),
                    // A context that has gone meanwhile took its work with it.
                    Err(error) => reclaimer.context_failed(self, known.0, error)?,
                }
                Ok(())
            })
        };
        let waited = recorded.and_then(|()| {
            events.iter().try_for_each(|((context, _), event)| {
                self.wait_for(*context, *event, deadline).map_or_else(
                    |error| self.core.lock().reclaimer.context_failed(self, *context, error),
                    in_time,
                )
            })
        });
        let mut core = self.core.lock();
        for (known, event) in events {
            event
                .into_iter()
                .for_each(|event| core.reclaimer.give_event(known, event));
        }
        waited
    }

    /// Waits for an event of `context`, or without one for all of its work. Returns whether it completed in time.
    fn wait_for(&self, context: Context, event: Option<Event>, deadline: Instant) -> crate::driver::Result<bool> {
        let left = deadline.saturating_duration_since(Instant::now());
        match event {
            Some(event) => self.calls.submit(|driver| driver.event_wait(event, left)),
            None => {
                let outcome =
                    Synchronization::begin(&self.calls, context, SetId::of(0)).and_then(|begun| begun.wait(left));
                outcome.map_or(Ok(false), |outcome| outcome.map(|()| true))
            }
        }
    }
}

impl Reclaimer {
    /// Takes back an event that no request waits for any more. The events of a context that is gone went with it,
    /// though another context may have its handle.
    fn give_event(&mut self, of: (Context, Identity), event: Event) {
        if self.contexts.all().contains(&of) {
            self.pending.keep_event(of.0, event);
        }
    }
}

fn in_time(came: bool) -> Result<()> {
    if came {
        return Ok(());
    }
    Err(Error::OutOfMemory(
        "the work that may use the block did not end within wait_ms".into(),
    ))
}

/// The shortest wait for a copy that was queued.
const MIN_WAIT: Duration = Duration::from_millis(100);
