//! Where freed memory goes: into a stream's free space, to deferred reclamation, or to a graph.

use crate::driver::{Context, Stream};
use crate::history::Action;
use crate::pool::counters::FreedBytes;
use crate::pool::decide::Trigger;
use crate::pool::free_space::{NodeId, Owner};
use crate::pool::reclaim::Reclaimer;
use crate::pool::reclaim::pending::Asks;
use crate::pool::reclaim::sets::Freed;
use crate::pool::reclaim::stream_uses::Uses;
use crate::pool::stream_cache::block::Block;
use crate::pool::stream_cache::{Key, Service};
use crate::pool::{Core, Memory, Pool};
use crate::support::config::ReleaseThreshold;
use crate::sync::atomic::Ordering;

/// With `release_threshold=auto`, memory of this size or more that is freed without a stream goes back to the driver.
const LARGE: u64 = 32 << 20;

/// On which stream a block was freed.
#[derive(Clone, Copy)]
pub enum FreedOn {
    /// On none.
    NoStream,
    /// On the stream whose cache has this key.
    Stream {
        /// The key.
        key: Key,
        /// The block was allocated on it. Then the stream may be gone.
        is_own: bool,
    },
    /// On a stream without an id (before CUDA 12.0): it exists.
    Unidentified {
        /// The key that its cache would have.
        key: Key,
        /// The stream.
        stream: Stream,
    },
    /// On another stream that has no cache.
    Uncached,
}

impl FreedOn {
    /// A free on the stream of `key` of a block whose origin has the key `origin`.
    pub fn stream(key: Key, origin: Option<Key>) -> FreedOn {
        FreedOn::Stream {
            key,
            is_own: origin == Some(key),
        }
    }

    /// A free on the stream that the block was allocated on.
    pub fn own(key: Key) -> FreedOn {
        FreedOn::stream(key, Some(key))
    }

    /// A free whose stream, if it named one, has no cache.
    pub fn without_cache(stream: Option<Stream>) -> FreedOn {
        match stream {
            Some(_) => FreedOn::Uncached,
            None => FreedOn::NoStream,
        }
    }

    /// The key of the stream's cache.
    pub fn key(self) -> Option<Key> {
        match self {
            FreedOn::Stream { key, .. } => Some(key),
            FreedOn::NoStream | FreedOn::Unidentified { .. } | FreedOn::Uncached => None,
        }
    }

    /// The stream, as far as it is known.
    pub fn stream_named(self) -> Option<Stream> {
        match self {
            FreedOn::Unidentified { stream, .. } => Some(stream),
            _ => self.key().map(|key| key.stream),
        }
    }

    /// Whether the free named no stream.
    pub fn is_without_stream(self) -> bool {
        matches!(self, FreedOn::NoStream)
    }
}

impl Pool {
    /// Takes back a claimed block that its stream's cache could not take: it was freed without a stream or on a stream
    /// that is unknown or of another device, or it was used on other streams too, or it belongs to a graph.
    pub fn free(&self, id: NodeId, block: &Block, freed_on: FreedOn) {
        let bytes = FreedBytes {
            allocated: block.size(),
            requested: block.requested.load(Ordering::Relaxed),
            resizes: 0,
        };
        self.record_freed(Action::FreeRequested, id, freed_on.stream_named());
        if self.is_dead() {
            return self.count_free_in_dead_pool(bytes);
        }
        let mut core = self.core.lock();
        let Core { memory, reclaimer, .. } = &mut *core;
        self.count_free(&mut memory.counts, bytes);
        reclaimer.reclaim_graphs(self, memory);
        memory.free_space.end_use(id);
        let uses = reclaimer.take_uses(id, block);
        let freed = Freed::Block { id, give_back: false };
        let capture = block.capture.load(Ordering::Relaxed);
        reclaimer.free(self, memory, freed, (capture, uses), freed_on);
        let _ = self.give_due_back(&mut core);
    }

    /// Whether memory that was freed in this way goes back to the driver.
    pub(in crate::pool) fn gives_back(&self, size: u64, freed_on: FreedOn) -> bool {
        let large = size >= LARGE && self.options.release_threshold == ReleaseThreshold::Auto;
        freed_on.is_without_stream() && large
    }

    /// Notes that a free on the stream of `key` is made in `context`. The handle may belong to another stream by now,
    /// of a context that the pool does not know, so that context uses the pool from now on. A context of another device
    /// does so only where it may access the pool's memory.
    #[cold]
    pub fn note_free_context(&self, key: Key, context: Context) {
        let forgotten = self.forgotten.load(Ordering::Acquire);
        let free = (self.device, context, forgotten);
        let green = self.caches.lock(key).1.known_green;
        if let Some((known, identity)) = green
            && known == free
            && self.calls.identity(context) == Ok(identity)
        {
            return;
        }
        let mut core = self.core.lock();
        let forgotten = self.forgotten.load(Ordering::Acquire);
        // A context whose device is unknown counts.
        let device = self.calls.query(|driver| driver.current_device());
        let elsewhere = matches!(device, Ok(Some(device)) if device != self.device);
        if !elsewhere || !self.options.peers.is_empty() {
            core.reclaimer.note_context_of_free(&self.calls, context);
        }
        let free = (self.device, context, forgotten);
        let (_, mut inner) = self.caches.lock(key);
        // The pool never notices the end of a green context, so its handle alone does not tell it from a later context.
        match core.reclaimer.contexts.green(context) {
            Some(identity) => inner.known_green = Some((free, identity)),
            // It may be a green one.
            None if core.reclaimer.contexts.is_unidentified(context) => {}
            None => inner.known_context = Some(free),
        }
    }
}

/// Where freed memory goes.
enum Disposition {
    /// To the free space of a stream of its capture, which freed it. It stays pending for every other stream.
    Capture(u32, Owner),
    /// To its graph, until that is gone.
    Graph(u32),
    /// To every caller at once: the driver knows no work, and a free without a stream declares that all of it has ended.
    Everyone,
    /// To the stream that freed it, and its arena.
    Stream(Key, Owner),
    /// To its home, behind an event of its own on the stream.
    Event(Key, Stream),
    /// To its home, behind the next completion events of all streams that used it.
    Streams(Vec<(Key, Owner)>),
    /// To its home, behind the work of all contexts.
    Contexts,
}

impl Disposition {
    /// `capture` is the capture that the memory belongs to, and `uses` are the streams that declared uses of it, where it has
    /// any.
    fn of(reclaimer: &Reclaimer, pool: &Pool, (capture, uses): (u32, Option<Uses>), freed_on: FreedOn) -> Disposition {
        let key = freed_on.key();
        // No single stream may reuse a block that was used on other streams, too.
        let own = key.filter(|_| uses.is_none());
        if reclaimer.graphs.has(capture) {
            let inside = match freed_on {
                // What a graph reads from host memory was written before its launch, so none of it is used twice.
                _ if pool.options.pinned || uses.is_some() => None,
                FreedOn::Unidentified { key, stream } => {
                    let info = pool.calls.query(|driver| driver.stream_capture_info(stream));
                    let number = info.ok().flatten().and_then(|info| reclaimer.graphs.number_of(info.id));
                    (number == Some(capture)).then_some(key)
                }
                _ => own.filter(|key| pool.caches.lock(*key).1.capture == capture),
            };
            let owner = inside.and_then(|key| reclaimer.graphs.owner_of(capture, key));
            return owner.map_or(Disposition::Graph(capture), |owner| {
                Disposition::Capture(capture, owner)
            });
        }
        if let FreedOn::Unidentified { key, stream } = freed_on
            && capture == 0
            && uses.is_none()
        {
            return Disposition::Event(key, stream);
        }
        if freed_on.is_without_stream() && !pool.driver().knows_work() {
            return Disposition::Everyone;
        }
        let stream = own.and_then(|key| Some((key, pool.caches.lock(key).1.owner_on(pool.device)?)));
        match (stream, key, uses) {
            (Some((key, owner)), ..) => Disposition::Stream(key, owner),
            (None, Some(key), Some(uses)) => pool
                .streams_of(uses, key)
                .map_or(Disposition::Contexts, Disposition::Streams),
            _ => Disposition::Contexts,
        }
    }
}

impl Reclaimer {
    /// Sends memory on its way that is counted as freed. `of` is its capture, and the streams that used it.
    pub(in crate::pool) fn free(
        &mut self,
        pool: &Pool,
        memory: &mut Memory,
        freed: Freed,
        of: (u32, Option<Uses>),
        freed_on: FreedOn,
    ) {
        let free_space = &memory.free_space;
        match (Disposition::of(self, pool, of, freed_on), freed) {
            (Disposition::Capture(number, owner), Freed::Block { id, .. }) => {
                self.graphs.freed_inside(number, id);
                pool.end_block(free_space, id);
                memory.free_space.give(id, owner, 0);
            }
            (Disposition::Capture(number, _) | Disposition::Graph(number), freed) => {
                self.graphs.keep(&mut self.pending.sets, number, freed, free_space);
                self.note_free(pool, freed_on);
            }
            (Disposition::Everyone, freed) => self.return_freed(pool, memory, freed),
            (Disposition::Event(key, stream), freed) => match self.record_event_behind(pool, memory, stream) {
                Some(at) => self.free_behind_event(pool, memory, freed, (key, at)),
                None => self.free_for_all(pool, memory, freed, freed_on),
            },
            (Disposition::Stream(key, owner), Freed::Block { id, .. }) => {
                give_to_arena(pool, memory, id, (key, owner));
            }
            // It has no arena. Its stream may take it back from behind the event.
            (Disposition::Stream(key, owner), freed) if pool.caches.lock(key).1.capture == 0 => {
                let (_, mut inner) = pool.caches.lock(key);
                inner.uncovered += freed.bytes(free_space);
                self.pending.free_range(owner, inner.next_event, freed, free_space);
            }
            (Disposition::Streams(streams), freed) => {
                let size = freed.bytes(free_space);
                let awaits = |(key, owner): (Key, Owner)| {
                    let (_, mut inner) = pool.caches.lock(key);
                    inner.uncovered += size;
                    inner.awaited = true;
                    (owner, inner.next_event)
                };
                let streams = streams.into_iter().map(awaits).collect();
                self.pending.sets.wait_for_streams(streams, freed, free_space);
            }
            (Disposition::Stream(..) | Disposition::Contexts, freed) => {
                let freed = match freed {
                    Freed::Block { id, .. } => Freed::Block {
                        id,
                        give_back: pool.gives_back(freed.bytes(free_space), freed_on),
                    },
                    freed => freed,
                };
                self.free_for_all(pool, memory, freed, freed_on);
            }
        }
    }

    /// Files memory that is reusable only once the work of all contexts has completed, and notes the context of the
    /// free. Context events of a later request cover it together with other frees, because each of them ends captures
    /// that the pool cannot see. Memory that goes back to the driver is covered at once while no capture is known.
    fn free_for_all(&mut self, pool: &Pool, memory: &mut Memory, freed: Freed, freed_on: FreedOn) {
        let gives_back = freed.gives_back() || self.is_over_threshold(pool, memory);
        self.pending.sets.file(freed, &memory.free_space);
        self.note_free(pool, freed_on);
        if gives_back
            && freed_on.is_without_stream()
            && let Ok(_entered) = pool.enter(&self.contexts)
            && self.cover(Trigger::GiveBack { all: false }, pool, memory)
        {
            let _ = self.poll_some(pool, memory, &mut Asks::few());
        }
    }

    /// Notes the context of a free whose memory waits for the known contexts, or will once its graph is gone.
    fn note_free(&mut self, pool: &Pool, freed_on: FreedOn) {
        match freed_on.is_without_stream() {
            true => self.note_current_of_free(&pool.calls),
            false => self.note_foreign_free(pool, freed_on),
        }
    }

    /// Notes the context of a free on a stream whose cache cannot take the block: reclamation waits for that context's
    /// work too, even if it is another device's.
    fn note_foreign_free(&mut self, pool: &Pool, freed_on: FreedOn) {
        let of = |stream| pool.calls.query(|driver| driver.context_of(stream)).ok();
        let known = freed_on.key().and_then(|key| {
            let (_, inner) = pool.caches.lock(key);
            let known = inner.served().map(|of| of.context);
            // A stream that never allocated still exists, because the block of another one was used on it.
            let is_own = matches!(freed_on, FreedOn::Stream { is_own: true, .. });
            let answers = !is_own && matches!(inner.service, Service::Unused) && !key.stream.is_default();
            drop(inner);
            known.or_else(|| answers.then(|| of(key.stream)).flatten())
        });
        let known = match freed_on {
            FreedOn::Unidentified { stream, .. } => of(stream),
            _ => known,
        };
        // Otherwise its context is most likely the current one.
        let current = || pool.calls.query(|driver| driver.current_context()).ok().flatten();
        if let Some(context) = known.or_else(current) {
            self.note_context_of_free(&pool.calls, context);
        }
    }
}

/// Gives a block to the arena of the stream that freed it.
fn give_to_arena(pool: &Pool, memory: &mut Memory, id: NodeId, (key, owner): (Key, Owner)) {
    let (_, mut inner) = pool.caches.lock(key);
    let (_, size) = memory.free_space.span(id);
    inner.uncovered += size;
    pool.record_freed(Action::FreeCompleted, id, Some(key.stream));
    pool.end_block(&memory.free_space, id);
    memory.free_space.give(id, owner, inner.next_event);
}
