//! Per-free events, for streams without ids (before CUDA 12.0): each block that is freed on such a stream waits for an
//! event of its own.
//!
//! A handle may come back as another stream unnoticed, so no memory belongs to a handle, and no event covers two frees.
//! Any stream that is made to wait for a free's event may have its memory. Every caller may have it once the event has
//! completed. The handle only decides which frees are tried first: mostly it still names the stream that did the work,
//! and then the wait costs nothing.

use std::collections::VecDeque;

use crate::driver::{Capture, Context, DriverError, Event, Failure, Result, Stream};
use crate::history::Action;
use crate::pool::block::Block;
use crate::pool::driver_calls::DriverCalls;
use crate::pool::free_space::{COMMON, NodeId, Owner};
use crate::pool::reclaim::{Awaited, Freed, Reclaimer};
use crate::pool::stream_cache::Key;
use crate::pool::{Core, Pool, StreamView, Want};
use crate::support::error;
use crate::sync::atomic::Ordering;
use crate::sync::{HashMap, broken};

/// The most frees that wait at once; further ones are treated as if they were made without a stream. Some Ascend
/// devices have 1023 events in all, and recording one more waits until one has completed.
const MAX: usize = 512;

/// What was freed.
enum PendingMemory {
    /// Free space of the pool, which belongs to this owner alone.
    Space(Owner),
    /// A dedicated allocation.
    DedicatedTable(Freed),
}

/// One free.
struct Entry {
    number: u64,
    context: Context,
    /// None if the event went with its context.
    event: Option<Event>,
    left: PendingMemory,
}

/// All frees that wait, by the handle on which they were made, oldest first.
#[derive(Default)]
pub(in crate::pool) struct PerFreeEvents {
    by: HashMap<Key, VecDeque<Entry>>,
    count: usize,
    numbers: u64,
}

/// The frees that a stream may take from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pool) enum Reach {
    /// Those of its own handle, of exactly the requested size.
    Exact,
    /// Those of its own handle.
    Own,
    /// All.
    Any,
}

impl PerFreeEvents {
    fn push(&mut self, key: Key, context: Context, event: Event, left: PendingMemory) {
        self.numbers += 1;
        self.count += 1;
        self.by.entry(key).or_default().push_back(Entry {
            number: self.numbers,
            context,
            event: Some(event),
            left,
        });
    }

    fn remove(&mut self, key: Key, number: u64) {
        if let Some(entries) = self.by.get_mut(&key) {
            entries.retain(|entry| entry.number != number);
            self.count -= 1;
            if entries.is_empty() {
                self.by.remove(&key);
            }
        }
    }

    /// The frees that a stream of `context` may wait for. Another context's work may outlive `context`, and the wait
    /// would end with `context`: see [`Pool::take_from_other_stream`].
    fn within(&self, context: Context) -> impl Iterator<Item = &Entry> {
        let entries = self.by.values().flatten();
        entries.filter(move |entry| entry.context == context)
    }

    /// Takes all entries of `context` that are free space of the pool.
    fn take_spaces(&mut self, context: Context) -> Vec<Entry> {
        let mut taken = Vec::new();
        for entries in self.by.values_mut() {
            let is_taken = |entry: &Entry| entry.context == context && matches!(entry.left, PendingMemory::Space(_));
            let (spaces, others) = entries.drain(..).partition::<VecDeque<_>, _>(is_taken);
            taken.extend(spaces);
            *entries = others;
        }
        self.by.retain(|_, entries| !entries.is_empty());
        self.count -= taken.len();
        taken
    }

    /// Every dedicated allocation that waits.
    pub(in crate::pool) fn freed(&self) -> impl Iterator<Item = &Freed> {
        self.by.values().flatten().filter_map(|entry| match &entry.left {
            PendingMemory::DedicatedTable(freed) => Some(freed),
            PendingMemory::Space(_) => None,
        })
    }

    pub(in crate::pool) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The oldest event.
    pub(in crate::pool) fn awaited(&self) -> Option<Awaited> {
        let oldest = self
            .by
            .values()
            .filter_map(VecDeque::front)
            .min_by_key(|entry| entry.number)?;
        oldest.event.map(|event| Awaited::Event(oldest.context, event))
    }

    /// Forgets an event that went with its context.
    pub(in crate::pool) fn forget_event(&mut self, event: Event) {
        let entries = self.by.values_mut().flatten();
        entries
            .filter(|entry| entry.event == Some(event))
            .for_each(|entry| entry.event = None);
    }

    pub(in crate::pool) fn context_gone(&mut self, context: Context) {
        let entries = self.by.values_mut().flatten();
        entries
            .filter(|entry| entry.context == context)
            .for_each(|entry| entry.event = None);
    }
}

/// The result of querying the events.
#[derive(Default)]
struct Queried {
    over: Vec<PendingMemory>,
    /// Their events do not answer or are gone: a wait for everything covers them too.
    deferred: Vec<PendingMemory>,
    failed: Option<(Context, DriverError)>,
}

impl Reclaimer {
    /// Queries for each handle which of its frees have completed. Frees of one handle are queried in order, though
    /// behind a handle that came back they may complete in another order. An event that does not answer is left alone:
    /// its context may be gone, another context may have its handle, and the event may be that context's.
    fn query_per_free_events(&mut self, calls: &DriverCalls) -> Queried {
        let mut queries = Queried::default();
        let mut spare = Vec::new();
        for entries in self.per_free_events.by.values_mut() {
            while let Some(entry) = entries.front() {
                let (place, serves_again) =
                    match entry.event.map(|event| calls.query(|driver| driver.event_query(event))) {
                        Some(Ok(true)) => (&mut queries.over, true),
                        // The work in other contexts that its stream had waited for is not gone with its own context.
                        None => (&mut queries.deferred, false),
                        Some(Ok(false)) => break,
                        // The event went with its context, whichever context has the handle now.
                        Some(Err(error)) if error.failure == Failure::ContextDestroyed => {
                            queries.failed = Some((entry.context, error));
                            (&mut queries.deferred, false)
                        }
                        Some(Err(error)) if error.failure.is_dead() || error.failure == Failure::Capture => {
                            queries.failed = Some((entry.context, error)).filter(|_| error.failure.is_dead());
                            break;
                        }
                        Some(Err(_)) => (&mut queries.deferred, false),
                    };
                if let Some(entry) = entries.pop_front() {
                    self.per_free_events.count -= 1;
                    spare.extend(entry.event.filter(|_| serves_again).map(|event| (entry.context, event)));
                    place.push(entry.left);
                }
            }
        }
        self.per_free_events.by.retain(|_, entries| !entries.is_empty());
        spare.into_iter().for_each(|(context, event)| self.keep(context, event));
        queries
    }
}

impl Pool {
    /// Notes that the stream's context uses the pool from now on.
    pub fn note_stream_context(&self, stream: Stream) -> error::Result<()> {
        let context = self.calls.query(|driver| driver.stream_context(stream));
        self.update_limits(&mut self.core.lock(), context.map_err(|error| self.failed(error))?)?;
        Ok(())
    }

    /// As `note_context`, for a context that has just answered and so exists. Without ids there is nothing more to
    /// query.
    fn update_limits(&self, core: &mut Core, context: Context) -> Result<()> {
        let nameless = !self.driver().features().stream_ids;
        if nameless && core.contexts.iter().any(|(known, _)| *known == context) {
            return Ok(());
        }
        core.note_context(&self.calls, context)
    }

    /// Takes back a claimed block that is freed on a stream without an id. Where no event can be recorded there, the
    /// block counts as freed without a stream.
    pub fn free_with_event(&self, id: NodeId, block: &Block, stream: Stream, key: Key) {
        if self.dead.get().is_some() {
            return self.free(id, block, None, false);
        }
        let mut core = self.core.lock();
        self.reclaim_graphs(&mut core);
        let size = block.size();
        let number = block.capture.load(Ordering::Relaxed);
        let owner = match number {
            0 if block.shared.load(Ordering::Relaxed) == 0 => self.mark(&mut core, stream).map(|(context, event)| {
                let owner = core.free_space.add_owner();
                core.grace
                    .per_free_events
                    .push(key, context, event, PendingMemory::Space(owner));
                owner
            }),
            0 => None,
            // Host memory that a graph reads is not used twice: see `free.rs`.
            _ if self.options.pinned => None,
            _ => self.freed_inside(&mut core, stream, key, number, id),
        };
        let Some(owner) = owner else {
            drop(core);
            return self.free(id, block, None, false);
        };
        self.taken_back(size);
        self.counters.frees.fetch_add(1, Ordering::Relaxed);
        let requested = block.requested.load(Ordering::Relaxed);
        self.counters.requested.fetch_sub(requested, Ordering::Relaxed);
        if number != 0 {
            // Memory of a capture stays pending for every other stream.
            self.counters.pending.fetch_add(size, Ordering::Relaxed);
        }
        let action = if number == 0 {
            Action::Freed
        } else {
            Action::FreeRequested
        };
        self.record_freed(action, id, Some(stream));
        self.end_block(&mut core, id);
        core.free_space.give(id, owner, 0);
    }

    /// As [`Pool::free_with_event`], for a dedicated allocation; false where none starts at `address`.
    pub fn free_dedicated_with_event(&self, address: u64, stream: Stream, key: Key) -> bool {
        let Some(claimed) = self.dedicated.claim(address) else {
            return false;
        };
        let plain = claimed.shared.load(Ordering::Relaxed) == 0
            && claimed.block().as_ref().is_some_and(|block| block.capture == 0);
        if self.dead.get().is_some() || !plain {
            self.free_claimed(claimed, None, false);
            return true;
        }
        let mut core = self.core.lock();
        let Some((context, event)) = self.mark(&mut core, stream) else {
            drop(core);
            self.free_claimed(claimed, None, false);
            return true;
        };
        let resizes = claimed.resizes.load(Ordering::Relaxed);
        let Some(block) = self.dedicated.remove(claimed) else {
            core.grace.keep(context, event);
            return true;
        };
        self.taken_back(block.size);
        self.counters.frees.fetch_add(1, Ordering::Relaxed);
        self.counters.reallocations.fetch_add(resizes, Ordering::Relaxed);
        self.counters.pending.fetch_add(block.size, Ordering::Relaxed);
        self.record_dedicated_free(&block, Some(stream));
        let left = PendingMemory::DedicatedTable(Freed::DedicatedMemory(block));
        core.grace.per_free_events.push(key, context, event, left);
        true
    }

    /// Records an event behind everything queued on `stream` so far; none where the stream captures, the driver
    /// refuses, or too many frees wait already.
    fn mark(&self, core: &mut Core, stream: Stream) -> Option<(Context, Event)> {
        let context = self.calls.query(|driver| driver.stream_context(stream)).ok()?;
        self.update_limits(core, context).ok()?;
        // Calls of this pool are not made in another device's context, where a default stream would be another one.
        if stream.is_default() && self.calls.query(|driver| driver.current_device()) != Ok(Some(self.device)) {
            return None;
        }
        let _entered = self.calls.enter(context).ok()?;
        if self.calls.query(|driver| driver.stream_capture(stream)) != Ok(Capture::None) {
            return None;
        }
        if core.grace.per_free_events.count >= MAX {
            self.poll_per_free_events(core).ok()?;
        }
        if core.grace.per_free_events.count >= MAX {
            return None;
        }
        let record = |event| self.calls.submit(|driver| driver.event_record(event, stream));
        let spare = core.grace.spare_event(context);
        if let Some(event) = spare.filter(|event| record(*event).is_ok()) {
            return Some((context, event));
        }
        let fresh = core.grace.new_event(&self.calls, context);
        if let Some(event) = fresh.ok().filter(|event| record(*event).is_ok()) {
            // The refusal concerned the spare event only. That event is left alone, as in `query_per_free_events`.
            return Some((context, event));
        }
        if let Ok(event) = fresh {
            let _ = self.calls.submit(|driver| driver.event_destroy(event));
        }
        if let Some(event) = spare {
            core.grace.keep(context, event);
        }
        None
    }

    /// The owner whose free space a block of capture `number` becomes that is freed on a stream of the capture.
    fn freed_inside(&self, core: &mut Core, stream: Stream, key: Key, number: u32, id: NodeId) -> Option<Owner> {
        let info = self.calls.query(|driver| driver.stream_capture_info(stream)).ok()??;
        if core.captures.number_of(info.id) != Some(number) {
            return None;
        }
        core.captures.freed_inside(number, id, key)
    }

    /// Collects what has completed of what was freed on streams without ids.
    pub(in crate::pool) fn poll_per_free_events(&self, core: &mut Core) -> error::Result<()> {
        if core.grace.per_free_events.is_empty() {
            return Ok(());
        }
        let queries = core.grace.query_per_free_events(&self.calls);
        for left in queries.over {
            match left {
                PendingMemory::Space(owner) => {
                    core.free_space.transfer(owner, COMMON, u64::MAX, 0);
                    core.free_space.remove_owner(owner);
                }
                PendingMemory::DedicatedTable(freed) => self.return_freed(core, freed),
            }
        }
        for left in queries.deferred {
            match left {
                PendingMemory::Space(owner) => {
                    let bytes = core.free_space.free_bytes(owner);
                    self.counters.pending.fetch_add(bytes, Ordering::Relaxed);
                    for id in core.free_space.take_all(owner) {
                        core.grace.free(Freed::Block { id, give_back: false });
                    }
                    core.free_space.remove_owner(owner);
                }
                PendingMemory::DedicatedTable(freed) => core.grace.free(freed),
            }
        }
        match queries.failed {
            Some((context, error)) => self.context_failed(core, context, error),
            None => Ok(()),
        }
    }

    /// As [`Pool::take_behind_free`], from adjacent free ranges that are large enough only together. The stream waits for
    /// all events of the context, and one event of its own covers what it leaves.
    pub(in crate::pool) fn join_behind_frees(
        &self,
        core: &mut Core,
        want: &Want,
        view: &StreamView<'_>,
    ) -> Option<NodeId> {
        let here = self.calls.query(|driver| driver.stream_context(view.stream)).ok()?;
        let Core { free_space, grace, .. } = core;
        let entries = || grace.per_free_events.within(here);
        let spaces: Vec<(Owner, Event)> = entries()
            .filter_map(|entry| match (&entry.left, entry.event) {
                (PendingMemory::Space(owner), Some(event)) => Some((*owner, event)),
                _ => None,
            })
            .collect();
        let bytes: u64 = spaces.iter().map(|(owner, _)| free_space.free_bytes(*owner)).sum();
        if spaces.len() < 2 || bytes < want.size {
            return None;
        }
        for (_, event) in &spaces {
            let waits = self
                .calls
                .submit(|driver| driver.stream_wait_event(view.stream, *event));
            waits
                .inspect_err(|error| tracing::debug!(%error, "a stream could not be made to wait for what was freed"))
                .ok()?;
        }
        let (context, event) = self.mark(core, view.stream)?;
        let Core { free_space, grace, .. } = core;
        let all = free_space.add_owner();
        for entry in grace.per_free_events.take_spaces(here) {
            if let PendingMemory::Space(owner) = entry.left {
                free_space.transfer(owner, all, u64::MAX, 0);
                free_space.remove_owner(owner);
            }
            if let Some(event) = entry.event {
                grace.keep(entry.context, event);
            }
        }
        grace
            .per_free_events
            .push(view.cache.key, context, event, PendingMemory::Space(all));
        free_space.take(all, want.size, want.align)
    }

    /// The best fit of what was freed on streams without ids and is not known to be complete, behind its event.
    pub(in crate::pool) fn take_behind_free(
        &self,
        core: &mut Core,
        want: &Want,
        view: &StreamView<'_>,
        reach: Reach,
    ) -> Option<NodeId> {
        let Core { free_space, grace, .. } = core;
        let near = |key: &Key| reach == Reach::Any || *key == view.cache.key;
        let mut found = Vec::new();
        if !grace.per_free_events.by.keys().any(near) {
            return None;
        }
        let here = self.calls.query(|driver| driver.stream_context(view.stream)).ok()?;
        for (key, entries) in grace.per_free_events.by.iter().filter(|(key, _)| near(key)) {
            for entry in entries.iter().filter(|entry| entry.context == here) {
                if let (PendingMemory::Space(owner), Some(event)) = (&entry.left, entry.event) {
                    let bytes = free_space.free_bytes(*owner);
                    if bytes == want.size || bytes > want.size && reach != Reach::Exact {
                        found.push((bytes, entry.number, *key, entry.context, *owner, event));
                    }
                }
            }
        }
        found.sort_unstable_by_key(|(bytes, number, ..)| (*bytes, *number));
        for (_, number, key, context, owner, event) in found {
            let Some(id) = free_space.take(owner, want.size, want.align) else {
                continue;
            };
            if broken("a stream waits for what another one freed") {
                return Some(id);
            }
            if let Err(error) = self.calls.submit(|driver| driver.stream_wait_event(view.stream, event)) {
                tracing::debug!(%error, "a stream could not be made to wait for what was freed");
                free_space.give(id, owner, 0);
                return None;
            }
            if free_space.free_bytes(owner) == 0 {
                free_space.remove_owner(owner);
                grace.per_free_events.remove(key, number);
                grace.keep(context, event);
            }
            return Some(id);
        }
        None
    }
}
